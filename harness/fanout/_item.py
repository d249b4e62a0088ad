"""The life of one item: its attempts, the waits between them, and what replaces a failure.

Each attempt is a fresh run in its own task. The first is the item's own task; before a retry that
task sleeps, starts the next one in the fan-out's nursery, and ends. So an item never has more than
one task, except while a hedge runs beside its first attempt.

Every task is started in the base context, the one copied when the fan-out was called: attempts
share no context variables, and none sees what another item did to its own.
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness.errors import RunCancelled, WorkerLostError
from harness.fanout._attempts import Attempts, fallback_value, is_cancelled, nap
from harness.fanout._job import Ended, Job
from harness.fanout._ledger import Ledger
from harness.fanout._notices import AttemptOver, HedgeBegan, RetryPlanned
from harness.fanout._result import FAILURES, NO_HEDGES, Hedges, ResultStatus
from harness.policies import Attempt
from harness.runs import Run
from harness.runs._carry import carry, carry_out
from harness.runs._current import current
from harness.runs._endings import set_context
from harness.runs._functions import not_awaitable_error
from harness.runs._run import STARTED_BY, Ending
from harness.runs._scopes import cancel_scope


class Host(Protocol):
    """What items need to know of the fan-out they belong to."""

    @property
    def run(self) -> Run:
        """The fan-out's run."""
        ...

    @property
    def base(self) -> contextvars.Context:
        """What items are started in."""
        ...

    @property
    def nursery(self) -> trio.Nursery:
        """Where items run."""
        ...

    def end(self, job: Job, status: ResultStatus, value: Any, ended_at: float) -> bool:
        """Take an item's result; return whether it decided the fan-out.

        If so, the caller must await `settle` in its own task, as its last act.
        """
        ...

    async def settle(self) -> None:
        """Cancel what is in flight, once every task woken in this step has had its say."""
        ...

    def closing(self) -> bool:
        """Return whether no further attempt may start."""
        ...

    @property
    def started(self) -> int:
        """How many items have been started so far."""
        ...

    def why_cut(self) -> str | None:
        """Return why nothing more is started, in words; None if more may be."""
        ...


class OwnRun:
    """Makes each attempt at an item in its own run, below the fan-out's."""

    tells_cancels = True

    def __init__(self, run: Run, base: contextvars.Context) -> None:
        self._run = run
        self._base = base
        self._now = run._above.tree.now

    def new(self, plan: Attempt, job: Job) -> Run:
        """Return the run of an attempt; its time starts now unless it must wait for a grant."""
        now = self._now()
        if job.run_id is None:
            job.started_at = now
        deadline = math.inf
        if plan.timeout is not None and plan.limiter is None:
            deadline = now + plan.timeout
        run = Run(job.name, self._run, now, deadline)
        run._item_index = job.index
        if plan.retry is not None or plan.hedge is not None or job.attempts:
            run._attempt_number = job.attempts + 1
        if run._observers:
            by = job.started_by if job.run_id is None else job.run_id
            run._locals = {STARTED_BY: by}
        job.run_id = run.id
        return run

    async def carry(
        self, attempt: Run, function: Callable[[Any], Awaitable[Any]], item: Any
    ) -> Ended:
        """Run the body of the attempt's run."""
        return await carry(attempt, function, item)

    def allow(self, attempt: Run, seconds: float) -> None:
        """Start the clock of an attempt."""
        attempt._scope.deadline = min(attempt._scope.deadline, self._now() + seconds)

    def call(self, function: Callable[[Any], Awaitable[Any]], item: Any) -> Awaitable[Any]:
        """Call the user's function."""
        awaitable = function(item)
        if not isinstance(awaitable, Awaitable):
            raise not_awaitable_error(function, awaitable)
        return awaitable

    @enable_ki_protection
    def launch(
        self,
        nursery: trio.Nursery,
        job: Job,
        make: Callable[[Run], Awaitable[None]],
        attempt: Run,
    ) -> None:
        """Make an attempt in its own task, in the base context."""
        self._base.run(lambda: nursery.start_soon(make, attempt, name=job.name))

    def tell(self, job: Job, attempt: Run, ended: Ended) -> None:
        """Tell observers how an attempt ended."""
        if self._run._observers:
            began = attempt.started_at
            over = AttemptOver(
                attempt.id, job.index, job.key, job.attempts, ended[0], began, ended[1]
            )
            self._run._notice(over)

    def tell_retry(self, job: Job, delay: float, error: Exception) -> None:
        """Tell them that another try follows."""
        if self._run._observers:
            number = job.attempts
            self._run._notice(RetryPlanned(job.index, job.key, number, job.run_id, delay, error))

    def tell_hedge(self, job: Job, attempt: Run, late: Run) -> None:
        """Tell them that an attempt begins beside a late one."""
        if self._run._observers:
            self._run._notice(HedgeBegan(job.index, job.key, attempt.id, late.id))

    def beside(self) -> None:
        """Act for the fan-out: the attempts are in other tasks."""
        current.set(self._run)

    def counts(self, job: Job, attempt: Run) -> None:
        """Name the run that decided."""
        job.run_id = attempt.id

    def asked(self, function: Callable[[Exception], bool], error: Exception) -> bool:
        """Ask in the base context."""
        return self._base.run(function, error)


class ItemWork:
    """Works on the items of one fan-out, one task each."""

    looked = None
    """Nothing here waits for other items."""

    slots = None
    """The fan-out's limit says how many are worked on at once."""

    def __init__(self, function: Callable[[Any], Awaitable[Any]]) -> None:
        self._function = function
        self._ledger: Ledger | None = None
        self._host: Host
        self._run: Run
        self._own_run: OwnRun
        self._attempts: Attempts[Job, Run] | None = None
        self._hedges = NO_HEDGES
        self._naps: dict[Job, trio.CancelScope] = {}
        """The items waiting for their next attempt."""
        self._called_off = ""
        self._now: Callable[[], float]

    def keep_in(self, ledger: Ledger) -> None:
        """Have a ledger record every attempt."""
        self._ledger = ledger
        self._function = ledger.recorded(self._function)

    def begin(self, engine: Host) -> None:
        """Join a fan-out that already has its run, context and nursery."""
        self._host = engine
        self._run = engine.run
        self._now = engine.run._above.tree.now
        self._own_run = OwnRun(engine.run, engine.base)
        self._attempts = Attempts(
            self._function,
            self._own_run,
            counted=engine,
            closing=engine.closing,
        )

    @property
    def hedges(self) -> Hedges:
        """The attempts started beside another one, and what they gained."""
        return self._hedges if self._attempts is None else self._attempts.hedges

    def call_off(self, key: Any, why: str) -> bool:
        """Cut short an item's wait for its next attempt; return whether there was one."""
        found = [scope for job, scope in self._naps.items() if job.key == key]
        self._called_off = why
        for scope in found:
            cancel_scope(scope, why)
        return bool(found)

    def end(self) -> None:
        """Let go of the fan-out, so that it can be freed with whoever holds its results."""
        self._hedges = self.hedges
        self._attempts = None
        self.__dict__.pop("_host", None)  # It was not begun if an interrupt came first.

    def carry(self, job: Job) -> Coroutine[Any, Any, None]:
        """Return what tries an item once, in its own task, and then ends or retries it."""
        plan = job.attempt
        if plan.hedge is None and plan.limiter is None and job.failure is None:
            return carry_out(self, job, self._function, job.item)
        return self._try(job)

    # `carry_out` calls the next two. An attempt with nothing around it, as most are, takes this
    # shortcut, with no coroutine between its task and the function.

    def begin_run(self, job: Job) -> Run:
        """Return the run of an attempt that starts now, with nothing around it."""
        # As `OwnRun.new` does: another call costs time.
        now = self._now()
        plan = job.attempt
        deadline = math.inf if plan.timeout is None else now + plan.timeout
        run = Run(job.name, self._run, now, deadline)
        run._item_index = job.index
        if plan.retry is not None:
            run._attempt_number = job.attempts + 1
        if run._observers:
            run._locals = {STARTED_BY: job.started_by}
        job.started_at = now
        job.run_id = run.id
        job.attempts += 1
        return run

    def end_run(self, job: Job, run: Run, status: Ending, result: Any) -> Awaitable[None] | None:
        """Take the outcome of that attempt; return what the task still has to do."""
        if self._run._observers:
            self._own_run.tell(job, run, (status, result))
        if status != "ok" and status in FAILURES:
            return self._end_try(job, status, result)
        if self._host.end(job, status, result, run._ended_at or 0.0):
            current.set(self._run)
            return self._host.settle()
        return None

    async def _try(self, job: Job) -> None:
        """Try an item with whatever may surround an attempt: a limiter, a hedge, a stop."""
        if job.failure is not None and self._host.closing():
            # Decided or stopped in the very step in which this retry was about to begin.
            status, result = self._given_up(job.failure[1])
        else:
            assert self._attempts is not None
            status, result = await self._attempts.make_try(job.attempt, job, job.item)
        await self._end_try(job, status, result)

    async def _end_try(self, job: Job, status: Ending, result: Any) -> None:
        """End an item with the outcome of a try, unless it failed and something follows."""
        plan = job.attempt
        if status in FAILURES and (
            plan.retry is not None
            or plan.fallback is not None
            or isinstance(result, WorkerLostError)
        ):
            # The attempt's run is over. What follows belongs to the fan-out.
            current.set(self._run)
            further = await self._after_failure(job, status, result)
            if further is None:
                return
            status, result = further
        if self._host.end(job, status, result, self._now()):
            current.set(self._run)
            await self._host.settle()

    # After a failure --------------------------------------------------------------------------

    async def _after_failure(self, job: Job, status: Ending, error: Exception) -> Ended | None:
        """Retry or fall back in another task, or return what the item ends with."""
        try:
            delay = self._delay_seconds(job, error)
            job.failure = status, error
            slept = False
            with trio.CancelScope() as called_off:
                self._naps[job] = called_off
                try:
                    slept = delay is not None and await nap(delay, self._host.closing, self._run)
                finally:
                    del self._naps[job]
            if called_off.cancelled_caught:
                return "cancelled", _given_up(self._called_off, error)
            if slept:
                job.before = job.attempts
                self._start_task(self.carry, job)
                return None
            if job.owed and self._host.closing():
                return self._given_up(error)
        except trio.Cancelled as cancelled:
            why = self._run._cancels_with_words() or self._run._who_cancelled(cancelled)
            return "cancelled", _given_up(why, error)
        except Exception as raised:  # From the caller's ``on=``.
            set_context(raised, error)
            error = raised
        if job.attempt.fallback is not None and not is_cancelled():
            self._start_task(self._fall_back, job, error)
            return None
        return status, error

    def _delay_seconds(self, job: Job, error: Exception) -> float | None:
        """Return the seconds to wait before the next try; None if there is none."""
        assert self._attempts is not None
        ledger = self._ledger
        if ledger is not None and not ledger.may_retry(job, error):
            return None
        delay = self._attempts.delay_seconds(job.attempt, job, error)
        if delay is not None and ledger is not None:
            ledger.retries(job, error)
        return delay

    def _given_up(self, error: Exception) -> Ended:
        """Return what an item ends with when its next attempt will not be made."""
        return "cancelled", _given_up(self._host.why_cut() or "the fan-out was over", error)

    async def _fall_back(self, job: Job, error: Exception) -> None:
        """Let the fallback give the value of an item that has failed for good."""
        plan = job.attempt
        if self._ledger is not None:
            assert plan.fallback is not None
            plan = attrs.evolve(plan, fallback=self._ledger.metered(job, plan.fallback))

        async def call(item: Any) -> Any:
            return await fallback_value(plan, item, error)

        run = Run(job.name, self._run, self._now())
        run._item_index = job.index
        status, result = await carry(run, call, job.item)
        if status != "ok":
            set_context(result, error)
        job.degraded = status == "ok"
        if self._host.end(job, status, result, self._now()):
            current.set(self._run)
            await self._host.settle()

    @enable_ki_protection
    def _start_task(self, function: Callable[..., Awaitable[None]], job: Job, *args: Any) -> None:
        self._host.base.run(self._host.nursery.start_soon, function, job, *args, name=job.name)


def _given_up(why: str, error: Exception) -> RunCancelled:
    """Return the error of an item that was cut short between its attempts."""
    given_up = RunCancelled(why)
    given_up.__cause__ = error
    return given_up
