"""The engine of `harness.fanout`, for functions that walk: an item is on its way for long.

What a fan-out calls its limit is for a pipeline what may be at the entry. So an item stops
counting against it when it has room behind the first stage, and not only when it ends; all else
is the engine's: what is in flight and unread stays below the window, the items are pulled lazily,
and every item ends as one result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from harness.fanout._engine import Engine
from harness.fanout._item import ItemWork, Job
from harness.fanout._result import ResultStatus
from harness.flow._attempts import NotAsync
from harness.flow._flow import Flow
from harness.flow._gate import Walker
from harness.runs import Run
from harness.runs._block import carry
from harness.runs._run import current


class OneRun(ItemWork):
    """Gives an item one run for its whole way: attempts are made inside of it."""

    async def work(self, job: Job) -> None:
        """Call the function with the job, which it may note things on, and end the item."""
        job.attempts = 1
        status, result = await carry(self._new_run(job), self._function, job)
        if self._end(job, status, result, trio.current_time()):
            current.set(self._run)
            await self._settle()


class PipelineEngine(Engine):
    """Runs items through a flow."""

    item_work = OneRun

    def __init__(self, flow: Flow, source: Any, **options: Any) -> None:
        self._flow = flow
        super().__init__(self._walk, source, limit=flow.belong_to_engine(self), **options)
        self._walking = 0

    async def _walk(self, job: Job) -> Any:
        walker = job.walker = self._flow.begin_at_entry()
        self._walking += 1
        return await self._flow.walk(walker, job.item)

    def _end(self, job: Job, status: ResultStatus, value: Any, ended_at: float) -> bool:
        walker: Walker | None = job.walker
        if walker is not None:
            job.attempts += walker.attempts
            job.degraded = walker.degraded
            self._walking -= 1
            if walker.past_entry:
                self._limit -= 1
        return super()._end(job, status, value, ended_at)

    async def drive(self) -> None:
        """Do what `Engine.drive` does, and take the time."""
        self._flow.clock.start()
        try:
            await super().drive()
        finally:
            self._flow.clock.stop()

    def start_next(self) -> None:
        """Start what there is room for; if there is nothing, batches needn't wait for more."""
        super().start_next()
        self._flow.look()

    def _start_no_more(self) -> None:
        super()._start_no_more()
        self._flow.look()

    @property
    def hedges(self) -> int:
        """How many attempts were started beside another one."""
        return self._flow.hedges

    # What the flow asks of its host -------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The pipeline's run."""
        return self._run

    @property
    def decided(self) -> bool:
        """Whether everything is being cut short."""
        return self._cut is not None or self._join.why is not None

    def more_may_come(self) -> bool:
        """Return whether an item may still set out: one that isn't pulled, or is only started.

        A window that is full keeps anything from being pulled. That is for good if the reader
        waits for a result itself.
        """
        dry = self._over or (self.starving and self._in_flight + self.unread >= self._window)
        return not dry or self._in_flight > self._walking

    def leave_entry(self, walker: Walker) -> None:
        """Count an item no more against the entry, and let the next one in."""
        self._limit += 1
        self.start_next()

    def start_task(
        self,
        nursery: trio.Nursery | None,
        function: Callable[..., Awaitable[Any]],
        *args: Any,
        name: str | None = None,
    ) -> None:
        """Start a task in the context that was copied when the pipeline was started."""
        where = self._nursery if nursery is None else nursery
        self._base.run(where.start_soon, function, *args, name=name)

    def crash(self, error: NotAsync) -> None:
        """End everything with a mistake in the program."""
        self.start_task(None, _fail, TypeError(str(error)))


async def _fail(error: Exception) -> None:
    raise error
