"""Make the attempts at one function: under a limiter, side by side, again, or replaced.

The same code serves the items of a fan-out and the calls of a stage or a track. They differ only in
what an attempt is made in, which is a parameter, `Enclosure`: a run with its own context, or a
cancel scope inside the run of an item on its way.

An attempt and the one started beside it if it is late are one *try*. A retry follows a try, not an
attempt.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Protocol, TypeVar

import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from harness.errors import WorkerLostError
from harness.fanout._hedge import Cancellable, Counted, Hedging, SideBySide
from harness.fanout._job import Ended
from harness.fanout._result import Hedges
from harness.fanout._tries import Tries, too_late
from harness.policies import Attempt, Hedge
from harness.runs import Run
from harness.runs._endings import most_telling
from harness.runs._waits import waiting

JobT = TypeVar("JobT", bound=Tries)
JobT_contra = TypeVar("JobT_contra", bound=Tries, contravariant=True)
AttemptT = TypeVar("AttemptT", bound=Cancellable)


class Enclosure(Protocol[JobT_contra, AttemptT]):
    """What an attempt is made in."""

    tells_cancels: bool
    """Whether `carry` reports a cancel from outside instead of letting it through."""

    def new(self, plan: Attempt, job: JobT_contra) -> AttemptT:
        """Return what the next attempt is made in. Without a limiter, its time starts now."""
        ...

    async def carry(
        self, attempt: AttemptT, function: Callable[[Any], Awaitable[Any]], item: Any
    ) -> Ended:
        """Call ``function(item)`` in it, and return how that ended."""
        ...

    def allow(self, attempt: AttemptT, seconds: float) -> None:
        """Start the clock of an attempt."""

    def call(self, function: Callable[[Any], Awaitable[Any]], item: Any) -> Awaitable[Any]:
        """Call a function that may turn out not to be async."""
        ...

    def launch(
        self,
        nursery: trio.Nursery,
        job: JobT_contra,
        make: Callable[[AttemptT], Awaitable[None]],
        attempt: AttemptT,
    ) -> None:
        """Make an attempt in its own task."""

    def tell(self, job: JobT_contra, attempt: AttemptT, ended: Ended) -> None:
        """Tell observers how an attempt ended."""

    def tell_retry(self, job: JobT_contra, delay: float, error: Exception) -> None:
        """Tell them that another try follows in ``delay`` seconds."""

    def tell_hedge(self, job: JobT_contra, attempt: AttemptT, late: AttemptT) -> None:
        """Tell them that an attempt begins beside a late one."""

    def beside(self) -> None:
        """Note that the current task now only waits for attempts in other tasks."""

    def counts(self, job: JobT_contra, attempt: AttemptT) -> None:
        """Note which of the attempts side by side decided."""

    def asked(self, function: Callable[[Exception], bool], error: Exception) -> bool:
        """Ask a caller's function about an error."""
        ...


class Attempts(Generic[JobT, AttemptT]):
    """Makes attempts at one function, for every item that reaches it."""

    __slots__ = ("_closing", "_enclosure", "_function", "_hedging")

    def __init__(
        self,
        function: Callable[[Any], Awaitable[Any]],
        enclosure: Enclosure[JobT, AttemptT],
        *,
        counted: Counted,
        closing: Callable[[], bool],
    ) -> None:
        """Make attempts.

        Args:
          function: What is called with an item.
          enclosure: What an attempt is made in.
          counted: Counts the items; the hedge budget is a share of them.
          closing: Returns whether no further attempt may start.
        """
        self._function = function
        self._enclosure = enclosure
        self._closing = closing
        self._hedging = Hedging(counted)

    @property
    def hedges(self) -> Hedges:
        """The attempts started beside another one, and what they gained."""
        return self._hedging.hedges()

    async def make_try(self, plan: Attempt, job: JobT, item: Any) -> Ended:
        """Make one try at an item, and return how it ended.

        Checkpoint: as the function does.

        Cancellation: no attempt is left alive.
        """
        if plan.hedge is not None:
            return await self._side_by_side(plan, plan.hedge, job, item)
        return await self._attempt(plan, job, item, self._enclosure.new(plan, job))

    async def _attempt(
        self,
        plan: Attempt,
        job: JobT,
        item: Any,
        attempt: AttemptT,
        granted: Callable[[AttemptT], None] | None = None,
    ) -> Ended:
        """Make one attempt. With a limiter, it and its clock start at the grant."""
        if plan.limiter is None:
            job.attempts += 1
            ended = await self._enclosure.carry(attempt, self._function, item)
            self._enclosure.tell(job, attempt, ended)
            return ended

        def begin() -> None:
            job.attempts += 1
            if plan.timeout is not None:
                self._enclosure.allow(attempt, plan.timeout)
            if granted is not None:
                granted(attempt)

        async def call(item: Any) -> Any:
            assert plan.limiter is not None
            tokens = plan.tokens(item) if callable(plan.tokens) else plan.tokens
            return await self._reserved(plan.limiter.reserve(tokens=tokens), begin, item)

        ended = await self._enclosure.carry(attempt, call, item)
        self._enclosure.tell(job, attempt, ended)
        return ended

    @enable_ki_protection  # Or a Ctrl-C could come between the end of the block and its leaving.
    async def _reserved(
        self, reservation: AbstractAsyncContextManager[Any], begin: Callable[[], None], item: Any
    ) -> Any:
        async with reservation:
            begin()
            return await self._called(item)

    @disable_ki_protection
    async def _called(self, item: Any) -> Any:
        """Call the user's function, which Ctrl-C can end."""
        return await self._enclosure.call(self._function, item)

    async def _side_by_side(self, plan: Attempt, hedge: Hedge, job: JobT, item: Any) -> Ended:
        """Make an attempt, and a second one beside it if it is late; the first answer wins."""
        tries: SideBySide[AttemptT] = SideBySide(needs_grant=plan.limiter is not None)
        enclosure = self._enclosure

        async def make(attempt: AttemptT) -> None:
            status, result = await self._attempt(plan, job, item, attempt, tries.granted)
            tries.ended(attempt, status, result, self._hedging.learn)

        def launch(nursery: trio.Nursery) -> None:
            attempt = enclosure.new(plan, job)
            if tries.live:
                enclosure.tell_hedge(job, attempt, tries.live[0])
            tries.began(attempt)
            enclosure.launch(nursery, job, make, attempt)

        enclosure.beside()
        try:
            await self._hedging.attend(tries, hedge, launch=launch, closing=self._closing)
        except BaseException as error:
            telling = most_telling(error)
            if not (enclosure.tells_cancels and isinstance(telling, trio.Cancelled)):
                raise telling from None
        attempt, status, result = tries.decision()
        enclosure.counts(job, attempt)
        return status, result

    def delay_seconds(self, plan: Attempt, job: JobT, error: Exception) -> float | None:
        """Note that a try failed; return the seconds to wait before the next one.

        None if there is none. If only for lack of time, `Tries.owed` says so. Nothing follows what
        was raised while all was being cancelled: that is an error, as it is without ``retry``.
        """
        if isinstance(error, WorkerLostError):  # Its process has ended; that says nothing of it.
            job.owed = error.follows and not is_cancelled()
            return 0.0 if job.owed and not self._closing() else None
        retry = plan.retry
        if retry is None or not self._enclosure.asked(retry.applies_to, error):
            return None
        delay = job.delay_seconds(retry, error)
        if delay is None:
            return None
        job.owed = not is_cancelled()
        if not job.owed or self._closing() or too_late(delay):
            return None
        self._enclosure.tell_retry(job, delay, error)
        return delay


@enable_ki_protection
async def nap(seconds: float, closing: Callable[[], bool], *runs: Run) -> bool:
    """Sleep before a retry; return False if the end of any of ``runs`` cut it short.

    Args:
      seconds: How long.
      closing: Returns whether no further attempt may start; called when a run is stopped.
      runs: The runs whose stop wakes it.

    Checkpoint: always.

    Cancellation: nothing is left behind.
    """
    _waiting_for = f"its next attempt, in {seconds:.1f} s"
    with trio.CancelScope() as scope:

        def stop() -> None:
            if closing():
                scope.cancel()

        for run in runs:
            run._add_stop_notice(stop)
        try:
            with waiting("retry", "the next attempt"):
                await trio.sleep(seconds)
        finally:
            for run in runs:
                run._drop_stop_notice(stop)
    return not scope.cancelled_caught


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled."""
    return trio.current_effective_deadline() == -math.inf


async def fallback_value(plan: Attempt, item: Any, error: Exception) -> Any:
    """Return what the fallback gives for an item that has failed for good.

    Raises:
      Exception: what the fallback raised.
    """
    assert plan.fallback is not None
    value = plan.fallback(item, error)
    return await value if isinstance(value, Awaitable) else value
