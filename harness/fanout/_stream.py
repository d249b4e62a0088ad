"""Read the results of a fan-out as they come, however many there are.

The reader's code is the body of a block. The items run beside it in their own task, so a policy
that ends the fan-out never cancels the reader. What was not read isn't lost: it is in
`FanOutStream.results` after the block.
"""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from harness._arguments import check_key, says_where_options_are
from harness._async_with import AsyncWithOnly
from harness._outside_trio import refuse_outside_trio
from harness._words import repr_of
from harness.errors import FanOutError, JournalError
from harness.fanout._assemble import engine_for
from harness.fanout._engine import Work
from harness.fanout._job import Job
from harness.fanout._join import Join
from harness.fanout._limit import ChangingLimit
from harness.fanout._plan import ELSEWHERE, FAIL_FAST, LIMIT, FanOutJournal, Plan, check_function
from harness.fanout._result import Result, Results, Summary, Tally, by_index
from harness.fanout._tries import ONE_ATTEMPT
from harness.policies import Attempt, JoinPolicy, Priority
from harness.runs import Run, open_run
from harness.runs._endings import is_only_cancelled, most_telling, try_note
from harness.runs._yields import ASYNC_GENERATOR, look_for_yield

if TYPE_CHECKING:
    from harness.fanout._snapshot import FanOutStatistics

ItemT = TypeVar("ItemT")
T = TypeVar("T")

READS_PER_CHECKPOINT = 64
"""A reader that always finds a result ready still lets other tasks run once in this many."""


@says_where_options_are(ELSEWHERE)
def open_fan_out(
    fn: Callable[[ItemT], Awaitable[T]],
    items: Iterable[ItemT] | AsyncIterable[ItemT],
    *,
    policy: JoinPolicy = FAIL_FAST,
    limit: int | ChangingLimit = LIMIT,
    within: float | None = None,
    each: Attempt | Callable[[ItemT], Attempt] = ONE_ATTEMPT,
    key: Callable[[ItemT], Any] | None = None,
    priority: Priority | Callable[[ItemT], float] | None = None,
    journal: FanOutJournal | None = None,
    name: str | None = None,
    ordered: bool = False,
    window: int | None = None,
    keep: bool = False,
) -> FanOutStream[T]:
    """Like `fan_out`, but read the results one by one as they come::

        async with harness.open_fan_out(classify, tickets, limit=50) as stream:
            async for result in stream:
                ...

    Args:
      fn, items, policy, limit, within, each, key, priority, journal, name: As for `fan_out`.
      ordered: Whether to yield in input order; by default as the items end. Not allowed with
        ``priority``, which starts them in another order.
      window: How many items may be pulled and not yet read: in flight, waiting to be read or, with
        ``priority``, read ahead. By default twice ``limit``, and with ``priority`` at least
        ``limit`` plus the look-ahead. A reader that falls behind stops the pulling, so memory use
        stays flat. What a journal has counts once its result is read back.
      keep: Whether `FanOutStream.results` ends up with all results, or only those not read.

    Raises:
      TypeError: if an argument has the wrong type.
      ValueError: if a number is out of range, or ``ordered`` is given with ``priority``.
      FanOutError: from the iteration if the policy is broken, or the items can't be read further;
        at the end of the block if nobody was reading.
      JournalError: likewise, if the journal can't be opened or written.

    Cancellation: leaving the block cancels what is in flight and waits for it.
    """
    check_function("open_fan_out()", fn)
    plan = Plan(
        call="open_fan_out",
        function=fn,
        policy=policy,
        limit=limit,
        within=within,
        each=each,
        key=key,
        priority=priority,
        journal=journal,
        name=name,
        ordered=ordered,
        window=window,
        keep=keep,
        streamed=True,
    )
    return FanOutStream(plan, items)


class FanOutStream(AsyncWithOnly, Generic[T]):
    """A fan-out under way; what `open_fan_out` returns. An async iterator of `Result`."""

    _written = "harness.open_fan_out(...) as stream"

    def __init__(
        self,
        plan: Plan,
        items: Any,
        *,
        work: Work | None = None,
        new_job: Callable[[int, Any], Job] = Job,
    ) -> None:
        self._call = plan.call
        self._name = plan.run_name
        self._join = Join(plan.policy, plan.run_name, keeps_all=plan.keep)
        self._engine = engine_for(
            plan, items, join=self._join, sink=self._take, work=work, new_job=new_job
        )
        self._ordered = ordered = plan.ordered
        self._tally = Tally()
        self._unread: dict[int, Result[T]] | deque[Result[T]] = {} if ordered else deque()
        self._next_index = 0
        self._kept: list[Result[T]] | None = [] if plan.keep else None
        self._reader: trio.lowlevel.Task | None = None
        self._ready_reads = 0
        self._run: Run | None = None
        self._nursery_block: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._finished = False
        self._closed = False
        self._error: FanOutError[Exception] | JournalError | None = None
        self._raised = False
        self._left_over: list[Result[T]] | None = None

    @property
    def run(self) -> Run:
        """The fan-out's run: cancel it, stop it, or listen to its events."""
        if self._run is None:
            raise self._not_entered()
        return self._run

    @property
    def ordered(self) -> bool:
        """Whether results come in input order."""
        return self._ordered

    @property
    def results(self) -> Results[T]:
        """What was not read, in input order; with ``keep=True``, everything. Final after the block;
        then there is a result for every item if the number of items was known beforehand.

        Raises:
          RuntimeError: before the block.
        """
        if self._kept is not None:
            results = self._kept
        else:
            unread = self._unread
            results = list(unread.values() if isinstance(unread, dict) else unread)
        return Results(
            sorted([*results, *self._skipped()], key=by_index),
            name=self.run.path,
            status=self.run.status,
            hedges=self._engine.hedges,
            never_started=self._engine.never_started() if self._closed else None,
        )

    def cancel(self, key: Any, reason: str | None = None) -> bool:
        """Cancel only the item with this key, whatever it is doing; the others go on.

        One in flight, or waiting for its next attempt, ends as cancelled, with no retry and no
        fallback. One not yet started is skipped when its turn comes; with a journal it is cancelled
        then, and another session starts it. Several items with one key count as one. What has
        ended stays as it is.

        Args:
          key: The item's key: what ``key=`` returns for it, by default its index.
          reason: Why, in words, for its error and for dumps.

        Returns:
          Whether it was in flight.

        Raises:
          RuntimeError: before the block.
          TypeError: if the key can't be hashed.
        """
        if self._run is None:
            raise self._not_entered()
        check_key("FanOutStream.cancel(key)", key)
        if self._finished:
            return False
        return self._engine.call_off(key, reason or f"item {repr_of(key)} was called off")

    def summary(self) -> Summary:
        """Return how many items ended as what so far, read or not; after the block, for all.

        Raises:
          RuntimeError: before the block.
        """
        self._skipped()
        tail = self._engine.never_started() if self._closed else None
        return self._tally.summary(
            hedges=self._engine.hedges, never_started=0 if tail is None else len(tail)
        )

    def statistics(self) -> FanOutStatistics:
        """Return how many items are in flight, waiting to be read, or waiting for their turn.

        Raises:
          RuntimeError: before the block.
        """
        if self._run is None:
            raise self._not_entered()
        return self._engine.statistics()

    @enable_ki_protection
    async def __aenter__(self) -> Self:
        """Start the fan-out.

        Checkpoint: always.

        Cancellation: nothing is left running.
        """
        if self._nursery_block is not None:
            raise RuntimeError(
                f"the fan-out {self._name!r} was already started; call open_fan_out() for each "
                "block"
            )
        refuse_outside_trio(f"{self._call}() was called")
        frame = sys._getframe(1)
        if frame.f_code.co_flags & ASYNC_GENERATOR:
            look_for_yield(frame, f"{self._call}(…, name={self._name!r})")
        self._nursery_block = trio.open_nursery()
        nursery = await self._nursery_block.__aenter__()
        try:
            await nursery.start(self._drive, name=self._name)
        except BaseException as error:
            try:
                await self._nursery_block.__aexit__(type(error), error, error.__traceback__)
            except BaseException as group:
                raise most_telling(group) from None
            raise
        return self

    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        """Cancel what is in flight, and wait for it."""
        assert self._nursery_block is not None
        # Then the items are cancelled from outside too, and what they raise comes out as from any
        # nursery.
        cancelled = exc is not None and is_only_cancelled(exc)
        if not self._finished and not cancelled:
            self._engine.leave()
        try:
            await self._nursery_block.__aexit__(None, None, None)
        except BaseException as error:
            telling = most_telling(error)
            if exc is None or not isinstance(telling, trio.Cancelled):
                raise telling from exc
        finally:
            self._closed = True
            self._engine.hand_on = _nowhere  # Else each would keep the other alive.
        if self._error is None or self._raised:
            return
        if exc is None or cancelled:
            self._raised = True
            raise self._error
        try_note(exc, f"the fan-out had failed before: {self._error}")

    def __aiter__(self) -> Self:
        return self

    @enable_ki_protection
    async def __anext__(self) -> Result[T]:
        """Return the next result, waiting for one.

        Raises:
          StopAsyncIteration: if all have been read.
          FanOutError: once, if the policy is broken or the items can't be read further.
          JournalError: once, if the journal can't be opened or written.
          trio.BusyResourceError: if another task is waiting for a result of this stream.
          trio.ClosedResourceError: if the block has been left.
          RuntimeError: if the block has not been entered.

        Checkpoint: if no result is ready, and once in 64 results that are.

        Cancellation: no result is lost.
        """
        _waiting_for = self._in_words
        if self._closed:
            raise trio.ClosedResourceError(
                f"the block of fan-out {self._name!r} was left; what was not read is in .results"
            )
        if self._run is None:
            raise self._not_entered()
        if self._is_ready():
            self._ready_reads += 1
            if self._ready_reads % READS_PER_CHECKPOINT == 0:
                await trio.lowlevel.checkpoint()
        while not self._is_ready():
            if self._finished:
                if self._error is None or self._raised:
                    raise StopAsyncIteration
                self._raised = True
                raise self._error
            if self._reader is not None:
                raise trio.BusyResourceError(
                    f"another task already reads the fan-out {self._name!r}; "
                    "one task reads and hands on"
                )
            self._engine.starving = True
            self._engine.start_next()
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort_wait)
        unread = self._unread
        if isinstance(unread, dict):
            result = unread.pop(self._next_index)
            self._next_index += 1
        else:
            result = unread.popleft()
        self._engine.unread -= 1
        self._engine.start_next()
        return result

    @enable_ki_protection
    async def _drive(self, task_status: trio.TaskStatus[None]) -> None:
        """Be the fan-out's run, in a task beside the reader's."""
        try:
            async with open_run(self._name) as run:
                self._run = run
                self._join.run_path = run.path
                self._engine.begin(run)
                task_status.started()
                await self._engine.drive()
                if error := self._engine.error(self._unread_results):
                    raise error
            self._error = self._engine.error(self._unread_results)
        except (FanOutError, JournalError) as error:
            self._error = error
        finally:
            self._finished = True
            self._wake_reader()

    def _skipped(self) -> list[Result[T]]:
        """Return a result for each item that was never started; none until that is certain.

        Made when asked for: a reader who leaves early seldom wants a million of them.
        """
        if self._run is None:
            raise self._not_entered()
        if not self._closed:
            return []
        if self._left_over is None:
            self._left_over = list(self._engine.skipped())
            for result in self._left_over:
                self._tally.add(result)
        return self._left_over

    def _unread_results(self) -> Results[T]:
        return self.results

    def _take(self, result: Result[T]) -> None:
        self._engine.unread += 1
        self._tally.add(result)
        if self._kept is not None:
            self._kept.append(result)
        unread = self._unread
        if isinstance(unread, dict):
            unread[result.index] = result
        else:
            unread.append(result)
        self._wake_reader()

    def _is_ready(self) -> bool:
        if self._join.broken and not self._raised:
            return False  # A broken policy comes before any result.
        unread = self._unread
        return self._next_index in unread if isinstance(unread, dict) else bool(unread)

    def _wake_reader(self) -> None:
        if self._reader is not None and (self._finished or self._is_ready()):
            reader, self._reader = self._reader, None
            self._engine.starving = False
            trio.lowlevel.reschedule(reader)

    def _abort_wait(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self._reader = None
        self._engine.starving = False
        return trio.lowlevel.Abort.SUCCEEDED

    def _not_entered(self) -> RuntimeError:
        return RuntimeError(
            f"the fan-out {self._name!r} does not run until its block is entered; "
            "write `async with harness.open_fan_out(...) as stream:`"
        )

    def _in_words(self) -> str:
        return f"a result of {self._name}"


def _nowhere(result: Result[Any]) -> None:
    """Discard a result that nobody is left to take."""
