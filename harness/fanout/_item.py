"""The life of one item: its attempts, the waits between them, and what replaces a failure.

Each attempt is a fresh run in a task of its own. The first is the item's own task; before a
retry that task sleeps, starts the next one in the fan-out's nursery, and ends. So an item is never
more than one task, except while a hedge runs beside its first attempt. The two together are one
*try*: a retry follows a try, not an attempt.

Every task is started in the base context, the one copied when the fan-out was called: attempts
share no context variables, and none sees what another item did to its own.
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import trio

from harness.errors import RunCancelled
from harness.fanout._hedge import Hedging, SideBySide
from harness.fanout._options import ONE_ATTEMPT
from harness.fanout._result import FAILURES, Hedges, ResultStatus
from harness.fanout._tries import Tries, too_late
from harness.policies import Attempt
from harness.runs import Run, current_run
from harness.runs._carry import carry, carry_out
from harness.runs._current import current
from harness.runs._endings import most_telling, set_context
from harness.runs._functions import not_awaitable_error
from harness.runs._run import Ending

Ended = tuple[Ending, Any]
"""How a try ended, and the value if that is ok, else the error."""


class Job(Tries):
    """One item on its way to its result."""

    __slots__ = (
        "degraded",
        "failure",
        "index",
        "item",
        "key",
        "name",
        "plan",
        "run_id",
        "started_at",
    )

    def __init__(self, index: int, item: Any) -> None:
        # What `Tries` sets too, here: a call more is felt, with one job per item.
        self.attempts: int = 0
        self.before: int = 0
        self.failures: int = 0
        self.rate_limits: int = 0
        self.rate_limit_seconds: float = 0.0
        self.index: int = index
        self.item: Any = item
        self.key: Any = index
        self.name: str = ""
        self.plan: Attempt = ONE_ATTEMPT
        self.started_at: float = 0.0
        """When its first attempt began."""
        self.run_id: str | None = None
        """The run of its latest attempt, in the end of the one that decided."""
        self.degraded: bool = False
        """Whether the fallback gave the value."""
        self.failure: Ended | None = None
        """How the try before this one failed."""


class Host(Protocol):
    """The fan-out that items belong to, as far as they need to know it."""

    def end(self, job: Job, status: ResultStatus, value: Any, ended_at: float) -> bool:
        """Take an item's result; return whether it decided the fan-out.

        If so, the caller has to await `settle` in its own task, as the last thing it does.
        """
        ...

    async def settle(self) -> None:
        """Cancel what is in flight, once all that was woken in this step has been heard."""
        ...

    def closing(self) -> bool:
        """Return whether no further attempt is to be started."""
        ...

    @property
    def started(self) -> int:
        """How many items were started so far; the budget of hedges is a share of them."""
        ...

    @property
    def cut(self) -> str | None:
        """In words, why what is in flight is cut short; None as long as it isn't."""
        ...


class ItemWork:
    """Works on the items of one fan-out, one task each."""

    def __init__(
        self,
        function: Callable[[Any], Awaitable[Any]],
        run: Run,
        base: contextvars.Context,
        nursery: trio.Nursery,
        *,
        host: Host,
    ) -> None:
        self._function = function
        self._run = run
        self._now = run._above.tree.now
        self._base = base
        self._nursery = nursery
        self._host = host
        self._hedging = Hedging(lambda: host.started)
        self._naps: set[trio.CancelScope] = set()

    @property
    def hedges(self) -> Hedges:
        """The attempts that were started beside another one, and what they brought."""
        return self._hedging.hedges()

    def stop(self) -> None:
        """Start no further attempts: wake up whoever sleeps before a retry, to end now."""
        for nap in self._naps:
            nap.cancel()

    def work(self, job: Job) -> Coroutine[Any, Any, None]:
        """Return what tries an item once, in a task of its own, and then ends or retries it."""
        plan = job.plan
        if plan.hedge is None and plan.limiter is None and job.failure is None:
            return carry_out(self, job, self._function, job.item)
        return self._try(job)

    def begin(self, job: Job) -> Run:
        """Return the run of an attempt that begins now, with nothing around it."""
        job.attempts += 1
        return self._new_run(job)

    def ended(self, job: Job, run: Run, status: Ending, result: Any) -> Awaitable[None] | None:
        """Take what that attempt came to; return what the task has still to do."""
        if status in FAILURES:
            return self._end_try(job, status, result)
        if self._host.end(job, status, result, run._ended_at or 0.0):
            current.set(self._run)
            return self._host.settle()
        return None

    async def _try(self, job: Job) -> None:
        """Try an item with what there may be around an attempt: a limiter, a hedge, a stop."""
        if job.failure is not None and self._host.closing():
            # Decided, or stopped, in the step in which this retry was about to begin.
            status, result = self._last_word(*job.failure)
        elif job.plan.hedge is not None:
            status, result = await self._try_with_hedge(job)
        elif job.plan.limiter is not None:
            status, result = await self._try_with_limiter(job, self._new_run(job))
        else:
            status, result = await carry(self.begin(job), self._function, job.item)
        await self._end_try(job, status, result)

    async def _end_try(self, job: Job, status: Ending, result: Any) -> None:
        """End an item with what a try came to, unless it failed and that is not the end."""
        plan = job.plan
        if status in FAILURES and (plan.retry is not None or plan.fallback is not None):
            # The attempt's run is over. What follows belongs to the fan-out.
            current.set(self._run)
            further = await self._after_failure(job, status, result)
            if further is None:
                return
            status, result = further
        if self._host.end(job, status, result, self._now()):
            current.set(self._run)
            await self._host.settle()

    async def refuse(self, job: Job, error: Exception) -> None:
        """End an item that the caller's own key= or each= function choked on."""
        job.started_at = self._now()
        if self._host.end(job, "failed", error, job.started_at):
            await self._host.settle()

    def _new_run(self, job: Job) -> Run:
        plan, time = job.plan, self._now
        now = time()
        if job.run_id is None:
            job.started_at = now
        deadline = math.inf
        if plan.timeout is not None and plan.limiter is None:
            deadline = now + plan.timeout
        run = Run(job.name, self._run, now, deadline)
        run._item_index = job.index
        job.run_id = run.id
        return run

    def _start_task(self, function: Callable[..., Awaitable[None]], job: Job, *args: Any) -> None:
        self._base.run(self._nursery.start_soon, function, job, *args, name=job.name)

    # After a failure --------------------------------------------------------------------------

    async def _after_failure(self, job: Job, status: Ending, error: Exception) -> Ended | None:
        """Retry, or fall back, in another task; or return what the item ends with."""
        try:
            delay = self._retry_delay(job, error)
            if delay is not None and await self._nap(delay):
                job.failure = status, error
                job.before = job.attempts
                self._start_task(self.work, job)
                return None
        except trio.Cancelled as cancelled:
            why = self._run._cancels_with_words() or self._run._who_cancelled(cancelled)
            return "cancelled", _given_up(why, error)
        except Exception as raised:  # By the caller's ``on=``.
            set_context(raised, error)
            error = raised
        if job.plan.fallback is not None and not is_cancelled():
            self._start_task(self._fall_back, job, error)
            return None
        return status, error

    def _last_word(self, status: Ending, error: Exception) -> Ended:
        """Return what an item ends with whose next attempt is not made any more."""
        if self._host.cut is not None:
            return "cancelled", _given_up(self._host.cut, error)
        return status, error

    def _retry_delay(self, job: Job, error: Exception) -> float | None:
        """Return the seconds to wait before the next try; None if there is none."""
        retry = job.plan.retry
        if retry is None or not self._base.run(retry.applies_to, error):
            return None
        delay = job.delay_seconds(retry, error)
        if delay is None:
            return None
        if self._host.closing() or too_late(delay):
            self._retry_is_owed(job)
            return None
        return delay

    def _retry_is_owed(self, job: Job) -> None:
        """Hear that an item ends although it would have had another try, were there time."""

    async def _nap(self, seconds: float) -> bool:
        """Sleep before a retry; return False if a stop woke it up, and the item is to end now."""
        _waiting_for = f"its next attempt, in {seconds:.1f} s"
        with trio.CancelScope() as nap:
            self._naps.add(nap)
            try:
                await trio.sleep(seconds)
            finally:
                self._naps.discard(nap)
        return not nap.cancelled_caught

    async def _fall_back(self, job: Job, error: Exception) -> None:
        """Let the fallback give the value of an item that failed finally."""
        fallback = job.plan.fallback

        async def call(item: Any) -> Any:
            assert fallback is not None
            value = fallback(item, error)
            return await value if isinstance(value, Awaitable) else value

        run = Run(job.name, self._run, self._now())
        run._item_index = job.index
        status, result = await carry(run, call, job.item)
        if status != "ok":
            set_context(result, error)
        job.degraded = status == "ok"
        if self._host.end(job, status, result, self._now()):
            current.set(self._run)
            await self._host.settle()

    # Limiter and hedge ------------------------------------------------------------------------

    async def _try_with_limiter(
        self, job: Job, run: Run, granted: Callable[[Run], None] | None = None
    ) -> Ended:
        """Make one attempt that calls the function once the limiter lets it.

        Only from then on is it an attempt, and only then does its time run.
        """

        async def call(item: Any) -> Any:
            plan = job.plan
            assert plan.limiter is not None
            tokens = plan.tokens(item) if callable(plan.tokens) else plan.tokens
            async with plan.limiter.reserve(tokens=tokens):
                job.attempts += 1
                if plan.timeout is not None:
                    scope = current_run()._scope
                    scope.deadline = min(scope.deadline, self._now() + plan.timeout)
                if granted is not None:
                    granted(run)
                awaitable = self._function(item)
                if not isinstance(awaitable, Awaitable):
                    raise not_awaitable_error(self._function, awaitable)
                return await awaitable

        return await carry(run, call, job.item)

    async def _try_with_hedge(self, job: Job) -> Ended:
        """Make an attempt, and a second one beside it if it is late; the first answer wins."""
        hedge = job.plan.hedge
        assert hedge is not None
        tries: SideBySide[Run] = SideBySide(needs_grant=job.plan.limiter is not None)

        async def attempt(run: Run) -> None:
            if job.plan.limiter is not None:
                status, result = await self._try_with_limiter(job, run, tries.granted)
            else:
                job.attempts += 1
                status, result = await carry(run, self._function, job.item)
            tries.ended(run, status, result, self._hedging.learn)

        def launch(nursery: trio.Nursery) -> None:
            run = self._new_run(job)
            tries.began(run)
            self._base.run(lambda: nursery.start_soon(attempt, run, name=job.name))

        current.set(self._run)
        try:
            await self._hedging.attend(tries, hedge, launch=launch, closing=self._host.closing)
        except BaseException as error:
            # A cancel is told by the tries themselves, which have ended as cancelled.
            if not isinstance(most_telling(error), trio.Cancelled):
                raise most_telling(error) from None
        run, status, result = tries.decision()
        job.run_id = run.id
        return status, result


def _given_up(why: str, error: Exception) -> RunCancelled:
    """Return what stands for an item that was cut short between its attempts."""
    given_up = RunCancelled(why)
    given_up.__cause__ = error
    return given_up


def is_cancelled() -> bool:
    """Return whether the task that asks is being cancelled."""
    return trio.current_effective_deadline() == -math.inf
