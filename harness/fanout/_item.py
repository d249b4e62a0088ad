"""The life of one item: its attempts, the waits between them, and what replaces a failure.

Each attempt is a fresh run in a task of its own. The first is the item's own task; before a
retry that task sleeps, starts the next one in the fan-out's nursery, and ends. So an item is never
more than one task, except while a hedge runs beside its first attempt.

Every task is started in the base context, the one copied when the fan-out was called: attempts
share no context variables, and none sees what another item did to its own.
"""

from __future__ import annotations

import contextvars
import functools
import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from harness.errors import RunCancelled
from harness.fanout._hedge import Hedging, SideBySide
from harness.fanout._result import FAILURES, Hedges, ResultStatus
from harness.fanout._tries import Tries, too_late
from harness.policies import Attempt
from harness.runs import Run, current_run
from harness.runs._block import carry, most_telling, not_awaitable
from harness.runs._run import current

Ended = tuple[ResultStatus, Any]
"""How a try ended, and the value if that is ok, else the error."""


class Job(Tries):
    """One item on its way to its result.

    What most items never need stands on the class, so that making a job costs little.
    """

    run_id: str | None = None
    """The run of its latest attempt, in the end of the one that decided."""
    degraded = False
    """Whether the fallback gave the value."""

    def __init__(
        self, index: int, key: Any, item: Any, name: str, plan: Attempt, started_at: float
    ) -> None:
        self.index = index
        self.key = key
        self.item = item
        self.name = name
        self.plan = plan
        self.started_at = started_at


class ItemWork:
    """Works on the items of one fan-out, one task each."""

    def __init__(
        self,
        function: Callable[[Any], Awaitable[Any]],
        run: Run,
        base: contextvars.Context,
        nursery: trio.Nursery,
        *,
        end: Callable[[Job, ResultStatus, Any, float], bool],
        settle: Callable[[], Awaitable[None]],
        closing: Callable[[], bool],
        why_cut: Callable[[], str | None],
        items_started: Callable[[], int],
    ) -> None:
        self._function = function
        self._run = run
        self._now = run._above.tree.now
        self._base = base
        self._nursery = nursery
        self._end = end
        self._settle = settle
        self._closing = closing
        self._why_cut = why_cut
        self._hedging = Hedging(items_started)
        self._naps: set[trio.CancelScope] = set()

    @property
    def hedges(self) -> Hedges:
        """The attempts that were started beside another one, and what they brought."""
        return self._hedging.hedges()

    def stop(self) -> None:
        """Start no further attempts: wake up whoever sleeps before a retry, to end now."""
        for nap in self._naps:
            nap.cancel()

    async def work(self, job: Job) -> None:
        """Try an item once, in a task of its own; then end it, or see to its next try."""
        plan = job.plan
        if plan.hedge is not None:
            status, result = await self._try_with_hedge(job)
        elif plan.limiter is not None:
            status, result = await self._try_with_limiter(job, self._new_run(job))
        else:
            job.attempts = job.attempts + 1
            status, result = await carry(self._new_run(job), self._function, job.item)
        if status in FAILURES and (plan.retry is not None or plan.fallback is not None):
            # The attempt's run is over. What follows belongs to the fan-out.
            current.set(self._run)
            further = await self._after_failure(job, status, result)
            if further is None:
                return
            status, result = further
        if self._end(job, status, result, self._now()):
            current.set(self._run)
            await self._settle()

    async def refuse(self, job: Job, error: Exception) -> None:
        """End an item that the caller's own key= or each= function choked on."""
        if self._end(job, "failed", error, trio.current_time()):
            await self._settle()

    def _new_run(self, job: Job) -> Run:
        plan = job.plan
        now = job.started_at if job.run_id is None else trio.current_time()
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

    async def _after_failure(
        self, job: Job, status: ResultStatus, error: Exception
    ) -> Ended | None:
        """Retry, or fall back, in another task; or return what the item ends with."""
        try:
            delay = self._retry_delay(job, error)
            if delay is not None and await self._nap(delay):
                self._start_task(self.work, job)
                return None
        except trio.Cancelled as cancelled:
            given_up = RunCancelled(self._why_cut() or self._run._who_cancelled(cancelled))
            given_up.__cause__ = error
            return "cancelled", given_up
        except Exception as raised:  # By the caller's ``on=``.
            return "failed", raised
        if job.plan.fallback is not None and not _cancelled():
            self._start_task(self._fall_back, job, error)
            return None
        return status, error

    def _retry_delay(self, job: Job, error: Exception) -> float | None:
        """Return the seconds to wait before the next try; None if there is none."""
        retry = job.plan.retry
        if retry is None or not self._base.run(retry.applies_to, error):
            return None
        delay = job.delay_seconds(retry, error)
        if delay is None or self._closing() or too_late(delay):
            return None
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

    async def _fall_back(self, job: Job, error: Exception) -> None:
        """Let the fallback give the value of an item that failed finally."""
        fallback = job.plan.fallback

        async def call() -> Any:
            assert fallback is not None
            value = fallback(job.item, error)
            return await value if isinstance(value, Awaitable) else value

        run = Run(job.name, self._run, trio.current_time())
        run._item_index = job.index
        status, result = await carry(run, call)
        if status != "ok" and result.__context__ is None:
            result.__context__ = error
        job.degraded = status == "ok"
        if self._end(job, status, result, trio.current_time()):
            current.set(self._run)
            await self._settle()

    # Limiter and hedge ------------------------------------------------------------------------

    async def _try_with_limiter(
        self, job: Job, run: Run, granted: Callable[[], None] | None = None
    ) -> Ended:
        """Make one attempt that calls the function once the limiter lets it.

        Only from then on is it an attempt, and only then does its time run.
        """

        async def call() -> Any:
            plan = job.plan
            assert plan.limiter is not None
            tokens = plan.tokens(job.item) if callable(plan.tokens) else plan.tokens
            async with plan.limiter.reserve(tokens=tokens):
                job.attempts += 1
                if plan.timeout is not None:
                    scope = current_run()._scope
                    scope.deadline = min(scope.deadline, trio.current_time() + plan.timeout)
                if granted is not None:
                    granted()
                awaitable = self._function(job.item)
                if not isinstance(awaitable, Awaitable):
                    raise not_awaitable(self._function, awaitable)
                return await awaitable

        return await carry(run, call)

    async def _try_with_hedge(self, job: Job) -> Ended:
        """Make an attempt, and a second one beside it if it is late; the first answer wins."""
        hedge = job.plan.hedge
        assert hedge is not None
        tries: SideBySide[Run] = SideBySide(granted=job.plan.limiter is None)

        async def attempt(run: Run) -> None:
            if job.plan.limiter is not None:
                status, result = await self._try_with_limiter(job, run, tries.first_granted)
            else:
                job.attempts += 1
                status, result = await carry(run, self._function, job.item)
            tries.ended(run, status, result, self._hedging.learn)

        def launch(nursery: trio.Nursery) -> None:
            run = self._new_run(job)
            tries.began(run)
            self._base.run(functools.partial(nursery.start_soon, attempt, run, name=job.name))

        current.set(self._run)
        try:
            await self._hedging.attend(tries, hedge, launch=launch, closing=self._closing)
        except BaseException as error:
            # A cancel is told by the tries themselves, which have ended as cancelled.
            if not isinstance(most_telling(error), trio.Cancelled):
                raise most_telling(error) from None
        run, status, result = tries.decision()
        job.run_id = run.id
        return status, result


def _cancelled() -> bool:
    return trio.current_effective_deadline() == -math.inf
