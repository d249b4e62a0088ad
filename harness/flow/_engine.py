"""The engine of `harness.fanout`, for functions that walk: an item is on its way for long.

What a fan-out calls its limit is for a pipeline what may be at the entry. So an item stops
counting against it when it has room behind the first stage, and not only when it ends; all else
is the engine's: what is in flight and unread stays below the window, the items are pulled lazily,
and every item ends as one result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import trio

from harness.fanout import Hedges, ResultStatus
from harness.fanout._by_priority import PriorityEngine
from harness.fanout._engine import Engine
from harness.fanout._item import ItemWork, Job
from harness.flow._attempts import NotAsync
from harness.flow._flow import Flow
from harness.flow._gate import Walker
from harness.flow._routing import Routing
from harness.flow._statistics import PipelineStatistics, RouterStatistics
from harness.runs import Run
from harness.runs._carry import carry_out
from harness.runs._current import current
from harness.runs._run import Ending

# Looked up once: where these two are called, per item, ``super()`` is felt, and so is to look in a
# class that was imported.
_end, _start_next = Engine.end, Engine.start_next


class WalkingJob(Job, Walker):
    """An item that is on its way itself."""


class OneRun(ItemWork):
    """Gives an item one run for its whole way: attempts are made inside of it."""

    def work(self, job: Job) -> Coroutine[Any, Any, None]:
        """Return what calls the function with the job, which it may note things on."""
        return carry_out(self, job, self._function, job)

    def begin(self, job: Job) -> Run:
        """Return the run of an item that sets out now."""
        time = self._now
        now = job.started_at = time()
        run = Run(job.name, self._run, now)
        run._item_index = job.index
        job.run_id = run.id
        job.attempts = 1  # Counted as it begins; stages count those beyond.
        return run

    def ended(self, job: Job, run: Run, status: Ending, result: Any) -> Awaitable[None] | None:
        """End the item; return what the task has still to do."""
        if self._host.end(job, status, result, run._ended_at or 0.0):
            current.set(self._run)
            return self._host.settle()
        return None


class WalkEngine(Engine):
    """Runs items each of which is a walker, in one run."""

    item_work = OneRun
    job = WalkingJob

    def start_task(
        self,
        nursery: trio.Nursery | None,
        function: Callable[..., Awaitable[Any]],
        *args: Any,
        name: str | None = None,
    ) -> None:
        """Start a task of the engine's in the context that was copied when it was started.

        In a ``nursery``, such as that of the outputs of an item, it gets the context at hand: what
        holds around the item, a reservation for instance, holds for its outputs too.
        """
        if nursery is not None:
            nursery.start_soon(function, *args, name=name)
            return
        # In a copy: the source may have ended just now, and is read inside the context itself.
        self._base.copy().run(self._nursery.start_soon, function, *args, name=name)

    def crash(self, error: NotAsync) -> None:
        """End everything with a mistake in the program."""
        self.start_task(None, _fail, TypeError(str(error)))


class RouterEngine(WalkEngine):
    """Runs items along the tracks of a router."""

    def __init__(self, routing: Routing, source: Any, **options: Any) -> None:
        self._routing = routing
        routing.crash = self.crash
        routing.counts = super().statistics
        super().__init__(routing.route, source, **options)

    async def drive(self) -> None:
        """Do what `Engine.drive` does, and take the time."""
        self._routing.clock.start()
        try:
            await super().drive()
        finally:
            self._routing.end()

    @property
    def hedges(self) -> Hedges:
        """The attempts that were started beside another one, and what they brought."""
        return self._routing.hedges

    def statistics(self) -> RouterStatistics:
        """Return what happened on each track so far."""
        return self._routing.statistics(super().statistics())


class PriorityRouterEngine(RouterEngine, PriorityEngine):
    """Runs items along the tracks of a router, the most urgent of those read ahead first."""


class PipelineEngine(WalkEngine):
    """Runs items through a flow."""

    def __init__(self, flow: Flow, source: Any, **options: Any) -> None:
        self._flow = flow
        flow.counts = super().statistics
        super().__init__(flow.walk, source, limit=flow.belong_to_engine(self), **options)

    # Any: that the job is a `WalkingJob` is known here, and asking would be felt.
    def end(self, job: Any, status: ResultStatus, value: Any, ended_at: float) -> bool:
        if job.past_entry:
            self._limit -= 1
        if self._flow.gathers and job.position:  # It has arrived somewhere, so it was counted.
            self._flow.items_set_out -= 1
        return _end(self, job, status, value, ended_at)

    async def drive(self) -> None:
        """Do what `Engine.drive` does, and take the time."""
        self._flow.start_clock()
        try:
            await super().drive()
        finally:
            self._flow.end()

    def start_next(self) -> None:
        """Start what there is room for; if there is nothing, batches needn't wait for more."""
        if self._in_flight < self._limit:
            super().start_next()
        if self._flow.gathers:
            self._flow.look()

    async def _until_over(self) -> None:
        """Wait until nothing more will be started; then batches needn't wait for more.

        They are looked at here, in a task, and not in the moment when it is over: that may be
        inside a cancel, while trio walks over its tasks and none may be started.
        """
        await super()._until_over()
        self._flow.look()

    @property
    def hedges(self) -> Hedges:
        """The attempts that were started beside another one, and what they brought."""
        return self._flow.hedges

    def statistics(self) -> PipelineStatistics:
        """Return what happened at each stage so far."""
        return self._flow.statistics(super().statistics())

    # What the flow asks of its host -------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The pipeline's run."""
        return self._run

    @property
    def decided(self) -> bool:
        """Whether everything is being cut short."""
        return self.cut is not None or self._join.why is not None

    def more_may_come(self) -> bool:
        """Return whether an item may still set out: one that isn't pulled, or is only started.

        A window that is full keeps anything from being pulled. That is for good if the reader
        waits for a result itself.
        """
        dry = self._over or (self.starving and self._in_flight + self.unread >= self._window)
        return not dry or self._in_flight > self._flow.items_set_out

    def give_back(self, walker: Walker) -> None:
        """Count an item no more against the entry, and let the next one in."""
        if walker.past_entry:
            return
        walker.past_entry = True
        self._limit += 1
        _start_next(self)
        if self._flow.gathers:
            self._flow.look()


async def _fail(error: Exception) -> None:
    raise error
