"""Send the outputs of a stage that yields several on their way, each as a run of its own.

The stage's generator is driven in the item's own task. Each output becomes a child run of the
item's, in a task of its own, and walks on from the next stage; the generator is resumed when that
output has room there. When the generator has ended, the item gives its slot back and waits for its
outputs; its value is then the tuple of theirs, without dropped ones.

What is on its way can't be taken back: retries and the fallback are for a generator that failed
before its first output. Its timeout counts the time it runs, not the waits for room.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from harness._events import happened
from harness.errors import JournalValueError, OutputsFailedError
from harness.fanout import DROP, Result, Results
from harness.fanout._tries import Tries
from harness.flow._attempts import Calls, NotAsync, not_async, timed_out
from harness.flow._gate import Holdable, Walker
from harness.flow._places import copy_places, note_place
from harness.flow._statistics import Meter
from harness.policies import Attempt
from harness.runs import Run, current_run
from harness.runs._carry import carry
from harness.runs._endings import most_telling, unwrap_single
from harness.runs._inner_scope import InnerScope
from harness.runs._scopes import cancel_scope

if TYPE_CHECKING:
    from harness.fanout._journal_steps import ItemSteps

Walk = Callable[[Walker], Coroutine[Any, Any, Any]]
StartTask = Callable[..., None]


class Outputs:
    """The outputs of one item at one stage."""

    def __init__(
        self,
        name: str,
        calls: Calls,
        meter: Meter,
        *,
        walk: Walk,
        begin: Callable[[int, Any, Holdable], Walker],
        start_task: StartTask,
        next_position: int,
        fail_fast: bool,
    ) -> None:
        self._name = name
        self._calls = calls
        self._meter = meter
        self._walk = walk
        self._begin = begin
        self._start_task = start_task
        self._next_position = next_position
        self._fail_fast = fail_fast
        self._nursery: trio.Nursery
        self._run: Run
        self._results: list[Result[Any]] = []
        self._sent = 0
        self._room = trio.Event()
        self._failure: Exception | None = None
        """The first error, from the generator or an output."""
        self._record: ItemSteps | None = None
        """What records the item's steps; None without a journal."""
        self._texts: list[str] = []
        """The outputs as they are recorded."""

    @enable_ki_protection
    async def collect(self, item: Any, walker: Walker, given_back: Callable[[], None]) -> Any:
        """Send all outputs on their way, wait for them, and return their values.

        Args:
          item: What the stage is called with.
          walker: Whose outputs they are; it has the stage's slot.
          given_back: Gives the slot back; called when the generator has ended.

        Raises:
          OutputsFailedError: if not all outputs have a value.
          Exception: if the generator failed before its first output; and the first error,
            unchanged, if the pipeline ends with the first failure anyway.
        """
        # harness: shared (there is one of these for each item)
        self._record = record = walker.record
        self._run = run = current_run()  # harness: shared (there is one of these for each item)
        run._why_cut = self._why_cut
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                status = "cancelled"
                self._meter.begin(trio.current_time())
                try:
                    known = None if record is None else record.knows(self._calls.what)
                    if record is not None and known is not None:
                        for text in json.loads(await record.text(known)):
                            await self._send(record.decode(self._calls.what, text))
                    else:
                        await self._send_all(item, walker)
                    if record is not None and known is None:
                        further, degraded = max(0, walker.attempts - 1), walker.degraded
                        text = json.dumps(self._texts)
                        record.leave_text(
                            self._calls.what, text, further=further, degraded=degraded
                        )
                    status = "ok"
                    self._meter.extra_items += self._sent - 1
                except Exception as error:
                    status = "failed"
                    note_place(error, self._calls.what, self._name)
                    self._failed(error)
                finally:
                    self._meter.end(status, trio.current_time())
                    given_back()
        except BaseExceptionGroup as group:
            raise most_telling(group) from None
        finally:
            run._why_cut = None
        if any(result.status == "cancelled" for result in self._results):
            # The outputs keep a cancel to themselves. One that is not ours has to go on.
            await trio.lowlevel.checkpoint_if_cancelled()
        return self._value(run.path)

    def give_back(self, walker: Walker) -> None:
        """Resume the generator: its latest output has room further on, or has ended."""
        self._room.set()

    # The generator ----------------------------------------------------------------------------

    async def _send_all(self, item: Any, walker: Walker) -> None:
        plan = self._calls.plan_for(item)
        if plan.hedge is not None:
            raise TypeError(
                f"{self._calls.what} yields several outputs, which can't be taken back when "
                "another attempt wins; leave hedge= out of its Attempt"
            )
        tries = Tries()
        try:
            while True:
                tries.before = tries.attempts
                try:
                    await self._try(plan, item, tries)
                    return
                except NotAsync:
                    raise
                except Exception as error:
                    failure = unwrap_single(error)
                if self._sent or isinstance(failure, JournalValueError):
                    break
                if not await self._calls.another_try(plan, tries, failure):
                    break
        finally:
            walker.attempts += max(0, tries.attempts - 1)
        try:
            if self._sent:
                raise failure
            self._calls.give_up_if_stopped(tries, failure)
            await self._send(await self._calls.fall_back(plan, item, failure, walker))
        finally:
            del failure  # It holds the frame that holds it.

    @enable_ki_protection
    async def _try(self, plan: Attempt, item: Any, tries: Tries) -> None:
        """Drive the generator once, from its start to its end.

        One scope around it all, none around a single step: a generator may keep its own scopes open
        while it yields, and scopes have to nest.
        """
        stuck_at: types.TracebackType | None = None
        with InnerScope(current_run().id) as scope:
            try:
                async with AsyncExitStack() as stack:
                    if plan.limiter is not None:
                        tokens = plan.tokens(item) if callable(plan.tokens) else plan.tokens
                        await stack.enter_async_context(plan.limiter.reserve(tokens=tokens))
                    tries.attempts += 1
                    generator = _call(self._calls.function, item)
                    if not isinstance(generator, AsyncGenerator):
                        raise not_async(self._calls.what, self._calls.function, generator)
                    try:
                        await self._drive(generator, plan, scope)
                    finally:
                        await _close(generator)
                return
            except trio.Cancelled as cancelled:
                stuck_at = cancelled.__traceback__
                raise
        try:
            raise timed_out(self._calls.what, plan, stuck_at)
        finally:
            stuck_at = None  # It holds the frame that holds it.

    async def _drive(
        self, generator: AsyncGenerator[Any, None], plan: Attempt, scope: InnerScope
    ) -> None:
        seconds_left = math.inf if plan.timeout is None else plan.timeout
        while True:
            began_at = trio.current_time()
            scope.allow(seconds_left)
            try:
                output = await _next(generator)
            except StopAsyncIteration:
                return
            finally:
                scope.allow(math.inf)
                seconds_left -= trio.current_time() - began_at
            if output is not DROP:
                await self._send(output)

    # The outputs ------------------------------------------------------------------------------

    async def _send(self, output: Any) -> None:
        """Send an output on its way, and wait until it has room there."""
        _waiting_for = f"room behind {self._calls.what}"
        number = self._sent
        record = self._record
        if record is not None:
            text, output = record.encode(self._calls.what, output)
            self._texts.append(text)
            record = record.output(number, text)
        self._room = trio.Event()
        self._sent += 1
        walker = self._begin(self._next_position, output, self)
        walker.record = record
        self._start_task(self._nursery, self._carry, walker, number, current_run())
        self._meter.pause(trio.current_time())
        try:
            await happened(self._room)
        finally:
            self._meter.resume(trio.current_time())

    async def _carry(self, walker: Walker, number: int, parent: Run) -> None:
        """Walk one output to its end, in a task and a run of its own."""
        walker.started_at = trio.current_time()
        run = Run(str(number), parent, walker.started_at)
        run._item_index = number  # Or its effects would have the keys of its siblings.
        status, result = await carry(run, self._walk, walker)
        self._results.append(
            Result(
                number,
                number,
                walker.item,
                run.id,
                status,
                result,
                1 + walker.attempts,
                walker.started_at,
                trio.current_time(),
                walker.degraded,
            )
        )
        walker.let_go()  # If it ended before it got anywhere.
        if status in {"failed", "timed_out"}:
            self._failed(result)

    def _failed(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            if self._fail_fast:
                words = self._why_cut() or ""
                cancel_scope(self._nursery.cancel_scope, words)
                self._run._cut_below(words)

    def _why_cut(self) -> str | None:
        if self._failure is None or not self._fail_fast:
            return None
        return f"another output of {self._calls.what} failed"

    # The end ----------------------------------------------------------------------------------

    def _value(self, path: str) -> Any:
        self._results.sort(key=lambda result: result.index)
        failure = self._failure
        if failure is not None and (self._fail_fast or not self._sent):
            raise failure
        gaps = sum(not result.ok for result in self._results)
        if failure is None and not gaps:
            return tuple(result.value for result in self._results if not result.dropped)
        results = Results(self._results, name=path, status="failed")
        what = (
            f"{gaps:,} of {self._sent:,} outputs of {self._calls.what} have no value"
            if gaps
            else f"{self._calls.what} failed after {self._sent:,} outputs"
        )
        if failure is None:
            raise OutputsFailedError(what, results)
        error = OutputsFailedError(f"{what}; first {type(failure).__name__}: {failure}", results)
        copy_places(failure, error)
        raise error from failure


# What is the user's, Ctrl-C can end.


@disable_ki_protection
def _call(function: Callable[[Any], Any], item: Any) -> Any:
    return function(item)


@disable_ki_protection
async def _next(generator: AsyncGenerator[Any, None]) -> Any:
    return await anext(generator)


@disable_ki_protection
async def _close(generator: AsyncGenerator[Any, None]) -> None:
    await generator.aclose()
