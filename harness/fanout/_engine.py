"""The one engine behind everything that runs many items at once.

A finished item starts the next one itself: there is no dispatcher, no semaphore, and no waves.
The engine counts, starts items and takes their results. It is never subclassed; what differs is
in the parts it is given:

- a *feed* says which item is next: in input order, by priority, or what a journal has left to do;
- *work* is what happens between the start of an item and its end: attempts, each in a run, or a
  walk through a pipeline or a router in one run;
- a *ledger*, if there is one, records each item and says when its result may be handed on.

What the engine keeps:

- At most ``limit`` items are in flight; together with the results that are not yet durable or not
  yet read, they never exceed ``window``.
- Items are pulled and started in one context, copied when the fan-out was called. So no item sees
  what another, running or finished, did to its context variables.
- Nothing is pulled or started once the fan-out is cancelled, stopping or decided.
- Every item pulled ends as exactly one result.

Two failures in one step are two failures: a decision lets the step finish before it cancels the
rest, because by then all sleepers due at the same instant have been woken.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, final

import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from harness._words import error_in_words, repr_of
from harness.errors import FanOutError, ItemSkipped, RunCancelled
from harness.fanout._feed import Feed
from harness.fanout._job import Job
from harness.fanout._join import Join
from harness.fanout._ledger import Ledger
from harness.fanout._limit import ChangingLimit, Limit
from harness.fanout._never_started import NeverStarted
from harness.fanout._notices import FanOutBegan, ItemOver
from harness.fanout._plan import Plan
from harness.fanout._result import Hedges, Result, Results, ResultStatus, Sink
from harness.fanout._source import AsyncSource, Exhausted, Source, SyncSource
from harness.fanout._source_owner import SourceOwner
from harness.fanout._watch import NOBODY, Counts, Watch, watching
from harness.policies import Decision, FailFast
from harness.runs import Run
from harness.runs._cleanup import shielded_from
from harness.runs._endings import most_telling
from harness.runs._scopes import cancel_scope

if TYPE_CHECKING:
    from harness.fanout._snapshot import FanOutStatistics


class Work(Protocol):
    """What happens between the start of an item and its end."""

    def keep_in(self, ledger: Ledger) -> None:
        """Have a ledger record every item; called before `begin`, if at all."""

    def begin(self, engine: Engine) -> None:
        """Join an engine that already has its run, context and nursery."""

    def carry(self, job: Job) -> Coroutine[Any, Any, None]:
        """Return what runs in the item's task; it ends with `Engine.end`."""
        ...

    @property
    def looked(self) -> Callable[[], None] | None:
        """Called once an item has ended or a result was read, and what could start was started.

        None if nobody wants the call; known from `begin` on.
        """
        ...

    def call_off(self, key: Any, why: str) -> bool:
        """Cut short an item that is between its attempts; return whether there was one."""
        ...

    def end(self) -> None:
        """Hear that everything has ended."""

    @property
    def hedges(self) -> Hedges:
        """The attempts started beside another one, and what they gained."""
        ...

    @property
    def slots(self) -> int | None:
        """How many calls it may make at once; None if the fan-out's limit says so."""
        ...


@final
class Engine:
    """Runs the items of one plan. Single use; made by `harness.fanout._assemble`."""

    # Slots, because objects with more than 30 fields don't share the table of their names: an item
    # would cost 1.5 % more.
    __slots__ = (
        "_called_off",
        "_carry",
        "_changing_limit",
        "_counts_successes",
        "_cut_short",
        "_driver",
        "_ended",
        "_exhausted",
        "_feed",
        "_join",
        "_ledger",
        "_left",
        "_looked",
        "_owner",
        "_plan",
        "_shielded_from",
        "_source",
        "_source_error",
        "_stopped",
        "_watch",
        "_work",
        "base",
        "cut",
        "failed",
        "hand_on",
        "in_flight",
        "limit",
        "nursery",
        "over",
        "run",
        "started",
        "starving",
        "unread",
        "unwritten",
        "window",
    )

    def __init__(
        self,
        plan: Plan,
        source: Source,
        *,
        feed: Feed,
        work: Work,
        ledger: Ledger | None,
        join: Join,
        sink: Callable[[Result[Any]], None],
    ) -> None:
        self._plan = plan
        self._source = source
        self._feed = feed
        self._work = work
        self._ledger = ledger
        self._join = join
        self._counts_successes = False
        """Whether the policy is told of successes; known once it has begun."""
        self.hand_on: Sink = sink
        """Passes a result to whoever asked for it."""
        self.limit: int = plan.first_limit
        """How many items may be in flight."""
        self.window: float = plan.room
        """How many may be in flight, on their way to a journal, or unread."""
        self._changing_limit = plan.changing_limit
        self._called_off: dict[Any, str] = {}
        """The keys of items that must not be started, and why."""
        self.in_flight: int = 0
        self.unread: int = 0
        """Results waiting for a reader; the stream counts them up and down."""
        self.unwritten: int = 0
        """Results the ledger doesn't have yet; the ledger counts them."""
        self.starving: bool = False
        """Whether a reader is waiting and has no result to read; set by the stream."""
        self.started: int = 0
        """How many items were started, or done without being started."""
        self.failed: int = 0
        """How many items failed or timed out in this session."""
        self.over: bool = False
        """Whether pulling and starting are over. What is in flight may go on."""
        self.run: Run  # Set by `begin`, like the next; the two after by `drive`.
        self.base: contextvars.Context
        """What items are pulled and started in."""
        self._watch: Watch | None = None
        """What is told how far it comes."""
        self._shielded_from: str | None = None
        """The run whose stops and cancels a cleanup block holds off, with those from above."""
        self.nursery: trio.Nursery
        self._carry: Callable[[Job], Coroutine[Any, Any, None]]
        """What works on an item; a bound method, kept because making one takes a while."""
        self._looked: Callable[[], None] | None = None
        self.cut: str | None = None
        """Why what is in flight is cut short, in words; None unless it is."""
        self._stopped: str | None = None
        """Why the run was stopped or cancelled, in words; None unless it was."""
        order = plan.order
        self._ended = None if order is None or order.serial_by is None else feed.ended
        """Told of each job that has ended, if others wait for that."""
        self._exhausted = False
        """Whether the source said it has no more, so there is nothing to close."""
        self._cut_short = False
        """Whether an item ended as cancelled; a cancel from outside may be the cause."""
        self._left = False
        """Whether the reader left first. Then an unmet policy is nobody's concern."""
        self._source_error: Exception | None = None
        self._driver: trio.lowlevel.Task | None = None
        """The task in `drive`, while it waits for the fan-out to finish."""
        self._owner: SourceOwner | None = None
        """Pulls from an async source and closes it."""

    # The whole --------------------------------------------------------------------------------

    def begin(self, run: Run) -> None:
        """Join ``run``, in whose block this is called; copy the context for the items."""
        self.run = run
        self.base = contextvars.copy_context()
        self._shielded_from = shielded_from()
        self._watch = watching.get()
        if self._watch is not None:
            self.base.run(watching.set, NOBODY)
            self._watch.begun(self._plan.run_name, self)
        run._number_as_fan_out()
        run._why_cut = self.why_cut
        run._add_stop_notice(self._stop)
        if run._observers:
            run._notice(FanOutBegan(self._source.size, self))

    async def drive(self) -> None:
        """Run everything, and return when all has ended. Call `begin` first.

        Raises:
          BaseException: what is neither an item's error nor a cancel, ungrouped.

        Checkpoint: always.

        Cancellation: every item in flight is cancelled and gets its result; the source is closed.
        """
        if self._ledger is None:
            await self._drive()
        else:
            await self._ledger.keep(self, self._drive)

    @enable_ki_protection  # The user's own code that it calls is not protected.
    async def _drive(self) -> None:
        _waiting_for: object = self.in_words
        source = self._source
        self.base.run(self._join.begin, source.size)
        self._counts_successes = self._join.counts_successes
        if self._join.decision is Decision.CANCEL:
            self.cut = self.cut or self._join.why
        self._stopped = self.run._stop_words(self._shielded_from) or self._join.why
        if self.cut or self._stopped:
            self.start_no_more()
        try:
            async with trio.open_nursery() as nursery:
                self.nursery = nursery
                self._work.begin(self)
                self._carry = self._work.carry
                self._looked = self._work.looked
                # Only now: a fan-out cancelled here can be asked about what was set above.
                await trio.lowlevel.checkpoint_if_cancelled()
                if self._plan.within is not None:
                    self.run._cut_at = self.run.started_at + self._plan.within
                    nursery.cancel_scope.deadline = self.run._cut_at
                if self._ledger is not None:
                    self._ledger.begin(self)
                if isinstance(self._changing_limit, Limit):
                    self._changing_limit._watch(self._limit_changed)
                if isinstance(source, AsyncSource):
                    source.begin(self)
                    self._owner = SourceOwner(source, self._feed, self.base)
                    self.base.run(nursery.start_soon, self._owner.own, self)
                else:
                    self.start_next()
                await self._until_over()
        except (BaseExceptionGroup, trio.Cancelled) as error:
            telling = most_telling(error)
            # An error outranks a cancel from outside, as in any nursery.
            if not (isinstance(telling, trio.Cancelled) and self._has_error()):
                raise telling from None
        finally:
            # A traceback is put into words later, when these are out of date.
            _waiting_for = None
            if isinstance(self._changing_limit, Limit):
                self._changing_limit._unwatch(self._limit_changed)
            self.start_no_more()
            if isinstance(source, SyncSource):
                self._close_sync(source)
            self._work.end()
            if self._watch is not None:
                self._watch.over(self)
            if self._ledger is None:  # A ledger still has to give back what it began.
                for job in self._feed.left_over():
                    self.hand_on(self.skip(job))
        if isinstance(source, SyncSource) and self._exhausted and self._source_error is None:
            self._source_error = source.changed()
        if self._cut_short and not self._has_error():
            # The items swallow a cancel. One that came from outside has to go on.
            await trio.lowlevel.checkpoint_if_cancelled()

    def _has_error(self) -> bool:
        """Return whether there is an error to raise; it comes before a cancel from outside."""
        return self._join.broken_by_failure or self._source_error is not None

    def error(self, results: Callable[[], Results[Any]]) -> FanOutError[Exception] | None:
        """Return what the fan-out raises at the end; None if it succeeded.

        Args:
          results: Returns all that was done; called only if there is an error.
        """
        error = None if self._left else self._join.error(results)
        if self._source_error is None:
            return error
        what = (
            f"the items of run {self.run.path!r} could not be read beyond the first "
            f"{self._feed.pulled:,}: {error_in_words(self._source_error)}"
        )
        entries = [] if error is None else list(error.exceptions)
        return FanOutError(what, [*entries, self._source_error], results())

    @property
    def hedges(self) -> Hedges:
        """The attempts started beside another one, and what they gained."""
        return self._work.hedges

    @property
    def slots(self) -> int:
        """How many items, or calls of stages, may be in progress at once."""
        return self._work.slots or self.limit

    @property
    def has_journal(self) -> bool:
        """Whether later sessions have the results of this one."""
        return self._ledger is not None

    def is_read(self) -> bool:
        """Return whether the reader, if there is one, has read all results and asks for more."""
        return not self._plan.streamed or (self.starving and not self.unread)

    def statistics(self) -> FanOutStatistics:
        """Return how many items are where."""
        statistics: type[FanOutStatistics]
        statistics = import_module("harness.fanout._snapshot").FanOutStatistics
        return statistics(
            in_flight=self.in_flight,
            unread=self.unread,
            waiting=self._feed.waiting,
            waiting_by_priority=self._feed.depths(),
        )

    def counts(self) -> Counts:
        """Return how far it has come, for a watch. May be called in any thread."""
        in_flight = self.in_flight
        done = max(0, self.started - in_flight)
        return Counts(total=self._source.size, done=done, failed=self.failed, in_flight=in_flight)

    def never_started(self) -> NeverStarted | None:
        """Return the results, made on demand, of a sequence's items that were never pulled."""
        source, pulled = self._source, self._feed.pulled
        if not isinstance(source, SyncSource) or source.sequence is None:
            return None
        if source.size is None or pulled >= source.size:
            return None
        return NeverStarted(
            source.sequence,
            pulled,
            key=self._plan.key,
            why=self._why_skipped(),
            at=self.run.ended_at or trio.current_time(),
        )

    def skipped(self) -> Iterator[Result[Any]]:
        """Yield a result for each item of a sized source that has none and isn't `never_started`.

        Those are items that a journal has, and whose results were never read; and what was never
        pulled, unless the source is a sequence.
        """
        source, pulled = self._source, self._feed.pulled
        if self._ledger is not None and source.size is not None:
            yield from map(self.skip, self._feed.left_over())
        if not isinstance(source, SyncSource) or source.size is None:
            return
        if source.sequence is not None:
            return
        for index in range(pulled, source.size):  # An iterator already read has ended.
            try:
                item = next(source.iterator)
            except Exception:  # It has ended, or can't be read further.
                return
            yield self.skip(Job(index, item))

    def leave(self) -> None:
        """Cut everything short, as nobody reads on: what is open now breaks no policy."""
        self._left = not self._join.broken
        self.close("the block that read the results was left")

    def close(self, why: str) -> None:
        """Cut everything short: start nothing more, and cancel what is in flight."""
        self.start_nothing(why)
        self._cancel_items(self.cut or why)

    def call_off(self, key: Any, why: str) -> bool:
        """Cancel the item with a key, or have it skipped when its turn comes.

        Returns:
          Whether it was in flight.
        """
        self._called_off[key] = why
        mine = [run for run in self.run.children if run._item_index is not None]
        if self._plan.key is None:
            attempts = [run for run in mine if run._item_index == key]
        else:
            attempts = [run for run in mine if run.name == str(key)]
        for run in attempts:
            run.cancel(why)
        return self._work.call_off(key, why) or bool(attempts)

    def start_nothing(self, why: str) -> None:
        """Start nothing more, and give this as the items' reason, unless they have one."""
        self.start_no_more()
        self.cut = self.cut or why

    # Start ------------------------------------------------------------------------------------

    def start_next(self, by: str | None = None) -> None:
        """Start what there is room for, once an item has ended or a reader took a result.

        Args:
          by: The id of the run that has ended.
        """
        if self._changing_limit is not None:
            self._look_at_limit(self._changing_limit)
        if not self.over and self.in_flight < self.limit:
            self.base.run(self._fill, by)
        if self._owner is not None:
            self._owner.wake()
        if self._ledger is not None:
            self._ledger.looked()
        if self._looked is not None:
            self._looked()

    def _look_at_limit(self, changing: ChangingLimit) -> None:
        if changing.limit != self.limit:
            self.limit = changing.limit
            self.window = self._plan.room_for(self.limit)

    @enable_ki_protection
    def _limit_changed(self) -> None:
        """Start what there is room for, in a task: the caller may be about to start an item."""
        if not self.over:
            self.nursery.start_soon(self._start_more, name="change of the limit")

    async def _start_more(self) -> None:
        self.start_next()

    def look(self) -> None:
        """Let go what waits for items that can no longer come."""
        if self._looked is not None:
            self._looked()

    @property
    def waits_for_all(self) -> bool:
        """Whether all that is left starts only once nothing is in flight."""
        return self._ledger is not None and self._ledger.waits_for_all

    def fill(self) -> None:
        """Start what there is room for, and tell nobody."""
        if not self.over:
            self.base.run(self._fill)

    def places(self) -> float:
        """Return how many more items may be in flight, unwritten or unread."""
        left = self.window - self.in_flight - self.unread - self.unwritten
        if left <= 0 and self.starving and not (self.in_flight or self.unwritten):
            # A reader in input order is waiting for an item that later ones have overtaken.
            return 1
        return left

    def start_no_more(self) -> None:
        """Start nothing more. Called in any task, also while trio cancels."""
        self.over = True
        driver, self._driver = self._driver, None
        if driver is not None:
            trio.lowlevel.reschedule(driver)
        if self._ledger is not None:
            self._ledger.is_over()

    async def _until_over(self) -> None:
        """Wait until nothing more will be started.

        This is also how a cancel is noticed, wherever it comes from: trio calls `cancelled` at the
        moment of the cancel, before any item can run again and start the next one.
        """
        _waiting_for = self.in_words

        def cancelled(_: Callable[[], None]) -> trio.lowlevel.Abort:
            self._driver = None
            self.start_no_more()
            return trio.lowlevel.Abort.SUCCEEDED

        if not self.over:
            self._driver = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(cancelled)
        # Here, in a task, not the moment it is over: that may be inside a cancel, while trio walks
        # its tasks and none may be started.
        self.look()

    # The next two run once per item, and every call in them counts.

    @disable_ki_protection  # It asks the user's iterables and functions.
    def _fill(self, by: str | None = None) -> None:
        """Start items while there is room. Call in the base context."""
        feed = self._feed
        while (
            not self.over
            and self.in_flight < self.limit
            and (
                self.in_flight + self.unread + self.unwritten < self.window
                or (self.starving and self.places() > 0)
            )
        ):
            try:
                job = feed.next(self)
            except Exhausted:
                self.no_more_items()
            except Exception as error:
                self.source_failed(error)
            else:
                if job is None:
                    return
                if self.over:  # The source itself stopped or cancelled the run.
                    self.hand_on(self.skip(job))
                else:
                    job.started_by = by
                    self._start(job)

    @enable_ki_protection  # trio's `start_soon` isn't protected, and would leave a task half made.
    def _start(self, job: Job) -> None:
        """Start the task of one item. Call in the base context."""
        self.started += 1
        self.in_flight += 1
        attempt = self._plan.attempt
        if attempt is None or job.problem is not None or self._called_off:
            self._start_as_told(job)
            return
        job.attempt = attempt
        job.name = name = str(job.index)
        self.nursery.start_soon(self._carry, job, name=name)

    @enable_ki_protection
    def _start_as_told(self, job: Job) -> None:
        """Start the task of an item whose key or attempt comes from the caller's functions."""
        key = self._plan.key
        try:
            if key is not None and not job.name:
                job.key = _ask(key, job.item)
                if inspect.iscoroutine(job.key):
                    job.key.close()
                    job.key = job.index
                    raise TypeError(
                        f"key= takes a plain function of the item, but returned a coroutine for "
                        f"{repr_of(job.item)}; it must return the key at once"
                    )
            job.name = job.name or str(job.key)
            if self._called_off and (why := self._called_off.get(job.key)) is not None:
                self.nursery.start_soon(self._pass_over, job, why, name=job.name)
                return
            if job.problem is not None:
                raise job.problem
            job.attempt = _ask(self._plan.attempt_for, job.item)
        except Exception as error:
            # The caller's function failed for this item, so the item fails.
            job.name = job.name or str(job.index)
            self.nursery.start_soon(self._refuse, job, error, name=job.name)
        else:
            self.nursery.start_soon(self._carry, job, name=job.name)

    async def _refuse(self, job: Job, error: Exception) -> None:
        """End an item for which the caller's function failed before its start."""
        job.started_at = trio.current_time()
        if self.end(job, "failed", error, job.started_at):
            await self.settle()

    async def _pass_over(self, job: Job, why: str) -> None:
        """End an item that was called off before its start."""
        job.started_at = trio.current_time()
        error: Exception
        if self._ledger is None:
            status: ResultStatus = "skipped"
            error = ItemSkipped(f"the item was never started: {why}")
        else:
            status, error = "cancelled", RunCancelled(why)  # The journal has it as started.
        if self.end(job, status, error, job.started_at):
            await self.settle()

    # End --------------------------------------------------------------------------------------

    def end(self, job: Job, status: ResultStatus, value: Any, ended_at: float) -> bool:
        """Take an item's result, and let the next one start.

        Returns:
          Whether this decided the fan-out; the caller's task must then `settle`.
        """
        self.in_flight -= 1
        if self._ended is not None:
            self._ended(job)
        if self.run._observers:
            began, degraded = job.started_at, job.degraded
            self.run._notice(
                ItemOver(job.index, status, job.attempts, began, ended_at, degraded), ended_at
            )
        ledger, attempts = self._ledger, job.attempts
        if ledger is not None:
            status, value, attempts = ledger.decide(job, status, value)
        result: Result[Any] = Result(
            job.index,
            job.key,
            job.item,
            job.run_id,
            status,
            value,
            attempts,
            job.started_at,
            ended_at,
            job.degraded,
        )
        if status != "ok" or self._counts_successes:
            self._judge(result)
        if ledger is None:
            hand_on = self.hand_on
            hand_on(result)
        else:
            ledger.write(job, result)
        if self._join.why is None:
            self.start_next(job.run_id)
            return False
        if self._join.decision is Decision.STOP:
            self._wind_down()
            self.start_next(job.run_id)  # Somebody may be waiting for others in flight.
            return False
        self.start_no_more()
        if self.cut is not None:
            return False
        self.cut = self._join.why
        return True

    @property
    def decided(self) -> bool:
        """Whether the policy needs nothing more, not even what is in flight."""
        return self._join.decision is Decision.CANCEL

    def kept(self, result: Result[Any], *, raises: bool) -> None:
        """Count an item that is done without being run.

        Args:
          result: The result.
          raises: Whether its failure may be raised, once everything else has run.
        """
        self.started += 1
        if self._counts_successes or result.failed:
            # In a copy: this may be called by a feed, which runs in the context itself.
            self.base.copy().run(partial(self._join.add_kept, result, raises=raises))
            self._heed()

    def _judge(self, result: Result[Any]) -> None:
        """Put a result to the policy. Successes may be left out unless they count."""
        if result.failed:
            self.failed += 1
            if self._watch is not None:
                self._watch.failed(result.key, result.error)
        self._cut_short = self._cut_short or result.status == "cancelled"
        self.base.run(self._join.add, result)  # The judge may be the caller's.

    def _heed(self) -> None:
        """Do what the policy decided while no item was ending."""
        if self._join.decision is Decision.STOP:
            self._wind_down()
        elif self._join.why is not None:
            self.start_no_more()
            self._cut_soon(self._join.why)

    def _wind_down(self) -> None:
        """Let what is in flight end, and start nothing more, because the policy says so."""
        if self._stopped is None:
            # Those waiting for a retry are woken as by a stop, but in this run alone: what is in
            # flight ends undisturbed, with everything it started itself.
            for notice in tuple(self.run._on_stop or ()):
                notice()

    async def settle(self) -> None:
        """Cancel what is in flight, once every task woken in this step has had its say."""
        assert self.cut is not None
        await trio.lowlevel.cancel_shielded_checkpoint()
        self._cancel_items(self.cut)

    def _cancel_items(self, why: str) -> None:
        if hasattr(self, "nursery"):
            cancel_scope(self.nursery.cancel_scope, why)
            self.run._cut_below(why)
        elif self._ledger is not None:
            # A reader may leave while the ledger is opening, which takes seconds if it is large.
            self._ledger.give_up()

    def skip(self, job: Job) -> Result[Any]:
        """Return the result of an item that is never started."""
        if self._plan.key is not None:
            try:
                # In a copy: a source that stops its own fan-out is read in the context itself.
                job.key = self.base.copy().run(_ask, self._plan.key, job.item)
            except Exception:
                pass  # It has no key then; its index identifies it.
        skipped = ItemSkipped(f"the item was never started: {self._why_skipped()}")
        now = trio.current_time()
        return Result(job.index, job.key, job.item, None, "skipped", skipped, 0, now, now)

    def _why_skipped(self) -> str:
        return self.why_cut() or "the fan-out was over before its turn"

    def closing(self) -> bool:
        """Return whether no further attempt may start."""
        return self.cut is not None or self._stopped is not None

    def why_cut(self) -> str | None:
        """Return why this fan-out itself cut items short, in words; None if it didn't."""
        if self.cut is not None:
            return self.cut
        within = self._plan.within
        if within is not None and self.nursery.cancel_scope.cancel_called:
            return f"the {within:g} s of within= were over"
        return self._stopped

    def _stop(self) -> None:
        """Start nothing more: the run was stopped or cancelled. Any task may call; sets flags."""
        words = self.run._halt_words(self._shielded_from) or self._join.why
        if words is None:
            return  # It is meant for what is outside the cleanup block that this is in.
        self._stopped = words
        self.start_no_more()
        if self._owner is not None:
            self._owner.interrupt()

    def in_words(self) -> str:
        """Return how many items are in flight and have ended."""
        ended = self.started - self.in_flight
        size = "" if self._source.size is None else f" of {self._source.size:,}"
        if self.unread and not self.in_flight:
            return f"its reader ({self.unread:,} results unread; {ended:,}{size} ended)"
        ahead = f", {self._feed.waiting:,} read ahead" if self._plan.order is not None else ""
        unwritten = "" if self._ledger is None else self._ledger.in_words()
        return f"{self.in_flight:,} items in flight ({ended:,}{size} ended){ahead}{unwritten}"

    # The source -------------------------------------------------------------------------------

    def wake_owner(self) -> None:
        """Have the owner of an async source check again for room."""
        if self._owner is not None:
            self._owner.wake()

    def no_more_items(self) -> None:
        """Note that the source has been read to its end."""
        self._exhausted = True
        self.start_no_more()
        if self._source.size is None:
            self._join.expect(self._feed.pulled)
            self._heed()

    def source_failed(self, error: Exception) -> None:
        """Note that the source can't be read further."""
        self.start_no_more()
        if self._source_error is None:
            self._source_error = error
        if isinstance(self._join.policy, FailFast):
            self._cut_soon("the items could not be read further, and the policy is FailFast()")

    @enable_ki_protection
    def _cut_soon(self, why: str) -> None:
        if self.cut is None:
            self.cut = why
            self.nursery.start_soon(self.settle)

    def _close_sync(self, source: SyncSource) -> None:
        if self._exhausted or source.size is not None:
            return
        try:
            self.base.run(source.close)
        except Exception as error:
            self._source_error = self._source_error or error


@disable_ki_protection
def _ask(function: Callable[[Any], Any], item: Any) -> Any:
    """Call a user's function, which Ctrl-C can interrupt."""
    return function(item)
