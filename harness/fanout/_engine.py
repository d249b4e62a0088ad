"""The one engine behind everything that runs many items at once.

A finished item starts the next one itself: there is no dispatcher, no semaphore, and no waves.
This file pulls the items, starts them and takes their results; what happens to one item in
between is `ItemWork`. What the engine keeps:

- At most ``limit`` items are in flight, and together with the results nobody has read yet they
  never exceed ``window``.
- Items are pulled and started inside one context, copied when the fan-out was called. So no item
  sees what another, or a finished one, did to its context variables.
- Nothing is pulled or started once the fan-out is cancelled, stopping or decided.
- Every item that was pulled ends as exactly one result.
- An async source is pulled and closed by one task, its owner: the cancel scopes of a generator
  belong to the task that entered them.

Two failures in one step are two failures: a decision lets the step finish before it cancels the
rest, because sleepers that wake at the same instant have all been woken by then.
"""

from __future__ import annotations

import contextvars
import inspect
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import trio

from harness._words import error_in_words, repr_of
from harness.errors import FanOutError, ItemSkipped
from harness.fanout._item import ItemWork, Job
from harness.fanout._join import Join
from harness.fanout._result import Hedges, Result, Results, ResultStatus
from harness.fanout._source import AsyncSource, Exhausted, SyncSource
from harness.fanout._statistics import FanOutStatistics
from harness.policies import Attempt, FailFast, check_attempt
from harness.runs import Run
from harness.runs._cleanup import cleanup_deadline
from harness.runs._endings import most_telling
from harness.runs._scopes import cancel_scope


class Engine:
    """Runs a function over items. Made for one use, by `fan_out` and its kin."""

    item_work: type[ItemWork] = ItemWork
    """What happens between the start of an item and its end."""
    job: type[Job] = Job
    """What an item is meanwhile."""

    def __init__(
        self,
        function: Callable[[Any], Awaitable[Any]],
        source: SyncSource | AsyncSource,
        *,
        join: Join,
        limit: int,
        within: float | None,
        each: Attempt | Callable[[Any], Attempt],
        key: Callable[[Any], Any] | None,
        sink: Callable[[Result[Any]], None],
        window: float = math.inf,
    ) -> None:
        self._function = function
        self._source = source
        self._iterator = source.iterator if isinstance(source, SyncSource) else None
        self._join = join
        self._counts_successes = join.counts_successes
        self._limit = limit
        self._within = within
        self._each = each
        self._key = key
        self._new_job = self.job
        self._plan = each if key is None and isinstance(each, Attempt) else None
        """What happens to every item, where there is no function to ask about each."""
        self._sink = sink
        self._window = window
        self.unread = 0
        """Results that wait for a reader; the stream counts them up and down."""
        self.starving = False
        """Whether a reader waits for a result and there is none for it; told by the stream."""
        self._run: Run  # Since `begin`, like the next; the two after them since `drive`.
        self._base: contextvars.Context
        self._nursery: trio.Nursery
        self._items: ItemWork
        self._work: Callable[[Job], Awaitable[None]]
        """What works on an item; a bound method, which takes a while to be made anew."""
        self._started = 0
        """Items that have a number: those pulled, and in the end those that were skipped."""
        self._in_flight = 0
        self._over = False
        """Whether nothing more is pulled or started. What is in flight may go on."""
        self._exhausted = False
        """Whether the source said that it has no more, so that there is nothing to close."""
        self.cut: str | None = None
        """In words, why what is in flight is cut short; None as long as it isn't."""
        self._stopped: str | None = None
        """In words, why the run was stopped or cancelled; None as long as it wasn't."""
        self._skipped: ItemSkipped | None = None
        self._cut_short = False
        """Whether an item ended as cancelled: a cancel from outside may be behind it."""
        self._left = False
        """Whether the reader left first. Then an unmet policy is no news to anybody."""
        self._source_error: Exception | None = None
        self._driver: trio.lowlevel.Task | None = None
        """The task in `drive`, while it waits for the fan-out to be over."""
        self._owner: trio.lowlevel.Task | None = None
        """The task that pulls from an async source and closes it."""
        self._owner_parked = False
        """Whether that task waits for room."""
        self._pulling: trio.CancelScope | None = None
        """The owner's scope while it waits for an item, for a stop to cancel."""

    # The whole --------------------------------------------------------------------------------

    def begin(self, run: Run) -> None:
        """Belong to ``run``, whose block this is called in; copy the context for the items."""
        self._run = run
        self._base = contextvars.copy_context()
        run._number_as_fan_out()
        run._why_cut = self.why_cut
        run._on_stop = [*(run._on_stop or ()), self._stop]

    async def drive(self) -> None:
        """Run everything, and return when all has ended; after `begin`.

        Raises:
          BaseException: what is neither an error of an item nor a cancel, bare.

        Checkpoint: always.

        Cancellation: every item in flight is cancelled and has its result; the source is closed.
        """
        _waiting_for: object = self._in_words
        source = self._source
        if source.size is not None:
            self._join.expect(source.size)
        self.cut = self._join.why
        self._stopped = self._run._stop_words()
        if self.cut or self._stopped:
            self._start_no_more()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._items = self.item_work(
                    self._function, self._run, self._base, nursery, host=self
                )
                self._work = self._items.work
                # Not before: what is asked of a fan-out that was cancelled here needs the above.
                await trio.lowlevel.checkpoint_if_cancelled()
                if self._within is not None:
                    self._run._cut_at = self._run.started_at + self._within
                    nursery.cancel_scope.deadline = self._run._cut_at
                self._begin_work(nursery)
                await self._until_over()
        except BaseExceptionGroup as group:
            raise most_telling(group) from None
        finally:
            # A traceback is worded later, when these words no longer hold.
            _waiting_for = None
            self._start_no_more()
            if isinstance(source, SyncSource):
                self._close_sync(source)
        if self._cut_short and not self._join.broken_by_failure and self._source_error is None:
            # The items keep a cancel to themselves. If it came from outside it has to go on, unless
            # there is an error to tell, which as in any nursery comes first.
            await trio.lowlevel.checkpoint_if_cancelled()

    def error(self, results: Callable[[], Results[Any]]) -> FanOutError[Exception] | None:
        """Return what the fan-out has to raise in the end; None if it succeeded.

        Args:
          results: Gives all that was done; asked only if there is an error.
        """
        error = None if self._left else self._join.error(results)
        if self._source_error is None:
            return error
        what = (
            f"the items of run {self._run.path!r} could not be read beyond the first "
            f"{self._started:,}: {error_in_words(self._source_error)}"
        )
        entries = [] if error is None else list(error.exceptions)
        return FanOutError(what, [*entries, self._source_error], results())

    @property
    def hedges(self) -> Hedges:
        """The attempts that were started beside another one, and what they brought."""
        return self._items.hedges

    def statistics(self) -> FanOutStatistics:
        """Return how many items are where."""
        return FanOutStatistics(in_flight=self._in_flight, unread=self.unread)

    def skipped(self) -> Iterator[Result[Any]]:
        """Yield a result for each item of a sized source that was never started."""
        if not isinstance(self._source, SyncSource) or self._source.size is None:
            return
        while self._started < self._source.size:
            try:
                item = next(self._source.iterator)
            except Exception:  # At its end, or it can't be read further.
                return
            yield self._skip(item)

    def leave(self) -> None:
        """Cut everything short, because nobody reads on: what is open now breaks no policy."""
        self._left = not self._join.broken
        self.close("the block that read the results was left")

    def close(self, why: str) -> None:
        """Cut everything short: nothing more is started, what is in flight is cancelled."""
        self._cancel_items(self._start_nothing(why))

    def _start_nothing(self, why: str) -> str:
        """Start nothing; return why everything is cut short, which may have been said before."""
        self._start_no_more()
        self.cut = self.cut or why
        return self.cut

    # Start ------------------------------------------------------------------------------------

    def start_next(self) -> None:
        """Start what there is room for: an item has ended, or a reader took a result."""
        if self._iterator is None:
            self._wake_owner()
        elif not self._over:
            self._base.run(self._fill, self._iterator)

    def _begin_work(self, nursery: trio.Nursery) -> None:
        """Start what there is room for, for the first time, or the task that pulls it."""
        if isinstance(self._source, AsyncSource):
            self._base.run(nursery.start_soon, self._own_source, self._source)
        else:
            self.start_next()

    async def _until_over(self) -> None:
        """Wait until nothing more will be started.

        This is also how a cancel is noticed, wherever it comes from: trio calls `cancelled` in the
        moment of the cancel, before any item has run again and could start the next one.
        """
        _waiting_for = self._in_words

        def cancelled(_: Callable[[], None]) -> trio.lowlevel.Abort:
            self._driver = None
            self._start_no_more()
            return trio.lowlevel.Abort.SUCCEEDED

        if not self._over:
            self._driver = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(cancelled)

    def _start_no_more(self) -> None:
        self._over = True
        driver, self._driver = self._driver, None
        if driver is not None:
            trio.lowlevel.reschedule(driver)

    # The next two run once per item, and each call in them is felt: hence a long one, and a loop
    # condition that is repeated where the owner of an async source asks the same.

    def _fill(self, iterator: Iterator[Any]) -> None:
        """Pull and start items while there is room. To be called in the base context."""
        while (
            not self._over
            and self._in_flight < self._limit
            and self._in_flight + self.unread < self._window
        ):
            try:
                item = next(iterator)
            except StopIteration:
                self._no_more_items()
            except Exception as error:
                self._source_failed(error)
            else:
                if self._over:  # The source itself stopped or cancelled the run.
                    self._record(self._skip(item))
                else:
                    self._start(item)

    def _start(self, item: Any, index: int | None = None, problem: Exception | None = None) -> None:
        """Start the task of one item. To be called in the base context.

        Args:
          item: The item.
          index: Its place in the input; None: items are started in input order.
          problem: What the caller's own function raised for it before, if it did.
        """
        if index is None:
            index = self._started
        self._started += 1
        self._in_flight += 1
        new_job = self._new_job
        job = new_job(index, item)
        if self._plan is None or problem is not None:
            self._start_as_told(job, problem)
            return
        job.plan = self._plan
        job.name = name = str(index)
        self._nursery.start_soon(self._work, job, name=name)

    def _start_as_told(self, job: Job, problem: Exception | None) -> None:
        """Start the task of an item whose key or plan the caller's own functions give."""
        item, each, key = job.item, self._each, self._key
        try:
            if key is not None:
                job.key = key(item)
                if inspect.iscoroutine(job.key):
                    job.key.close()
                    job.key = job.index
                    raise TypeError(
                        f"key= is a plain function of the item, and returned a coroutine for "
                        f"{repr_of(item)}; it must return the key at once"
                    )
            job.name = str(job.key)
            if problem is not None:
                raise problem
            job.plan = plan_for(item, each)
        except Exception as error:
            # The caller's own function failed for this item: that is the item's failure.
            job.name = job.name or str(job.index)
            self._nursery.start_soon(self._items.refuse, job, error, name=job.name)
        else:
            self._nursery.start_soon(self._items.work, job, name=job.name)

    # End --------------------------------------------------------------------------------------

    def end(self, job: Job, status: ResultStatus, value: Any, ended_at: float) -> bool:
        """Take an item's result, and let the next one start.

        Returns:
          Whether this decided the fan-out: the caller's task then has to `settle`.
        """
        self._in_flight -= 1
        result: Result[Any] = Result(
            job.index,
            job.key,
            job.item,
            job.run_id,
            status,
            value,
            job.attempts,
            job.started_at,
            ended_at,
            job.degraded,
        )
        if status != "ok" or self._counts_successes:
            self._judge(result)
        sink = self._sink
        sink(result)
        if self._join.why is None:
            self.start_next()
            return False
        return self._is_first_to_decide()

    def _is_first_to_decide(self) -> bool:
        """Start nothing more, as it is decided; return whether nobody has seen that before."""
        self._start_no_more()
        if self.cut is not None:
            return False
        self.cut = self._join.why
        return True

    def _record(self, result: Result[Any]) -> None:
        """Take the result of an item that was not started."""
        self._judge(result)
        self._sink(result)

    def _judge(self, result: Result[Any]) -> None:
        """Hold a result against the policy. A success need not come here unless those count."""
        if result.failed:
            self._base.run(self._join.add, result)  # It may ask the caller's ``critical``.
        else:
            self._cut_short = self._cut_short or result.status == "cancelled"
            self._join.add(result)

    async def settle(self) -> None:
        """Cancel what is in flight, once everybody who was woken in this step has been heard."""
        assert self.cut is not None
        await trio.lowlevel.cancel_shielded_checkpoint()
        self._cancel_items(self.cut)

    def _cancel_items(self, why: str) -> None:
        cancel_scope(self._nursery.cancel_scope, why)
        self._run._cut_below(why)

    def _skip(self, item: Any, index: int | None = None) -> Result[Any]:
        """Return the result of an item that is never started."""
        if index is None:
            index = self._started
            self._started += 1
        key: Any = index
        if self._key is not None:
            try:
                # In a copy: a source that stops its own fan-out is read in the context itself.
                key = self._base.copy().run(self._key, item)
            except Exception:
                pass  # It has no key then; its index says which it is.
        if self._skipped is None:
            # One for all: there may be a million of them, and they differ in nothing.
            why = self.why_cut() or "the fan-out was over before its turn"
            self._skipped = ItemSkipped(f"the item was never started: {why}")
        now = trio.current_time()
        return Result(index, key, item, None, "skipped", self._skipped, 0, now, now)

    @property
    def started(self) -> int:
        """How many items were started, or skipped."""
        return self._started

    def closing(self) -> bool:
        """Return whether no further attempt is to be started."""
        return self.cut is not None or self._stopped is not None

    def why_cut(self) -> str | None:
        """Return in words why items were cut short by this fan-out itself; None if they weren't."""
        if self.cut is not None:
            return self.cut
        if self._within is not None and self._nursery.cancel_scope.cancel_called:
            return f"the {self._within:g} s of within= were over"
        return self._stopped

    def _stop(self) -> None:
        """Start nothing more: the run was stopped or cancelled. Called in any task: only flags."""
        self._stopped = self._run._halt_words()
        self._start_no_more()
        if self._pulling is not None:
            self._pulling.cancel()
        self._items.stop()
        self._wake_owner()

    def _in_words(self) -> str:
        ended = self._started - self._in_flight
        size = "" if self._source.size is None else f" of {self._source.size:,}"
        if self.unread and not self._in_flight:
            return f"its reader ({self.unread:,} results unread; {ended:,}{size} ended)"
        return f"{self._in_flight:,} items in flight ({ended:,}{size} ended)"

    # The source -------------------------------------------------------------------------------

    async def _own_source(self, source: AsyncSource) -> None:
        """Pull items one after another, as there is room, and close the source at the end.

        One scope around it all, and none around a single pull: a generator may hold scopes of its
        own open while it yields, and scopes have to nest. For the same reason it is closed inside
        that scope; unless a stop has cancelled the scope, and a generator has ended with that.
        """
        self._owner = trio.lowlevel.current_task()
        interrupted = False
        try:
            with trio.CancelScope() as scope:
                try:
                    await self._pull_all(source, scope)
                except Exhausted:
                    self._no_more_items()
                except Exception as error:
                    self._source_failed(error)
                finally:
                    self._pulling = None
                    self._start_no_more()
                    interrupted = scope.cancel_called
                    if not interrupted:
                        scope.deadline, scope.shield = cleanup_deadline(), True
                        await self._close_async(source)
        finally:
            if interrupted:
                with trio.CancelScope(deadline=cleanup_deadline(), shield=True):
                    await self._close_async(source)

    async def _pull_all(self, source: AsyncSource, scope: trio.CancelScope) -> None:
        """Pull and start items until none is wanted; raise what the source ends with."""
        while await self._room():
            self._pulling = scope
            item = await source.next()
            self._pulling = None
            if self._over:
                self._record(self._skip(item))
            else:
                self._base.run(self._start, item)

    async def _close_async(self, source: AsyncSource) -> None:
        try:
            await source.close()
        except Exception as error:
            self._source_failed(error)

    async def _room(self) -> bool:
        """Wait until another item may be pulled; return False when none ever may."""
        while not self._over:
            if self._room_to_pull():
                return True
            await self._park()
        return False

    def _room_to_pull(self) -> bool:
        in_flight = self._in_flight
        return in_flight < self._limit and in_flight + self.unread < self._window

    async def _park(self) -> None:
        """Wait, as the owner of the source, until `_wake_owner`."""
        _waiting_for = "an item to end, or a result to be read"
        self._owner_parked = True
        await trio.lowlevel.wait_task_rescheduled(self._abort_wait)

    def _abort_wait(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self._owner_parked = False
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake_owner(self) -> None:
        if self._owner_parked and self._owner is not None:
            self._owner_parked = False
            trio.lowlevel.reschedule(self._owner)

    def _no_more_items(self) -> None:
        self._exhausted = True
        self._start_no_more()
        self._join.expect(self._started)
        if self._join.why is not None:
            self._cut_soon(self._join.why)

    def _source_failed(self, error: Exception) -> None:
        self._start_no_more()
        if self._source_error is None:
            self._source_error = error
        if isinstance(self._join.policy, FailFast):
            self._cut_soon("the items could not be read further, and the policy is FailFast()")

    def _cut_soon(self, why: str) -> None:
        if self.cut is None:
            self.cut = why
            self._nursery.start_soon(self.settle)

    def _close_sync(self, source: SyncSource) -> None:
        if self._exhausted or source.size is not None:
            return
        try:
            self._base.run(source.close)
        except Exception as error:
            self._source_error = self._source_error or error


def plan_for(item: Any, each: Attempt | Callable[[Any], Attempt]) -> Attempt:
    """Return what happens to an item.

    Raises:
      TypeError: if the caller's function returned something else.
      ValueError: if it returned an attempt that can't be carried out.
    """
    if isinstance(each, Attempt):
        return each
    plan = each(item)
    if not isinstance(plan, Attempt):
        raise TypeError(
            f"each= is a function that must return an Attempt for an item, and returned {plan!r}"
        )
    check_attempt("each= of a fan-out", plan)
    return plan
