"""The attempts at one item of a journaled fan-out: each is on disk before its function starts.

The engine has the first attempt recorded before the item starts. Every other one, after a failure
or beside a late one, waits for the disk in its own run, just before the function is called.

A recorded attempt is used up by a call of the function, whatever comes of it; except that one
which only met a rate limit goes on with the next call, since that spends no attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Any, Protocol

import attrs
import trio

from harness.errors import JournalValueError, RunTimedOut
from harness.fanout._item import Host, ItemWork, Job
from harness.fanout._journal import AttemptStatus, Ending, Entry, FanOutBatch
from harness.fanout._result import ResultStatus
from harness.policies import is_rate_limit
from harness.runs import Run, current_run
from harness.runs._accounts import add_meter
from harness.runs._functions import forgotten_await_error, not_awaitable_error
from harness.runs._run import LASTING_KEY


@attrs.define(eq=False)
class Encoded:
    """A value as the journal has it."""

    text: str

    value: Any
    """What comes back from the text."""


@attrs.define(eq=False)
class Recorded:
    """An attempt that was recorded; also the meter of its run."""

    number: int
    """Its number in the journal."""

    called: bool = False
    """Whether the function was called for it."""

    answered: bool = False

    failed: bool = False
    """Whether the function raised."""

    tokens: int = 0

    cost_usd: float = 0.0

    def spent(self, tokens: int, cost_usd: float) -> None:
        """Note what was used in the attempt's run, or below it."""
        self.tokens += tokens
        self.cost_usd += cost_usd

    def ending(self, status: AttemptStatus, **more: Any) -> Ending:
        """Return how this attempt ended, with what it used."""
        return Ending(status=status, tokens=self.tokens, cost_usd=self.cost_usd, **more)


class JournaledJob(Job):
    """An item on its way, with what the journal has of it."""

    __slots__ = (
        "alone",
        "attempts_before",
        "by_fallback",
        "entry",
        "is_begun",
        "open",
        "owed",
        "problem",
    )

    def __init__(self, index: int, item: Any, key: Any, entry: Entry) -> None:
        super().__init__(index, item)
        self.key = key
        self.entry = entry
        self.open = []
        self.is_begun = self.alone = self.owed = False
        self.attempts_before = 0
        self.problem = self.by_fallback = None

    entry: Entry
    """The item in the journal."""

    is_begun: bool
    """Whether its first attempt of this session is on disk."""

    problem: Exception | None
    """What the priority's function raised for it, if it did."""

    alone: bool
    """Whether nothing else may be in flight beside it."""

    by_fallback: Recorded | None
    """The meter of the fallback, which is no attempt; None if it wasn't called."""

    open: list[Recorded]
    """The attempts without an ending, oldest first."""

    attempts_before: int
    """Attempts of former processes."""

    owed: bool
    """Whether it failed and would have another try. If it ends so, it isn't done: a stop or a
    deadline came between, and the next session makes that try."""

    def spare(self) -> Recorded | None:
        """Return an attempt that was recorded and that no call has used; None if there is none."""
        for one in self.open:
            if not one.called:
                return one
        return None

    def counted(self) -> int:
        """Return how many attempts will count once the try that has just failed is recorded.

        Of those that stood side by side in it, one does.
        """
        return self.entry.attempts - max(0, len(self.open) - 1)

    def take_open(self, status: ResultStatus) -> tuple[Recorded | None, list[Recorded]]:
        """Take out the attempts without an ending: the one that decided, and those beside it.

        Args:
          status: How the try ended that they were made in.
        """
        if len(self.open) == 1 and self.open[0].called:  # As with most.
            [only], self.open = self.open, []
            return only, []
        called = [one for one in self.open if one.called]
        decided: Recorded | None = None
        if status == "ok":
            decided = next((one for one in called if one.answered), None)
        if decided is None and called:
            decided = next((one for one in called if one.failed), called[0])
        beside = [one for one in self.open if one is not decided]
        self.open = []
        return decided, beside


class Recorder(Protocol):
    """Where attempts are recorded: the engine."""

    batch: FanOutBatch
    origin: str
    jobs: dict[int, JournaledJob]

    async def begin_another(self, job: JournaledJob) -> Recorded:
        """Record one more attempt at an item, and return it once that is durable."""
        ...

    def fail(self, error: Exception) -> None:
        """End everything with an error that no item is to blame for."""
        ...

    def end_try(self, job: JournaledJob, status: AttemptStatus, error: Exception) -> None:
        """Record how a try ended that another one follows."""
        ...


class JournaledWork(ItemWork):
    """Works on the items of a journaled fan-out."""

    def __init__(
        self, function: Callable[[Any], Awaitable[Any]], *given: Any, host: Host, **options: Any
    ) -> None:
        super().__init__(self._call, *given, host=host, **options)
        self._called = function
        self._recorder: Recorder = host  # type: ignore[assignment]  # The engine is both.

    async def _call(self, item: Any) -> Encoded:
        """Call the function for an attempt that is on disk, and encode what it returns."""
        run = current_run()
        assert run._item_index is not None
        job = self._recorder.jobs[run._item_index]
        attempt = job.spare() or await self._recorder.begin_another(job)
        attempt.called = True
        job.owed = False
        self._mark(run, job, attempt)
        try:
            awaitable = self._called(item)
            if type(awaitable) is not CoroutineType and not isinstance(awaitable, Awaitable):
                # A mistake in the program, and no failure of the item that could be kept.
                self._recorder.fail(not_awaitable_error(self._called, awaitable))
                await trio.sleep_forever()
            value = await awaitable
            if type(value) is CoroutineType:
                raise forgotten_await_error(self._called, value)
            encoded = Encoded(*self._recorder.batch.encode(value))
        except Exception:
            attempt.failed = True
            raise
        attempt.answered = True
        return encoded

    async def _fall_back(self, job: Job, error: Exception) -> None:
        """Let the fallback give the value; what it uses counts as used for the last attempt."""
        assert isinstance(job, JournaledJob)
        fallback, meter = job.plan.fallback, Recorded(0)
        assert fallback is not None
        job.by_fallback = meter

        def call(item: Any, error: Exception) -> Any:
            self._mark(current_run(), job, meter)
            return fallback(item, error)

        job.plan = attrs.evolve(job.plan, fallback=call)
        await super()._fall_back(job, error)

    def _mark(self, run: Run, job: JournaledJob, meter: Recorded) -> None:
        """Have a run of an item tell what is used in it, and its effects keep their keys.

        Those have to be the same in every process.
        """
        add_meter(run, meter)
        assert run._locals is not None
        run._locals[LASTING_KEY] = f"{self._recorder.origin}:{job.entry.id}"

    def _retry_is_owed(self, job: Job) -> None:
        assert isinstance(job, JournaledJob)
        job.owed = True

    def _retry_delay(self, job: Job, error: Exception) -> float | None:
        assert isinstance(job, JournaledJob)
        if isinstance(error, JournalValueError):
            return None  # The same function would return such a value again.
        most = self._recorder.batch.max_attempts
        rate_limited = is_rate_limit(error)
        if most is not None and not rate_limited and job.counted() >= most:
            return None
        delay = super()._retry_delay(job, error)
        if delay is None:
            return None
        job.owed = True
        if rate_limited and job.open:
            # The attempt goes on with the next call.
            job.open[0].called = job.open[0].failed = False
        else:
            timed_out = isinstance(error, RunTimedOut)
            self._recorder.end_try(job, "timed_out" if timed_out else "failed", error)
        return delay
