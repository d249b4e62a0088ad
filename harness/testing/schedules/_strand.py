"""Define what makes the steps of a controlled program, whatever kind of program it is.

Whatever makes steps one after the other is a *strand*: a task, a callback of a loop, a thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import Context
from types import FrameType
from typing import Any, Literal, Protocol

import attrs

Kind = Literal["trio", "asyncio", "threads"]
"""What runs a program, as users write it: ``backend="asyncio"``."""

RETURNED_AWAITABLE = "what the plain function returned has to be awaited"
"""What the error says that a function gives which was taken for one of threads."""


def close_unawaited(awaitable: Any) -> None:
    """Let go of a coroutine that nobody is going to await."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()


class Strand(Protocol):
    """Something in a program that makes steps: a task of trio or asyncio, a callback, a thread.

    It is told from others by identity, and is used as a key. A `trio.lowlevel.Task` is one.
    """

    @property
    def name(self) -> str:
        """What reports call it; several may have the same name."""
        ...

    @property
    def context(self) -> Context:
        """The context variables that its steps see."""
        ...


class Observer(Protocol):
    """What looks on between the steps of a controlled run.

    Both methods are called outside any strand, where nothing else runs; code between two
    checkpoints can't be seen halfway. They mustn't block. What they raise ends the run with that
    error.
    """

    def before_step(self, strand: Strand, /) -> None:
        """Look at things right before a strand goes on."""

    def after_step(self, strand: Strand, /) -> None:
        """Look at things right after it has come to its next checkpoint, or ended."""


class Scope(Protocol):
    """A block that can be cancelled from outside; `trio.CancelScope` is one."""

    @property
    def cancelled_caught(self) -> bool:
        """Whether the block was left because it was cancelled."""
        ...

    def cancel(self) -> None:
        """Cancel what is in the block."""


class Signal(Protocol):
    """What one strand waits for and another sets; `trio.Event` is one."""

    def set(self) -> None:
        """Let the one that waits go on."""

    async def wait(self) -> object:
        """Wait until it is set."""


class Strands(Protocol):
    """What a `Control` asks about the strands of its program, and what their code can await."""

    @property
    def kind(self) -> Kind:
        """What it runs."""
        ...

    # What it knows of a strand -------------------------------------------------------------------

    def code_name(self, strand: Strand) -> str:
        """Return the name of what a strand runs; it goes into the marks of schedules.

        Not its own name, which may hold an address or a random id.
        """
        ...

    def is_live(self, strand: Strand) -> bool:
        """Tell whether a strand hasn't ended."""
        ...

    def frames(self, strand: Strand) -> Sequence[tuple[FrameType, int]]:
        """Return the frames of a suspended strand with their lines, outermost first."""
        ...

    def parent(self, strand: Strand) -> Strand | None:
        """Return the strand that started it; None for the main one."""
        ...

    def only_joins(self, strand: Strand, frames: Sequence[tuple[FrameType, int]]) -> bool:
        """Tell whether a strand, with these frames, waits only for those that it started."""
        ...

    def holder(self, strand: Strand, frames: Sequence[tuple[FrameType, int]]) -> Strand | None:
        """Return who holds the lock that a strand, with these frames, waits for."""
        ...

    def taken_at(self, strand: Strand, frames: Sequence[tuple[FrameType, int]]) -> str | None:
        """Return in words which line took that lock, if it is known."""
        ...

    # What code in a program of its kind can await ------------------------------------------------

    def current(self) -> Strand:
        """Return the strand that calls."""
        ...

    def scope(self) -> AbstractContextManager[Scope]:
        """Return a block of the calling strand that can be cancelled."""
        ...

    def signal(self) -> Signal:
        """Return something to wait for."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for so long on the program's own clock; 0 is a checkpoint."""


@attrs.define(eq=False)
class Watchers:
    """Calls observers around a step, and ends the run if one of them raises."""

    observers: tuple[Observer, ...]
    fail: Callable[[BaseException], None]
    _inside: Strand | None = attrs.field(default=None, init=False)

    def before(self, strand: Strand) -> None:
        """Call every ``before_step``."""
        self._inside = strand
        try:
            for observer in self.observers:
                observer.before_step(strand)
        except BaseException as exc:
            self.fail(exc)

    def after(self, strand: Strand) -> None:
        """Call every ``after_step``, unless the step began before there was control."""
        if self._inside is not strand:
            return
        self._inside = None
        try:
            for observer in self.observers:
                observer.after_step(strand)
        except BaseException as exc:
            self.fail(exc)


def await_frames(awaitable: Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a suspended coroutine, as `trio.lowlevel.Task.iter_await_frames` does."""
    while awaitable is not None:
        for prefix, following in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            frame = getattr(awaitable, f"{prefix}_frame", None)
            if frame is not None:
                yield frame, frame.f_lineno
                awaitable = getattr(awaitable, following, None)
                break
        else:
            return
