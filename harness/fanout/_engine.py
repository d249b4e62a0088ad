"""The one engine behind everything that runs many items at once.

A finished item starts the next one itself: there is no dispatcher, no semaphore, and no waves. An
item is a task; so is every further attempt of it, because a task is what gives code a context of
its own. What the engine keeps:

- At most ``limit`` items are in flight, and together with the results nobody has read yet they
  never exceed ``window``.
- Items are pulled and started inside one context, copied when the fan-out was called. So no item
  sees what another, or a finished one, did to its context variables.
- Nothing is pulled or started once the fan-out is cancelled, stopping or decided.
- Every item that was pulled ends as exactly one result.
- An async source is pulled and closed by one task, its owner: cancel scopes of a generator belong
  to the task that entered them.

Two failures in one step are two failures: a decision lets the step finish before it cancels the
rest, because sleepers that wake at the same instant have all been woken by then.
"""

from __future__ import annotations

import contextvars
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import attrs
import outcome
import trio

from harness.errors import FanOutError, ItemSkipped, RunCancelled
from harness.fanout._hedge import HedgeBudget, Tries
from harness.fanout._join import Join
from harness.fanout._latency import Latencies
from harness.fanout._result import FAILURES, Result, Results, ResultStatus, Tally
from harness.fanout._source import AsyncSource, Exhausted, SyncSource
from harness.policies import Attempt, FailFast, Retry, asked_seconds, is_rate_limit
from harness.runs import Run
from harness.runs._block import carry
from harness.runs._run import cancel_scope, current

RATE_LIMIT_SECONDS_AT_MOST = 600.0
"""How long one item may wait for rate limits in all; then the error is final."""

Plan = Attempt | Callable[[Any], Attempt]


@attrs.define(eq=False)
class Job:
    """One item on its way to its result."""

    index: int
    key: Any
    item: Any
    name: str
    plan: Attempt
    started_at: float
    run_id: str | None = None
    attempts: int = 0
    """Attempts that began, hedges included; rate-limited ones are taken back."""
    failures: int = 0
    """Tries that failed for another reason than a rate limit."""
    rate_limits: int = 0
    rate_limit_seconds: float = 0.0


class Engine:
    """Runs a function over items. Made for one use, by `fan_out` and its kin."""

    def __init__(
        self,
        function: Callable[[Any], Awaitable[Any]],
        source: SyncSource | AsyncSource,
        *,
        join: Join,
        limit: int,
        within: float | None,
        each: Plan,
        key: Callable[[Any], Any] | None,
        sink: Callable[[Result[Any]], None],
        window: float = math.inf,
    ) -> None:
        self._function = function
        self._source = source
        self._join = join
        self._limit = limit
        self._within = within
        self._each = each
        self._key = key
        self._sink = sink
        self._window = window
        self.unread = 0
        """Results that wait for a reader; the stream counts them up and down."""
        self.tally = Tally()
        self.source_error: Exception | None = None
        self._over = False
        self._exhausted = False
        self._run: Run
        self._base: contextvars.Context
        self._nursery: trio.Nursery
        self._started = 0
        self._in_flight = 0
        self._cut: str | None = None
        self._latencies = Latencies()
        self._hedges = HedgeBudget()
        self._undecided_tries: set[Tries] = set()
        self._naps: set[trio.CancelScope] = set()
        self._owner: trio.lowlevel.Task | None = None
        self._owner_parked = False
        self._pulling: trio.CancelScope | None = None

    # The whole --------------------------------------------------------------------------------

    def begin(self, run: Run) -> None:
        """Belong to ``run``, whose block this is called in; copy the context for the items."""
        self._run = run
        self._base = contextvars.copy_context()
        run._why_cut = self._why_cut
        run._on_stop = [*(run._on_stop or ()), self._stop]

    async def drive(self) -> None:
        """Run everything, and return when all has ended; after `begin`.

        Raises:
          BaseException: what is neither an error of an item nor a cancel, bare.

        Cancellation: every item in flight is cancelled and has its result; the source is closed.
        """
        waiting_for = self._in_words  # noqa: F841 (read by `dump`)
        run = self._run
        if self._source.size is not None:
            self._join.expect(self._source.size)
        self._cut = self._join.why
        self._over = self._cut is not None
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if self._within is not None:
                    nursery.cancel_scope.deadline = run.started_at + self._within
                if isinstance(self._source, AsyncSource):
                    self._base.run(nursery.start_soon, self._own_source, self._source)
                else:
                    self._start_next()
        except BaseExceptionGroup as group:
            raise _most_telling(group) from None
        finally:
            self._over = True
            if isinstance(self._source, SyncSource):
                self._close_sync(self._source)

    def error(self, results: Callable[[], Results[Any]]) -> FanOutError[Exception] | None:
        """Return what the fan-out has to raise in the end; None if it succeeded."""
        error = self._join.error(results)
        if self.source_error is None:
            return error
        what = (
            f"the items of run {self._run.path!r} could not be read beyond the first "
            f"{self._started:,}: {type(self.source_error).__name__}: {self.source_error}"
        )
        entries = [] if error is None else list(error.exceptions)
        return FanOutError(what, [*entries, self.source_error], results())

    @property
    def broken(self) -> bool:
        """Whether the policy was broken, so that whoever reads should know at once."""
        return self._join.broken

    def skipped(self) -> Iterator[Result[Any]]:
        """Yield a result for each item of a sized source that was never started."""
        if not isinstance(self._source, SyncSource) or self._source.size is None:
            return
        while self._started < self._source.size:
            try:
                item = self._source.next()
            except Exception:  # Exhausted, or it can't be read further.
                return
            job = self._new_job(item)
            yield self._skipped(job)

    def close(self, why: str) -> None:
        """Cut everything short: nothing more is started, what is in flight is cancelled."""
        self._cut = self._cut or why
        self._over = True
        cancel_scope(self._nursery.cancel_scope, why)

    # Start ------------------------------------------------------------------------------------

    def top_up(self) -> None:
        """Start what there is room for, after a reader took a result."""
        if isinstance(self._source, AsyncSource):
            self._wake_owner()
        elif not (self._nursery.cancel_scope.cancel_called or self._run._scope.cancel_called):
            # The reader's own cancel scopes say nothing about ours, so they aren't looked at.
            self._base.run(self._fill, self._source)

    def _start_next(self) -> None:
        """Start what there is room for, after an item has ended. Called in that item's task."""
        if isinstance(self._source, AsyncSource):
            self._wake_owner()
        elif not self._over:
            if trio.current_effective_deadline() <= trio.current_time():
                self._over = True  # Cancelled, or about to be.
            else:
                self._base.run(self._fill, self._source)

    def _fill(self, source: SyncSource) -> None:
        """Pull and start items while there is room. To be called in the base context."""
        while self._has_room():
            try:
                item = source.next()
            except Exhausted:
                self._no_more_items()
            except Exception as error:
                self._source_failed(error)
            else:
                self._start(self._new_job(item))

    def _has_room(self) -> bool:
        if self._over or self._in_flight >= self._limit:
            return False
        if self._in_flight + self.unread >= self._window:
            return False
        if self._run.stopping:
            self._over = True
        return not self._over

    def _new_job(self, item: Any) -> Job:
        index = self._started
        self._started = index + 1
        now = trio.current_time()
        return Job(index, index, item, "", _PLAIN, now)

    def _start(self, job: Job) -> None:
        self._in_flight += 1
        each, key = self._each, self._key
        try:
            if key is not None:
                job.key = key(job.item)
            job.name = str(job.key)
            job.plan = each if isinstance(each, Attempt) else _checked(each(job.item))
        except Exception as error:
            # The caller's own function failed for this item: that is the item's failure.
            job.name = job.name or str(job.index)
            self._nursery.start_soon(self._end, job, "failed", outcome.Error(error), name=job.name)
            return
        self._nursery.start_soon(self._work, job, name=job.name)

    async def _own_source(self, source: AsyncSource) -> None:
        """Pull items one after another, as there is room, and close the source at the end."""
        self._owner = trio.lowlevel.current_task()
        try:
            while await self._room():
                item: Any = _NOTHING
                with trio.CancelScope() as self._pulling:
                    item = await source.next()
                self._pulling = None
                if item is not _NOTHING:
                    job = self._new_job(item)
                    if self._over or self._run.stopping:
                        self._record(self._skipped(job))
                    else:
                        self._base.run(self._start, job)
        except Exhausted:
            self._no_more_items()
        except Exception as error:
            self._source_failed(error)
        finally:
            self._pulling = None
            self._over = True
            try:
                await source.close()
            except Exception as error:
                self._source_failed(error)

    async def _room(self) -> bool:
        """Wait until another item may be pulled; return False when none ever may."""
        waiting_for = "an item to end, or a result to be read"  # noqa: F841 (read by `dump`)
        while not self._over:
            if self._has_room():
                return True
            if self._over:
                break
            self._owner_parked = True
            await trio.lowlevel.wait_task_rescheduled(self._leave)
        return False

    def _leave(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self._owner_parked = False
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake_owner(self) -> None:
        if self._owner_parked and self._owner is not None:
            self._owner_parked = False
            trio.lowlevel.reschedule(self._owner)

    # One item ---------------------------------------------------------------------------------

    async def _work(self, job: Job) -> None:
        """Try an item once, in a task of its own; then end it, or see to its next try."""
        if job.plan.hedge is None:
            status, result = await self._attempt(job, self._new_run(job))
        else:
            status, result = await self._try_with_hedge(job)
        if status in FAILURES and (job.plan.retry is not None or job.plan.fallback is not None):
            assert isinstance(result, outcome.Error) and isinstance(result.error, Exception)
            # The attempt's run is over. What follows belongs to the fan-out.
            current.set(self._run)
            try:
                delay = self._retry_delay(job, result.error)
                if delay is not None and await self._nap(delay):
                    self._base.run(self._next_task, self._work, job)
                    return
            except trio.Cancelled as cancelled:
                why = self._run._who_cancelled(cancelled) if not self._why_cut() else self._why_cut()
                given_up = RunCancelled(why)
                given_up.__cause__ = result.error
                status, result = "cancelled", outcome.Error(given_up)
            except Exception as error:  # Raised by the caller's ``on=``.
                status, result = "failed", outcome.Error(error)
            if status in FAILURES and job.plan.fallback is not None and not self._cancelled():
                self._base.run(self._next_task, self._fall_back, job, result.error)
                return
        await self._end(job, status, result)

    def _next_task(self, function: Callable[..., Awaitable[None]], job: Job, *args: Any) -> None:
        self._nursery.start_soon(function, job, *args, name=job.name)

    def _new_run(self, job: Job) -> Run:
        now = trio.current_time()
        plan = job.plan
        deadline = math.inf
        if plan.timeout is not None and plan.limiter is None:
            deadline = now + plan.timeout
        run = Run(job.name, self._run, started_at=now, deadline=deadline)
        run._idempotency_key = f"{self._run.idempotency_key}:{job.index}"
        job.run_id = run.id
        return run

    async def _attempt(
        self, job: Job, run: Run, granted: Callable[[], None] | None = None
    ) -> tuple[ResultStatus, outcome.Outcome[Any]]:
        """Make one attempt as ``run``; return how it ended."""
        if job.plan.limiter is not None:
            ended = await carry(run, self._call_with_grant, job, granted)
        else:
            job.attempts += 1
            ended = await carry(run, self._function, job.item)
        if job.plan.hedge is not None and ended[0] == "ok":
            assert run.ended_at is not None
            if self._latencies.add(run.ended_at - run.started_at):
                for tries in self._undecided_tries:
                    tries.look_again()
        status: ResultStatus = ended[0]  # type: ignore[assignment]  # Never "running".
        return status, ended[1]

    async def _call_with_grant(self, job: Job, granted: Callable[[], None] | None) -> Any:
        """Call the function once the limiter lets it; only then does its time run."""
        plan = job.plan
        assert plan.limiter is not None
        tokens = plan.tokens(job.item) if callable(plan.tokens) else plan.tokens
        async with plan.limiter.reserve(tokens=tokens):
            job.attempts += 1
            if plan.timeout is not None:
                current_run = current.get()
                assert current_run is not None
                scope = current_run._scope
                scope.deadline = min(scope.deadline, trio.current_time() + plan.timeout)
            if granted is not None:
                granted()
            return await self._function(job.item)

    async def _try_with_hedge(self, job: Job) -> tuple[ResultStatus, outcome.Outcome[Any]]:
        """Make an attempt, and a second one beside it if it is late; the first answer wins."""
        hedge = job.plan.hedge
        assert hedge is not None
        tries = Tries(granted=job.plan.limiter is None)
        self._undecided_tries.add(tries)

        async def one(run: Run) -> None:
            status, result = await self._attempt(job, run, tries.first_granted)
            tries.ended(run, status, result)

        def launch() -> None:
            run = self._new_run(job)
            tries.live.append(run)
            nursery.start_soon(one, run, name=job.name)

        current.set(self._run)
        try:
            async with trio.open_nursery() as nursery:
                self._base.run(launch)
                while (wait := tries.seconds_until_late(hedge, self._latencies)) is not None:
                    with trio.move_on_after(wait):
                        await tries.news()
                    if tries.is_late(hedge, self._latencies):
                        if not self._over_or_stopping() and self._hedges.spend(
                            hedge.budget, self._started
                        ):
                            self.tally.hedges += 1
                            self._base.run(launch)
                        break
        except BaseExceptionGroup as group:
            telling = _most_telling(group)
            if not isinstance(telling, trio.Cancelled):
                raise telling from None
        except trio.Cancelled:
            pass  # The tries have ended as cancelled, which is what counts here.
        finally:
            self._undecided_tries.discard(tries)
        run, status, result = tries.decision()
        job.run_id = run.id
        return status, result

    async def _fall_back(self, job: Job, error: Exception) -> None:
        """Let the fallback give the value of an item that failed finally."""
        fallback = job.plan.fallback
        run = Run(job.name, self._run, started_at=trio.current_time())
        run._idempotency_key = f"{self._run.idempotency_key}:{job.index}"

        async def call() -> Any:
            assert fallback is not None
            value = fallback(job.item, error)
            return await value if isinstance(value, Awaitable) else value

        status, result = await carry(run, call)
        if isinstance(result, outcome.Error) and result.error.__context__ is None:
            result.error.__context__ = error
        await self._end(job, status, result, degraded=status == "ok")  # type: ignore[arg-type]

    # Retries ----------------------------------------------------------------------------------

    def _retry_delay(self, job: Job, error: Exception) -> float | None:
        """Return the seconds to wait before the next try; None if there is none."""
        retry = job.plan.retry
        if retry is None or not retry.applies_to(error):
            return None
        if is_rate_limit(error):
            delay = self._rate_limit_delay(job, retry, error)
        else:
            job.failures += 1
            if job.failures >= retry.attempts:
                return None
            asked = asked_seconds(error, now=time.time())
            delay = retry.delay_seconds(job.failures, draw=random.random(), at_least=asked)
        if delay is None or self._over_or_stopping():
            return None
        if trio.current_time() + delay >= trio.current_effective_deadline():
            return None  # It would sleep past the end; the real error says more than a timeout.
        return delay

    @staticmethod
    def _rate_limit_delay(job: Job, retry: Retry, error: Exception) -> float | None:
        job.attempts -= 1
        job.rate_limits += 1
        asked = asked_seconds(error, now=time.time())
        delay = retry.delay_seconds(job.rate_limits, draw=random.random(), at_least=asked)
        if job.rate_limit_seconds + delay > RATE_LIMIT_SECONDS_AT_MOST:
            return None
        job.rate_limit_seconds += delay
        return delay

    async def _nap(self, seconds: float) -> bool:
        """Sleep before a retry; return False if a stop woke it up, and the item is to end now."""
        waiting_for = f"a retry in {seconds:.1f} s"  # noqa: F841 (read by `dump`)
        with trio.CancelScope() as nap:
            self._naps.add(nap)
            try:
                await trio.sleep(seconds)
            finally:
                self._naps.discard(nap)
        return not nap.cancelled_caught

    # The end ----------------------------------------------------------------------------------

    async def _end(
        self,
        job: Job,
        status: ResultStatus,
        result: outcome.Outcome[Any],
        *,
        degraded: bool = False,
    ) -> None:
        """Give an item its result, and let the next one start."""
        self._in_flight -= 1
        self._record(
            Result(
                job.index,
                job.key,
                job.item,
                job.run_id,
                status,
                result,
                job.attempts,
                job.started_at,
                trio.current_time(),
                degraded,
            )
        )
        if self._join.why is None:
            self._start_next()
        elif self._cut is None:
            self._cut = self._join.why
            self._over = True
            current.set(self._run)
            # Others that were woken in this step may fail too, and are to be heard.
            await trio.lowlevel.cancel_shielded_checkpoint()
            cancel_scope(self._nursery.cancel_scope, self._cut)

    def _record(self, result: Result[Any]) -> None:
        self.tally.add(result)
        self._join.add(result)
        self._sink(result)

    def _skipped(self, job: Job) -> Result[Any]:
        why = self._why_cut() or "the fan-out was stopped"
        if self._key is not None:
            try:
                job.key = self._key(job.item)
            except Exception:
                pass  # It has no key then; its index says which it is.
        now = trio.current_time()
        skipped = ItemSkipped(f"item {job.key!r} was never started: {why}")
        return Result(
            job.index, job.key, job.item, None, "skipped", outcome.Error(skipped), 0, now, now
        )

    def _no_more_items(self) -> None:
        self._exhausted = self._over = True
        self._join.expect(self._started)
        if self._join.why is not None and self._cut is None:
            self._cut = self._join.why
            cancel_scope(self._nursery.cancel_scope, self._cut)

    def _source_failed(self, error: Exception) -> None:
        self._over = True
        if self.source_error is None:
            self.source_error = error
        if isinstance(self._join.policy, FailFast) and self._cut is None:
            self._cut = "the items could not be read further, and the policy is FailFast()"
            cancel_scope(self._nursery.cancel_scope, self._cut)

    def _close_sync(self, source: SyncSource) -> None:
        if self._exhausted or source.size is not None:
            return
        try:
            self._base.run(source.close)
        except Exception as error:
            self.source_error = self.source_error or error

    def _stop(self) -> None:
        """Start nothing more: the run was asked to stop. Called in any task, so only flags here."""
        self._over = True
        if self._pulling is not None:
            self._pulling.cancel()
        for nap in self._naps:
            nap.cancel()
        self._wake_owner()

    def _over_or_stopping(self) -> bool:
        return self._cut is not None or self._run.stopping

    def _cancelled(self) -> bool:
        return trio.current_effective_deadline() == -math.inf

    def _why_cut(self) -> str | None:
        """Return in words why items were cut short by this fan-out itself; None if they weren't."""
        if self._cut is not None:
            return self._cut
        if self._within is not None and self._nursery.cancel_scope.cancel_called:
            return f"the {self._within:g} s of within= were over"
        if self._run.stopping:
            reason = self._run._stop_reason
            return "the run was asked to stop" + (f": {reason}" if reason else "")
        return None

    def _in_words(self) -> str:
        size = "" if self._source.size is None else f" of {self._source.size:,}"
        return f"{self._in_flight:,} items in flight ({self.tally.ended:,}{size} ended)"


_PLAIN = Attempt()


class _Nothing:
    """Stands where nothing was pulled."""


_NOTHING: Any = _Nothing()


def _checked(plan: Any) -> Attempt:
    if not isinstance(plan, Attempt):
        raise TypeError(
            f"each= is a function that must return an Attempt for an item, and returned {plan!r}"
        )
    return plan


def _most_telling(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what a group is about: what is no cancel if there is such, else the cancel."""
    rest = group.split(trio.Cancelled)[1]
    telling: BaseException = group if rest is None else rest
    while isinstance(telling, BaseExceptionGroup):
        telling = telling.exceptions[0]
    return telling
