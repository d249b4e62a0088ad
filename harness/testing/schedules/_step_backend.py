"""Define what controls the steps of a ``trio.run``: an interface with two implementations.

A *backend* makes a `Session` for each controlled run. Both control the same tasks: all but trio's
own, including system tasks that the program starts.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol, TypeVar

import attrs
import trio

from harness.testing.schedules._control import Control

T = TypeVar("T")

_TRIO = os.path.dirname(os.path.abspath(trio.__file__)) + os.sep
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Observer(Protocol):
    """What looks on between the steps of a controlled run.

    Both methods are called outside any task, where nothing else runs; code between two checkpoints
    can't be seen halfway. They mustn't block. What they raise ends the run with that error.
    """

    def before_step(self, task: trio.lowlevel.Task) -> None:
        """Look at things right before a task goes on."""

    def after_step(self, task: trio.lowlevel.Task) -> None:
        """Look at things right after it has come to its next checkpoint, or ended."""


@attrs.define(eq=False)
class Guests:
    """Tells the program's tasks from trio's own, and from those of another ``trio.run``."""

    control: Control
    fail: Callable[[BaseException], None]
    """Ends the run with an error of ours or an observer's."""

    root: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    driver: Callable[..., object] | None = attrs.field(default=None, init=False)
    strangers: list[str] = attrs.field(factory=list[str], init=False)
    """Tasks that were started here in a nursery of another ``trio.run``, by name."""

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
            self.strangers.append(task.name)
        self.control.admit(task)
        return True


@attrs.define(eq=False)
class Watchers:
    """Calls observers around a step, and ends the run if one of them raises."""

    observers: tuple[Observer, ...]
    fail: Callable[[BaseException], None]
    _inside: trio.lowlevel.Task | None = attrs.field(default=None, init=False)

    def before(self, task: trio.lowlevel.Task) -> None:
        """Call every ``before_step``."""
        self._inside = task
        try:
            for observer in self.observers:
                observer.before_step(task)
        except BaseException as exc:
            self.fail(exc)

    def after(self, task: trio.lowlevel.Task) -> None:
        """Call every ``after_step``, unless the step began before there was control."""
        if self._inside is not task:
            return
        self._inside = None
        try:
            for observer in self.observers:
                observer.after_step(task)
        except BaseException as exc:
            self.fail(exc)


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
    """A way to control steps."""

    name: ClassVar[str]
    session_class: ClassVar[type[Session]]

    def session(self, control: Control, guests: Guests, observers: tuple[Observer, ...]) -> Session:
        """Return the control of one run."""
        return self.session_class(control, guests, Watchers(observers, guests.fail))
