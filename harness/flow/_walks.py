"""Do the work of an engine whose items walk: through a pipeline, or along a track.

Each item is one run and one task from end to end; attempts are made inside it. What is a fan-out's
limit is, for a pipeline, how many may be at the entry. So an item stops counting against it as soon
as it has room after the first stage, not only when it ends. Everything else is the engine's: what
is in flight and unread stays below the window, items are pulled lazily, and every item ends as one
result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

import trio
from trio.lowlevel import enable_ki_protection

from harness.fanout import FanOutStatistics, Hedges
from harness.fanout._engine import Engine
from harness.fanout._job import Job
from harness.fanout._ledger import Ledger
from harness.flow._attempts import NotAsync
from harness.flow._gate import Walker
from harness.runs import Run
from harness.runs._carry import carry_out
from harness.runs._current import current
from harness.runs._run import STARTED_BY, Ending


class WalkingJob(Job, Walker):
    """An item that is itself on its way."""


class Way(Protocol):
    """What items walk: the stages of a pipeline, or the tracks of a router."""

    counts: Callable[[], FanOutStatistics]
    """How many items are in flight."""

    is_recorded: bool
    """Whether a journal records the steps of its items."""

    def begin(self, host: Walks) -> None:
        """Start the clock; ``host`` starts the walkers."""

    def walk(self, walker: Any) -> Coroutine[Any, Any, Any]:
        """Take a walker to the end of its way; return what comes out."""
        ...

    def left(self, walker: Walker) -> None:
        """Note that an item has ended, if items wait for others."""

    def look(self) -> None:
        """Let go what waits for something that can no longer come."""

    def end(self) -> None:
        """Stop the clock, and let go of the host."""

    @property
    def gathers(self) -> Sequence[int]:
        """The places where items wait for others, so that it matters which may still come."""
        ...

    @property
    def items_set_out(self) -> int:
        """Items whose task has begun, if that has to be known."""
        ...

    @property
    def hedges(self) -> Hedges:
        """The attempts started alongside others, and what they achieved."""
        ...

    @property
    def slots(self) -> int | None:
        """How many calls it may make at once; None if the engine's limit says so."""
        ...


class Walks:
    """Takes each item along a way, in a run of its own."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._walk: Callable[[Any], Coroutine[Any, Any, Any]] = way.walk
        self.looked: Callable[[], None] | None = None
        """Lets go what waits for items that can no longer come."""
        self._engine: Engine
        self._now: Callable[[], float]

    # What the engine asks ---------------------------------------------------------------------

    def keep_in(self, ledger: Ledger) -> None:
        """Have a ledger record every item, and each of its steps."""
        self._way.is_recorded = True
        self._walk = ledger.recorded(self._walk)

    def begin(self, engine: Engine) -> None:
        """Belong to an engine whose run, context and nursery exist."""
        self._engine = engine
        self._now = engine.run._above.tree.now
        self._way.counts = engine.statistics
        self._way.begin(self)
        self.looked = self._way.look if self._way.gathers else None

    def carry(self, job: Job) -> Coroutine[Any, Any, None]:
        """Return what calls the function with the job, on which it may note things."""
        return carry_out(self, job, self._walk, job)

    def begin_run(self, job: Job) -> Run:
        """Return the run of an item that sets out now."""
        now = job.started_at = self._now()
        run = Run(job.name, self._engine.run, now)
        run._item_index = job.index
        if run._observers:
            run._locals = {STARTED_BY: job.started_by}
        job.run_id = run.id
        job.attempts = 1  # Counted as it begins; stages count those beyond.
        return run

    # Any: that the job is a `WalkingJob` is known here, and asking would take its time per item.
    def end_run(self, job: Any, run: Run, status: Ending, result: Any) -> Awaitable[None] | None:
        """End the item; return what the task still has to do."""
        engine = self._engine
        if job.past_entry:
            engine.limit -= 1
        if self._way.gathers:
            self._way.left(job)
        if engine.end(job, status, result, run._ended_at or 0.0):
            current.set(engine.run)
            return engine.settle()
        return None

    def call_off(self, key: Any, why: str) -> bool:
        """Return False: an item waits for its next attempt in its run, which the engine cancels."""
        return False

    def end(self) -> None:
        """Let go of everything: whoever keeps the way keeps only numbers."""
        self._way.end()
        self.looked = None
        self.__dict__.pop("_engine", None)  # It was not begun if an interrupt came first.

    @property
    def hedges(self) -> Hedges:
        """The attempts started alongside others, and what they achieved."""
        return self._way.hedges

    @property
    def slots(self) -> int | None:
        """How many calls the stages may make at once; None if the engine's limit says so."""
        return self._way.slots

    # What the way asks of its host --------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The run that the items are below."""
        return self._engine.run

    @property
    def decided(self) -> bool:
        """Whether everything is being cut short."""
        return self._engine.cut is not None or self._engine.decided

    def why_cut(self) -> str | None:
        """Return in words why everything is being cut short; None if it isn't."""
        return self._engine.why_cut()

    def closing(self) -> bool:
        """Return whether no further attempt is to be started."""
        return self._engine.closing()

    def more_may_come(self) -> bool:
        """Return whether an item may still set out: one not yet pulled, or only just started.

        A full window keeps anything from being pulled. That is for good if the reader itself is
        waiting for a result.
        """
        engine = self._engine
        dry = (
            engine.over
            or engine.waits_for_all
            or (engine.starving and engine.in_flight + engine.unread >= engine.window)
        )
        return not dry or engine.in_flight > self._way.items_set_out

    def give_back(self, walker: Walker) -> None:
        """Stop counting an item against the entry, and let the next one in."""
        if walker.past_entry:
            return
        walker.past_entry = True
        self._engine.limit += 1
        self._engine.start_next()

    @enable_ki_protection
    def start_task(
        self,
        nursery: trio.Nursery | None,
        function: Callable[..., Awaitable[Any]],
        *args: Any,
        name: str | None = None,
    ) -> None:
        """Start one of the engine's tasks in the context copied when the engine was started.

        In a ``nursery``, such as that of an item's outputs, it gets the current context: what
        applies around the item, a reservation for instance, applies to its outputs too.
        """
        if nursery is not None:
            nursery.start_soon(function, *args, name=name)
            return
        # In a copy: the source may have ended just now, and is read inside the context itself.
        engine = self._engine
        engine.base.copy().run(engine.nursery.start_soon, function, *args, name=name)

    def crash(self, error: NotAsync) -> None:
        """End everything with a mistake in the program."""
        self.start_task(None, _fail, TypeError(str(error)))


async def _fail(error: Exception) -> None:
    raise error
