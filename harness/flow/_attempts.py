"""Call a function under its `Attempt`, inside the run of the item that is on its way.

A fan-out makes each attempt a fresh run. Here an item has one run for its whole way, so the
attempts at one call share it: its `RunLocal` values, its deps, its idempotency key, its events.
They are made one after another in the item's own task, and so share its context variables too. A
hedge runs beside the first attempt in a task of its own: it sees the context variables of the
item, and what either of them sets is gone when one has won.

What is the same as in a fan-out is the same code: when to retry, when to hedge, how much of it.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from harness.errors import RunTimedOut
from harness.fanout import Hedges
from harness.fanout._hedge import Hedging, SideBySide
from harness.fanout._tries import Tries, too_late
from harness.flow._gate import Walker
from harness.policies import Attempt
from harness.policies._checks import check_attempt
from harness.runs import current_run
from harness.runs._endings import most_telling, set_context, unwrap_single
from harness.runs._frames import describe_wait, traceback_frames
from harness.runs._functions import not_awaitable_error
from harness.runs._run import Ending
from harness.runs._scopes import cancel_scope

PLAIN = Attempt()
"""One attempt, with nothing around it."""


class NotAsync(TypeError):
    """A function returned what can't be awaited: a mistake in the program, not in an item."""


@attrs.define(eq=False)
class OneOfTwo:
    """One of the attempts that run side by side; its scope is what can be cancelled of it."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def cancel(self, reason: str) -> None:
        """Cut this attempt short."""
        cancel_scope(self.scope, reason)


class Calls:
    """Calls one function, for all items of one flow."""

    __slots__ = ("_calls", "_each", "_hedging", "function", "what")

    def __init__(
        self,
        what: str,
        function: Callable[[Any], Any],
        each: Attempt | Callable[[Any], Attempt],
    ) -> None:
        self.what = what
        """What the function is, in words such as ``stage 'parse'``."""
        self.function = function
        self._each = each
        self._calls = 0
        self._hedging = Hedging(lambda: self._calls)

    @property
    def plain(self) -> bool:
        """Whether there is nothing to do but to call the function."""
        return isinstance(self._each, Attempt) and self._each == PLAIN

    @property
    def hedges(self) -> Hedges:
        """The attempts that were started beside another one, and what they brought."""
        return self._hedging.hedges()

    def plan_for(self, item: Any) -> Attempt:
        """Return what is to happen to one item.

        Raises:
          TypeError: if the caller's function of the item returned something else.
          ValueError: if it returned an attempt that can't be carried out.
        """
        if isinstance(self._each, Attempt):
            return self._each
        plan = self._each(item)
        if not isinstance(plan, Attempt):
            raise TypeError(
                f"each= of {self.what} is a function that must return an Attempt for an item, and "
                f"returned {plan!r}"
            )
        check_attempt(f"each= of {self.what}", plan)
        return plan

    async def call(self, item: Any, walker: Walker) -> Any:
        """Call the function on ``item`` as its `Attempt` says, and return the value.

        Raises:
          Exception: of the last attempt, if all failed and there is no fallback.
          RunTimedOut: if that was its time; it names the current run.
          NotAsync: if the function returned no awaitable.

        Checkpoint: as the function does.

        Cancellation: no attempt is left alive.
        """
        plan = self.plan_for(item)
        self._calls += 1
        tries = Tries()
        try:
            while True:
                tries.before = tries.attempts
                try:
                    if plan.hedge is not None:
                        return await self._side_by_side_call(plan, item, tries)
                    return await self.once(plan, item, tries)
                except NotAsync:
                    raise
                except Exception as error:
                    failure = unwrap_single(error)
                if not await another_try(plan, tries, failure):
                    break
        finally:
            walker.attempts += max(0, tries.attempts - 1)
        try:
            return await fall_back(plan, item, failure, walker)
        finally:
            del failure  # It holds the frame that holds it.

    async def once(
        self,
        plan: Attempt,
        item: Any,
        tries: Tries,
        granted: Callable[[], object] | None = None,
    ) -> Any:
        """Make one attempt; its time runs from the grant of its limiter."""
        if plan.timeout is None and plan.limiter is None:
            tries.attempts += 1
            return await self._awaitable(item)
        stuck_at: types.TracebackType | None = None
        with trio.CancelScope() as scope:
            try:
                if plan.limiter is None:
                    tries.attempts += 1
                    self._start_clock(scope, plan)
                    return await self._awaitable(item)
                tokens = plan.tokens(item) if callable(plan.tokens) else plan.tokens
                async with plan.limiter.reserve(tokens=tokens):
                    tries.attempts += 1
                    self._start_clock(scope, plan)
                    if granted is not None:
                        granted()
                    return await self._awaitable(item)
            except trio.Cancelled as cancelled:
                stuck_at = cancelled.__traceback__
                raise
        try:
            raise timed_out(self.what, plan, stuck_at)
        finally:
            stuck_at = None  # It holds the frame that holds it.

    def _start_clock(self, scope: trio.CancelScope, plan: Attempt) -> None:
        if plan.timeout is not None:
            scope.deadline = trio.current_time() + plan.timeout

    def _awaitable(self, item: Any) -> Awaitable[Any]:
        awaitable = self.function(item)
        if not isinstance(awaitable, Awaitable):
            raise not_async(self.what, self.function, awaitable)
        return awaitable

    async def _side_by_side_call(self, plan: Attempt, item: Any, tries: Tries) -> Any:
        """Make an attempt, and a second one beside it if it is late; the first answer wins."""
        hedge = plan.hedge
        assert hedge is not None
        both: SideBySide[OneOfTwo] = SideBySide(needs_grant=plan.limiter is not None)

        async def attempt(one: OneOfTwo) -> None:
            status: Ending = "cancelled"
            result: Any = None
            try:
                with one.scope:
                    result = await self.once(
                        plan, item, tries, functools.partial(both.granted, one)
                    )
                    status = "ok"
            except NotAsync:
                raise
            except Exception as error:
                status, result = "failed", unwrap_single(error)
            both.ended(one, status, result, self._hedging.learn)

        def launch(nursery: trio.Nursery) -> None:
            one = OneOfTwo()
            both.began(one)
            nursery.start_soon(attempt, one, name=self.what)

        run = current_run()
        try:
            await self._hedging.attend(both, hedge, launch=launch, closing=lambda: run.stopping)
        except BaseExceptionGroup as group:
            raise most_telling(group) from None
        _, status, result = both.decision()
        if status != "ok":
            raise result
        return result


async def another_try(plan: Attempt, tries: Tries, failure: Exception) -> bool:
    """Wait as long as is right before the next try; return False if there is to be none."""
    retry = plan.retry
    if retry is None or not retry.applies_to(failure):
        return False
    delay = tries.delay_seconds(retry, failure)
    if delay is None or current_run().stopping or too_late(delay):
        return False
    return await _nap(delay)


async def _nap(seconds: float) -> bool:
    """Sleep before a retry; return False if a stop of the run woke it up."""
    _waiting_for = f"its next attempt, in {seconds:.1f} s"
    run = current_run()
    with trio.CancelScope() as nap:
        if run._on_stop is None:
            run._on_stop = []
        run._on_stop.append(nap.cancel)
        try:
            await trio.sleep(seconds)
        finally:
            run._on_stop.remove(nap.cancel)
    return not nap.cancelled_caught


async def fall_back(plan: Attempt, item: Any, failure: Exception, walker: Walker) -> Any:
    """Return what the fallback gives for an item that failed finally; without one, raise."""
    if plan.fallback is None or trio.current_effective_deadline() == -math.inf:
        raise failure
    try:
        value = plan.fallback(item, failure)
        if isinstance(value, Awaitable):
            value = await value
    except Exception as error:
        set_context(error, failure)
        raise
    walker.degraded = True
    return value


def timed_out(what: str, plan: Attempt, stuck_at: types.TracebackType | None) -> RunTimedOut:
    """Return the error for an attempt whose time is over, saying where it was."""
    run = current_run()
    where = f", in {describe_wait(traceback_frames(stuck_at))}" if stuck_at is not None else ""
    error = RunTimedOut(
        f"{what} of run {run.path!r} ran out of time after {plan.timeout:g} s{where}"
    )
    error.run_id = run.id
    return error


def not_async(what: str, function: Callable[..., Any], returned: Any) -> NotAsync:
    """Return the error for a function that returned what can't be awaited."""
    return NotAsync(f"{what}: {not_awaitable_error(function, returned)}")
