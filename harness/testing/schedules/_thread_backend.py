"""Run plain functions and the threads that they start with their steps under control.

The main function runs in a thread of its own, so that whoever asks for it can look on, and say
which thread is blocked in something that no schedule controls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from types import FrameType
from typing import Any

import attrs
import outcome

from harness.testing.schedules._control import Control, GiveUp, controlled
from harness.testing.schedules._ending import Ending
from harness.testing.schedules._strand import Kind, Observer, Strand, Watchers
from harness.testing.schedules._thread_patches import placed, renew_pools, start_daemon
from harness.testing.schedules._threads import (
    STALL_SECONDS,
    Crew,
    ThreadStrand,
    changed,
    current_strand,
    real_monotonic,
    uncontrolled,
)

_BEGIN_SECONDS = 1_000_000.0
"""What the virtual clock shows at first; never what a real one showed before."""


class ThreadBackend:
    """Runs each program as a crew of threads."""

    kind: Kind = "threads"

    def run(
        self,
        program: Callable[[], Awaitable[Any]],
        control: Control,
        ending: Ending,
        observers: tuple[Observer, ...],
        context: Context,
    ) -> outcome.Outcome[Any]:
        """Run a program once; see `Backend.run`."""
        context = context.copy()
        context.run(controlled.set, control)  # Observers look there before the first step.
        driver = _Driver(control, ending, Watchers(observers, ending.for_error))
        with placed():
            renew_pools()
            return driver.run(program, context)

    def code_name(self, strand: Strand) -> str:
        """Return the name of a thread's function."""
        return _own(strand).code_name

    def is_live(self, strand: Strand) -> bool:
        """Tell whether a thread hasn't ended."""
        return not _own(strand).done

    def frames(self, strand: Strand) -> list[tuple[FrameType, int]]:
        """Return the frames of a thread whose turn it isn't."""
        return _own(strand).frames()

    def parent(self, strand: Strand) -> ThreadStrand | None:
        """Return the thread that started one; None for the main one."""
        return _own(strand).parent

    def only_joins(self, strand: Strand, frames: Sequence[tuple[FrameType, int]]) -> bool:
        """Tell whether a thread waits for the end of others."""
        return _own(strand).joins is not None

    def holder(
        self, strand: Strand, frames: Sequence[tuple[FrameType, int]]
    ) -> ThreadStrand | None:
        """Return who holds the lock that a thread waits for."""
        return _own(strand).holder()

    def taken_at(self, strand: Strand, frames: Sequence[tuple[FrameType, int]]) -> str | None:
        """Return which line took it."""
        return _own(strand).taken_at()

    def current(self) -> ThreadStrand:
        """Return the calling thread."""
        strand = current_strand()
        assert strand is not None
        return strand

    def scope(self) -> AbstractContextManager[_NoScope]:
        """Return a block that nothing cancels: threads can't be."""
        return nullcontext(_NoScope())

    def signal(self) -> ThreadSignal:
        """Return what a thread waits for."""
        return ThreadSignal()

    async def sleep(self, seconds: float) -> None:
        """Wait on the program's clock."""
        strand = self.current()
        strand.crew.wait(strand, lambda: seconds <= 0, seconds)


def _own(strand: Strand) -> ThreadStrand:
    assert isinstance(strand, ThreadStrand)
    return strand


class _NoScope:
    cancelled_caught = False

    def cancel(self) -> None:
        """Do nothing."""


class ThreadSignal:
    """Something that a thread waits for."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Let the one that waits go on."""
        self._is_set = True
        changed()

    def wait_here(self) -> None:
        """Have the calling thread wait."""
        strand = current_strand()
        assert strand is not None
        while not self._is_set:
            strand.crew.wait(strand, lambda: self._is_set, None)

    async def wait(self) -> None:
        """Have the calling thread wait."""
        self.wait_here()


@attrs.define(eq=False)
class _Driver:
    """Starts the main thread, looks on, and does what there is to do when nobody can go on."""

    control: Control
    ending: Ending
    watchers: Watchers
    now: float = attrs.field(default=_BEGIN_SECONDS, init=False)
    _stuck_at: int = attrs.field(default=-1, init=False)
    _stuck_since: float = attrs.field(default=0.0, init=False)

    def run(self, program: Callable[[], Awaitable[Any]], context: Context) -> outcome.Outcome[Any]:
        crew = Crew(self.control, self.ending, self.watchers, lambda: self.now, picks=True)

        def close() -> None:
            crew.closing = True

        self.ending.cancel = close
        main = crew.begin("main", program.__qualname__, context)
        start_daemon(crew, main, lambda: crew.run(main, lambda: _drive(program())))
        try:
            while not main.done and not crew.closing:
                strand = crew.choose()
                if strand is not None:
                    crew.let_go_on(strand)
                elif not crew.closing:
                    self._idle(crew)
        finally:
            # What goes on when the main thread has ended is nobody's business.
            self.control.cut_short = True
            crew.close()
        return main.result or outcome.Error(GiveUp())

    def _idle(self, crew: Crew) -> None:
        deadline = crew.next_deadline()
        if self.control.deliver_one(time_could_pass=deadline is not None):
            return
        if deadline is not None:
            self.now = max(self.now, deadline)
            return
        now = real_monotonic()
        if self._stuck_at != self.control.steps:
            self._stuck_at, self._stuck_since = self.control.steps, now
        if crew.wait_outside() and now - self._stuck_since < STALL_SECONDS - 0.1:
            return
        self.ending.for_deadlock(self.control)
        crew.closing = True


def _drive(coroutine: Any) -> Any:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    with uncontrolled():
        coroutine.close()
    raise RuntimeError("no running event loop: a plain function's thread has none")
