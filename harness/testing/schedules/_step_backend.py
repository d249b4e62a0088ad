"""Run trio programs with their steps under control: what two ways of doing that have in common.

Each way has a `Session` for a controlled run. Both control the same tasks: all but trio's own,
including system tasks that the program starts.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import Context
from functools import partial
from types import FrameType
from typing import Any, ClassVar, TypeVar

import attrs
import outcome
import trio
from trio.testing import MockClock

from harness.testing.schedules._control import Control
from harness.testing.schedules._ending import Ending
from harness.testing.schedules._idle import Idle
from harness.testing.schedules._strand import Kind, Observer, Strand, Watchers
from harness.testing.schedules._thread_patches import placed
from harness.testing.schedules._worker_threads import in_trio

T = TypeVar("T")

_TRIO = os.path.dirname(os.path.abspath(trio.__file__)) + os.sep
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


@attrs.define(eq=False)
class Guests:
    """Tells the program's tasks from trio's own, and from those of another ``trio.run``."""

    control: Control
    ending: Ending
    root: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    driver: Callable[..., object] | None = attrs.field(default=None, init=False)

    def begin(self) -> None:
        """Admit the calling task as the main one and, from now on, those that are spawned."""
        self.root = trio.lowlevel.current_root_task()
        self.control.admit(trio.lowlevel.current_task())

    def admit(self, task: trio.lowlevel.Task) -> bool:
        """Admit a newly spawned task; return whether it is under control."""
        root = self.root
        nursery = task.parent_nursery
        if root is None or nursery is None:
            return False
        parent = nursery.parent_task
        if parent is root:
            code = getattr(task.coro, "cr_code", None)
            if code is None or code.co_filename.startswith((_TRIO, _OURS)):
                return False
        elif parent not in self.control.numbers:
            # Started here in a nursery of another `trio.run`.
            self.ending.strangers.append(task.name)
        self.control.admit(task)
        struck_tasks = self.control.targets.struck_tasks
        if struck_tasks is not None:
            task.coro = struck_tasks.watched(task, task.coro)
        return True


@attrs.define(eq=False)
class Session(trio.abc.Instrument):
    """The control of one ``trio.run``; also the instrument that sees its tasks spawned."""

    control: Control
    guests: Guests
    watchers: Watchers

    @abstractmethod
    def __call__(self) -> AbstractContextManager[None]:
        """Return the block that ``trio.run`` is called in, in the same thread."""

    def instruments(self) -> list[trio.abc.Instrument]:
        """Return what ``trio.run`` is given."""
        return [self]

    @abstractmethod
    async def run_main(self, async_fn: Callable[[], Awaitable[T]]) -> T:
        """Take control, and run the program's main function in the task that calls this."""

    @abstractmethod
    async def drive(self, idle: Callable[[], Awaitable[None]]) -> None:
        """Let tasks go on until cancelled; call ``idle`` whenever none of them can.

        Runs as a system task, spawned by the main task.
        """


class StepBackend:
    """A way to control the steps of trio's tasks."""

    kind: Kind = "trio"
    name: ClassVar[str]
    session_class: ClassVar[type[Session]]

    def run(
        self,
        program: Callable[[], Awaitable[Any]],
        control: Control,
        ending: Ending,
        observers: tuple[Observer, ...],
        context: Context,
    ) -> outcome.Outcome[Any]:
        """Run a program once in a ``trio.run`` of its own; see `Backend.run`."""
        whole = trio.CancelScope()
        ending.cancel = whole.cancel
        guests = Guests(control, ending)
        session = self.session_class(control, guests, Watchers(observers, ending.for_error))
        clock = MockClock()
        idle = Idle(control, clock, ending)
        result: list[outcome.Outcome[Any]] = []

        async def drive() -> None:
            # When the main task ends, trio cancels all system tasks. The program's own still have
            # to be driven to their end then, so this one goes last.
            with trio.CancelScope(shield=True) as scope:
                idle.stop_driving = scope.cancel
                await session.drive(idle)

        async def main() -> None:
            trio.lowlevel.spawn_system_task(drive, name="harness: drives a schedule")
            with whole:
                result.append(await outcome.acapture(session.run_main, program))
            idle.main_ended = True

        # trio names the main task after the function it is given.
        main.__module__, main.__qualname__ = program.__module__, program.__qualname__
        try:
            with placed(), in_trio.placed(), session():
                context.run(partial(trio.run, main, clock=clock, instruments=session.instruments()))
        except trio.TrioInternalError as exc:
            # A system task of the program failed, or was made to because it ignored its cancel.
            return outcome.Error(exc)
        finally:
            if control.crew is not None:
                control.crew.close()
        return result[0]

    def code_name(self, strand: Strand) -> str:
        """Return the name of a task's function."""
        coro = _task(strand).coro
        code = getattr(coro, "cr_code", None)
        return code.co_qualname if code is not None else type(coro).__name__

    def is_live(self, strand: Strand) -> bool:
        """Tell whether a task hasn't ended."""
        return getattr(_task(strand).coro, "cr_frame", None) is not None

    def frames(self, strand: Strand) -> list[tuple[FrameType, int]]:
        """Return the frames of a suspended task."""
        return list(_task(strand).iter_await_frames())

    def parent(self, strand: Strand) -> trio.lowlevel.Task | None:
        """Return the task whose nursery a task is in; None for the main one."""
        nursery = _task(strand).parent_nursery
        # Above the main task is the one that trio starts everything in.
        if nursery is None or nursery.parent_task.parent_nursery is None:
            return None
        return nursery.parent_task

    def only_joins(self, strand: Strand, frames: Sequence[tuple[FrameType, int]]) -> bool:
        """Tell whether a task waits at the end of a nursery."""
        return any(frame.f_code.co_qualname == "NurseryManager.__aexit__" for frame, _ in frames)

    def holder(
        self, strand: Strand, frames: Sequence[tuple[FrameType, int]]
    ) -> trio.lowlevel.Task | None:
        """Return the task that holds the lock being waited for."""
        found = None
        for frame, _ in frames:
            if frame.f_code.co_name in ("acquire", "acquire_on_behalf_of"):
                held = frame.f_locals.get("self")
                if isinstance(held, trio.Lock) and isinstance(
                    owner := held.statistics().owner, trio.lowlevel.Task
                ):
                    found = owner
        return found

    def taken_at(self, strand: Strand, frames: Sequence[tuple[FrameType, int]]) -> str | None:
        """Return None: nobody keeps that."""
        return None

    def current(self) -> trio.lowlevel.Task:
        """Return the calling task."""
        return trio.lowlevel.current_task()

    def scope(self) -> trio.CancelScope:
        """Return a cancel scope."""
        return trio.CancelScope()

    def signal(self) -> trio.Event:
        """Return an event."""
        return trio.Event()

    async def sleep(self, seconds: float) -> None:
        """Wait on trio's clock."""
        await trio.sleep(seconds)


def _task(strand: Strand) -> trio.lowlevel.Task:
    assert isinstance(strand, trio.lowlevel.Task)
    return strand
