"""Lend the fan-out tests what they watch with: bodies, sources, a limiter, a count of tasks."""

import contextlib
import contextvars
import itertools
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import attrs
import trio

import harness


class Boom(Exception):
    """The error of these tests; two are told apart by their argument."""


class OtherError(Exception):
    """A second kind of error."""


class StatusError(Exception):
    """An error as HTTP clients raise it: with the status in ``status_code``."""

    def __init__(self, status_code: int, retry_after: float | None = None) -> None:
        """Make an error of this status; with ``retry_after`` it asks for a delay in seconds."""
        super().__init__(f"status {status_code}")
        self.status_code = status_code
        if retry_after is not None:
            self.retry_after = retry_after


def living_tasks() -> int:
    """Return how many tasks trio has at this moment."""
    return trio.lowlevel.current_statistics().tasks_living


@contextmanager
def nothing_left_behind() -> Generator[None]:
    """Assert that the block leaves no task and no changed context variable."""
    tasks, variables = living_tasks(), dict(contextvars.copy_context())
    yield
    assert living_tasks() == tasks
    assert dict(contextvars.copy_context()) == variables


async def echo(item: Any) -> Any:
    """Return the item after one checkpoint."""
    await trio.lowlevel.checkpoint()
    return item


async def nap(seconds: float) -> float:
    """Sleep for as long as the item says, and return it."""
    await trio.sleep(seconds)
    return seconds


@attrs.define(eq=False)
class Flight:
    """A body for a fan-out that counts what is in flight."""

    work: Callable[[Any], Awaitable[Any]] = echo
    started: list[Any] = attrs.field(factory=list)
    ended: list[Any] = attrs.field(factory=list)
    live: int = 0
    peak: int = 0

    async def __call__(self, item: Any) -> Any:
        """Run the body on the item, counted."""
        self.started.append(item)
        self.live += 1
        self.peak = max(self.peak, self.live)
        try:
            return await self.work(item)
        finally:
            self.live -= 1
            self.ended.append(item)


@attrs.define(eq=False)
class Source:
    """An iterator without a length that counts what is taken from it; endless without ``count``."""

    count: int | None = None
    pulled: int = 0
    asked_after_end: int = 0
    has_ended: bool = False

    def __iter__(self) -> Iterator[int]:
        """Return itself: it can be read once."""
        return self

    def __next__(self) -> int:
        """Return the next number from 0."""
        if self.has_ended:
            self.asked_after_end += 1
        if self.pulled == self.count:
            self.has_ended = True
            raise StopIteration
        self.pulled += 1
        return self.pulled - 1


@attrs.define(eq=False)
class AsyncSource:
    """An async iterator that records which tasks drive and close it; endless without ``count``."""

    count: int | None = None
    pulled: int = 0
    closed: int = 0
    overlapping: int = 0
    driven_by: list[trio.lowlevel.Task] = attrs.field(factory=list)
    busy: bool = False

    def _drive(self) -> None:
        task = trio.lowlevel.current_task()
        if task not in self.driven_by:
            self.driven_by.append(task)

    def __aiter__(self) -> AsyncIterator[int]:
        """Return itself: it can be read once."""
        return self

    async def __anext__(self) -> int:
        """Return the next number from 0, after a checkpoint."""
        self._drive()
        self.overlapping += self.busy
        self.busy = True
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self.busy = False
        if self.pulled == self.count:
            raise StopAsyncIteration
        self.pulled += 1
        return self.pulled - 1

    async def aclose(self) -> None:
        """Count one closing."""
        self._drive()
        self.closed += 1
        with contextlib.suppress(trio.Cancelled):
            await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class Closing:
    """Tells whether a generator was closed, by whom it was driven, and what it gave."""

    pulled: int = 0
    closed: int = 0
    tasks: list[trio.lowlevel.Task] = attrs.field(factory=list)

    def numbers(self) -> Generator[int]:
        """Yield 0, 1, … without end."""
        try:
            for number in itertools.count():
                self.pulled += 1
                yield number
        finally:
            self.closed += 1

    async def async_numbers(self) -> AsyncGenerator[int]:
        """Yield 0, 1, … without end, a checkpoint before each."""
        self._drive()
        try:
            for number in itertools.count():
                await trio.lowlevel.checkpoint()
                self.pulled += 1
                yield number
                self._drive()
        finally:
            self._drive()
            self.closed += 1

    def _drive(self) -> None:
        task = trio.lowlevel.current_task()
        if task not in self.tasks:
            self.tasks.append(task)


@attrs.define(eq=False)
class FakeLimiter:
    """A limiter of the smallest kind: a wait before each grant, and a record of who asked."""

    wait_seconds: float = 0
    asked: list[int | None] = attrs.field(factory=list)
    granted: int = 0
    returned: int = 0

    @asynccontextmanager
    async def reserve(
        self, *, tokens: int | None = None, priority: float = 0
    ) -> AsyncGenerator[object]:
        """Lend a slot after the wait."""
        self.asked.append(tokens)
        await trio.sleep(self.wait_seconds)
        self.granted += 1
        try:
            yield object()
        finally:
            self.returned += 1


def fan_out_run() -> harness.Run:
    """Return the run of the fan-out that the calling item belongs to."""
    run = harness.current_run().parent
    assert run is not None
    return run


def statuses(results: Iterable[Any]) -> list[str]:
    """Return the status of each result, in order."""
    return [result.status for result in results]


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors at the ends of a tree of groups."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]
