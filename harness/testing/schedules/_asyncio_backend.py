"""Run asyncio programs with their steps under control; see `_asyncio_loop` for what a step is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import attrs
import outcome

from harness.testing.schedules._asyncio_loop import AsyncioStrand, ControlledLoop
from harness.testing.schedules._control import Control
from harness.testing.schedules._ending import Ending
from harness.testing.schedules._strand import Kind, Observer, Strand, Watchers, await_frames
from harness.testing.schedules._thread_patches import placed


class AsyncioBackend:
    """Runs each program in an event loop of its own, without asking the policy for one."""

    kind: Kind = "asyncio"

    def run(
        self,
        program: Callable[[], Awaitable[Any]],
        control: Control,
        ending: Ending,
        observers: tuple[Observer, ...],
        context: Context,
    ) -> outcome.Outcome[Any]:
        """Run a program once; see `Backend.run`."""
        loop = ControlledLoop(control, ending, Watchers(observers, ending.for_error))
        ending.cancel = loop.cancel_all
        with placed(), _replacements.placed():
            return context.run(loop.run_program, program)

    def code_name(self, strand: Strand) -> str:
        """Return the name of the function of a task, or of a callback."""
        return _own(strand).code_name

    def is_live(self, strand: Strand) -> bool:
        """Tell whether it is a task that hasn't ended; a callback ends with its only step."""
        task, thread = _own(strand).task, _own(strand).thread
        if thread is not None:
            return not thread.done
        return task is not None and not task.done()

    def frames(self, strand: Strand) -> list[tuple[FrameType, int]]:
        """Return the frames of a suspended task."""
        task = _own(strand).task
        return [] if task is None else list(await_frames(task.get_coro()))

    def parent(self, strand: Strand) -> AsyncioStrand | None:
        """Return who created a task or queued a callback; None for the main task."""
        return _own(strand).parent

    def only_joins(self, strand: Strand, frames: Sequence[tuple[FrameType, int]]) -> bool:
        """Tell whether a task waits at the end of a task group, in `gather` or in `wait`."""
        waiter = getattr(_own(strand).task, "_fut_waiter", None)
        return type(waiter).__name__ == "_GatheringFuture" or any(
            frame.f_code.co_qualname in ("TaskGroup.__aexit__", "_wait") for frame, _ in frames
        )

    def holder(
        self, strand: Strand, frames: Sequence[tuple[FrameType, int]]
    ) -> AsyncioStrand | None:
        """Return who holds the `asyncio.Lock` that a task waits for."""
        for frame, _ in frames:
            if frame.f_code.co_name == "acquire":
                lock = frame.f_locals.get("self")
                if isinstance(lock, asyncio.Lock) and lock.locked():
                    return _replacements.lock_holders.get(lock)
        return None

    def taken_at(self, strand: Strand, frames: Sequence[tuple[FrameType, int]]) -> str | None:
        """Return None: nobody keeps that."""
        return None

    def current(self) -> AsyncioStrand:
        """Return what makes the step that calls this."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ControlledLoop)
        assert loop.stepping is not None
        return loop.stepping

    def scope(self) -> TaskScope:
        """Return a block of the calling task."""
        return TaskScope()

    def signal(self) -> asyncio.Event:
        """Return an event."""
        return asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        """Wait on the loop's clock."""
        await asyncio.sleep(seconds)


def _own(strand: Strand) -> AsyncioStrand:
    assert isinstance(strand, AsyncioStrand)
    return strand


@attrs.define(eq=False)
class TaskScope:
    """A block that is left quietly when it is cancelled, unless its task is cancelled as well."""

    cancelled_caught: bool = attrs.field(default=False, init=False)
    _task: asyncio.Task[Any] | None = attrs.field(default=None, init=False)
    _before: int = attrs.field(default=0, init=False)
    _cancelled: bool = attrs.field(default=False, init=False)

    def __enter__(self) -> TaskScope:
        """Begin, in the calling task."""
        self._task = asyncio.current_task()
        assert self._task is not None
        self._before = self._task.cancelling()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """Catch the cancel, if it is this block's."""
        task, self._task = self._task, None
        if not self._cancelled or task is None:
            return False
        is_cancel = kind is not None and issubclass(kind, asyncio.CancelledError)
        self.cancelled_caught = task.uncancel() <= self._before and is_cancel
        return self.cancelled_caught

    def cancel(self) -> None:
        """Cancel the task, if it is still in the block."""
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()


class _InOrder(set[Any]):
    """A set that is iterated in the order in which it was given its elements, as far as known."""

    def __init__(self, things: Iterable[Any] = ()) -> None:
        self._order = dict.fromkeys(things)
        super().__init__(self._order)

    def __iter__(self) -> Iterator[Any]:
        yield from [thing for thing in self._order if thing in self]
        yield from [thing for thing in super().__iter__() if thing not in self._order]


class _Replacements:
    """What is in asyncio's place while a controlled program runs; other loops don't notice.

    - `asyncio.Lock.acquire` notes which task got the lock, which asyncio itself doesn't.
    - `time.monotonic` and `time.time` show the loop's own time: asyncio programs use the first for
      deadlines as well, since an ordinary loop shows the same.
    - The sets that asyncio makes of coroutines, to start tasks in their order, keep the order that
      they were given; otherwise it would differ from run to run.
    """

    def __init__(self) -> None:
        self.lock_holders: WeakKeyDictionary[asyncio.Lock, AsyncioStrand] = WeakKeyDictionary()
        self.acquire: Any = None
        """What `asyncio.Lock.acquire` was."""
        self._guard = threading.Lock()  # harness: shared (what it counts is of the whole process)
        self._users = 0
        self._placed: list[tuple[Any, str, Any, Any]] = []
        """Where it is, under which name, what was there, and what is there now."""

    @contextmanager
    def placed(self) -> Iterator[None]:
        """Have them there as long as the block lasts."""
        with self._guard:
            if self._users == 0:
                self.acquire = asyncio.Lock.acquire
                self._place(asyncio.Lock, "acquire", lambda _: _acquire)
                self._place(time, "monotonic", partial(_shown_by_loop, ControlledLoop.time))
                self._place(time, "time", partial(_shown_by_loop, ControlledLoop.wall_clock))
                self._place(asyncio.tasks, "set", lambda _: _InOrder)
            self._users += 1
        try:
            yield
        finally:
            with self._guard:
                self._users -= 1
                while self._users == 0 and self._placed:
                    where, name, original, placed = self._placed.pop()
                    if vars(where).get(name) is not placed:
                        continue  # Somebody else's replacement of our replacement stays.
                    if original is None:
                        delattr(where, name)
                    else:
                        setattr(where, name, original)

    def _place(self, where: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = vars(where).get(name)
        self._placed.append((where, name, original, make(original)))
        setattr(where, name, self._placed[-1][-1])


async def _acquire(lock: asyncio.Lock) -> Any:
    # Closes over nothing, since locks lead searches for shared state here.
    got = await _replacements.acquire(lock)
    loop = asyncio.get_running_loop()
    if isinstance(loop, ControlledLoop) and loop.stepping is not None:
        _replacements.lock_holders[lock] = loop.stepping
    return got


def _shown_by_loop(
    show: Callable[[ControlledLoop], float], original: Callable[[], float]
) -> Callable[[], float]:
    def shown() -> float:
        loop = asyncio._get_running_loop()
        return show(loop) if type(loop) is ControlledLoop else original()

    return shown


_replacements = _Replacements()  # harness: shared (it replaces what is of the whole process)
