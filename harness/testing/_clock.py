"""Make a virtual clock stand still while a thread works.

``MockClock(autojump_threshold=0)`` jumps to the next deadline when all tasks are waiting, even if
one is waiting for a thread that is hard at work: then the timeout around it fires, though no time
has passed. While the clock is held, it jumps only after `PATIENCE_SECONDS` of real time, so a
thread that waits for the clock in a way that can't be seen ends a test late rather than never.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import trio
from trio.lowlevel import Task

from harness._clock_hold import ClockHold
from harness._outside_trio import refuse_outside_trio

PATIENCE_SECONDS = 30.0
"""Real seconds without any task step after which a held clock jumps all the same."""


@contextmanager
def hold_clock() -> Iterator[None]:
    """Keep the virtual clock from jumping inside the block, because some thread is at work.

    Threads of `trio.to_thread.run_sync` hold the clock by themselves in tests under the pytest
    plugin, and wherever `ThreadsHoldClock` is an instrument. This is for anything else: a process,
    a socket, a library's worker thread. On a real clock it does nothing. Blocks may nest and
    overlap.

    Raises:
      RuntimeError: outside trio.
    """
    refuse_outside_trio("hold_clock() was entered")
    hold = ClockHold(PATIENCE_SECONDS)
    hold.begin()
    try:
        yield
    finally:
        hold.end()


_RUN_SYNC: CodeType = inspect.unwrap(trio.to_thread.run_sync).__code__
_WAIT: CodeType = inspect.unwrap(trio.lowlevel.wait_task_rescheduled).__code__


class ThreadsHoldClock(trio.abc.Instrument):
    """A trio instrument that holds the virtual clock while a worker thread is at work.

    ``trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[ThreadsHoldClock()])``. A
    thread that is itself waiting for trio, in ``trio.from_thread.run``, doesn't hold it.
    """

    def __init__(self) -> None:
        self._waiting: set[Task] = set()
        self._in_trio = 0
        self._hold: ClockHold | None = None

    def after_task_step(self, task: Task) -> None:
        """Look at what the task is waiting for. Never raises: code in an instrument mustn't."""
        if _waits_for_thread(task):
            self._waiting.add(task)
        elif task in self._waiting:
            self._waiting.discard(task)
        elif not self._waiting and self._hold is None:
            return
        self._look()

    def task_spawned(self, task: Task) -> None:
        """Count the tasks in which trio runs what an abandoned thread asked for."""
        if _is_for_thread(task):
            self._in_trio += 1
            self._look()

    def task_exited(self, task: Task) -> None:
        """Forget the task."""
        self._waiting.discard(task)
        if _is_for_thread(task):
            self._in_trio -= 1
        self._look()

    def after_run(self) -> None:
        """Get ready for the next ``trio.run``."""
        self._waiting.clear()
        self._in_trio = 0
        self._hold = None

    def let_go(self) -> None:
        """Release the clock before the instrument is removed; call it in trio."""
        self._waiting.clear()
        self._in_trio = 0
        self._look()

    def _look(self) -> None:
        wanted = len(self._waiting) > self._in_trio
        if wanted and self._hold is None:
            self._hold = ClockHold(PATIENCE_SECONDS)
            self._hold.begin()
        elif not wanted and self._hold is not None:
            hold, self._hold = self._hold, None
            hold.end()


def _waits_for_thread(task: Task) -> bool:
    """Return whether the task is waiting in `trio.to_thread.run_sync` only for the thread.

    While trio runs something for the thread, there are frames of that in between.
    """
    coroutine: Any = task.coro
    outer: CodeType | None = None
    while coroutine is not None:
        code = getattr(coroutine, "cr_code", None)
        if code is _WAIT:
            return outer is _RUN_SYNC
        outer = code
        coroutine = getattr(coroutine, "cr_await", None)
    return False


def _is_for_thread(task: Task) -> bool:
    code = getattr(task.coro, "cr_code", None)
    return code is not None and code.co_qualname == "Run.run_system"
