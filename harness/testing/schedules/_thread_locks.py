"""Locks that threads under control take, wait for and give back as a schedule says.

What the standard library builds on locks (conditions, semaphores, events, barriers, queues,
futures, pools, timers) is left as it is, and is under control because its locks are. For any other
thread they are what they replace.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from harness.runs._frames import is_user_code, place
from harness.testing.schedules._effects import WHOLE
from harness.testing.schedules._threads import (
    ThreadStrand,
    changed,
    crew_here,
    current_strand,
    uncontrolled,
)

LOCK_TYPES: tuple[type[Any], ...] = (type(_thread.allocate_lock()), type(threading.RLock()))

_NO_TIMEOUT = -1


class ControlledLock:
    """A `threading.Lock`."""

    # Not as globals: a pool's last words come when the interpreter has taken those away.
    _current_strand = staticmethod(current_strand)
    _crew_here = staticmethod(crew_here)
    _changed = staticmethod(changed)

    def __init__(self, real: Any = None, *, is_for_waiting: bool = False) -> None:
        self._real = allocate() if real is None else real
        self._is_for_waiting = is_for_waiting
        """Whether a condition made it, and who took it waits for somebody else to give it back."""
        self.owner: ThreadStrand | None = None
        self._taken_at: tuple[CodeType, int] | None = None

    def acquire(self, blocking: bool = True, timeout: float = _NO_TIMEOUT) -> bool:
        """Take it."""
        strand = self._current_strand()
        if strand is None:
            if blocking:
                self._let_owner_go_on()
            taken: bool = self._real.acquire(blocking, timeout)
            return taken
        _check(blocking, timeout)
        strand.crew.give_way(strand)
        return self._take(strand, blocking, timeout)

    def _take(self, strand: ThreadStrand, blocking: bool, timeout: float) -> bool:
        deadline = strand.crew.now() + timeout if timeout >= 0 else None
        watch = strand.crew.watch
        while not self._real.acquire(False):
            if watch is not None:
                watch.touch(self, WHOLE, writes=False)
            if not blocking or timeout == 0:
                return False
            left = None if deadline is None else deadline - strand.crew.now()
            if not strand.crew.wait(strand, self._is_free, left, lock=self) and (
                deadline is not None and deadline <= strand.crew.now()
            ):
                return False
        strand.crew.settle()  # Others can't go on any longer.
        if watch is not None:
            watch.took_lock(self)
        self.owner = strand
        with uncontrolled():
            self._taken_at = _line_of_user()
        return True

    def _let_owner_go_on(self) -> None:
        """In a loop that waits for a thread's lock, make that thread's steps meanwhile."""
        crew = self._crew_here()
        if crew is None:
            return
        while (owner := self.owner) is not None and owner.could_go_on(crew.now()):
            crew.let_go_on(owner)

    def _is_free(self) -> bool:
        return not self._real.locked()

    def release(self) -> None:
        """Give it back."""
        self._real.release()
        strand = self._current_strand()
        if strand is not None and strand.crew.watch is not None:
            strand.crew.watch.gave_lock_back(self)
        self.owner = self._taken_at = None
        self._changed()

    def locked(self) -> bool:
        """Tell whether somebody has it."""
        strand = self._current_strand()
        if strand is not None and strand.crew.watch is not None:
            strand.crew.watch.touch(self, WHOLE, writes=False)
        locked: bool = self._real.locked()
        return locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    acquire_lock, release_lock, locked_lock = acquire, release, locked

    def _at_fork_reinit(self) -> None:
        self._real._at_fork_reinit()
        self.owner = self._taken_at = None

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle '_thread.lock' object")

    def holder(self) -> ThreadStrand | None:
        """Return who has it, if that is what keeps others from it."""
        return None if self._is_for_waiting else self.owner

    def taken_at(self) -> str | None:
        """Return in words which line took it."""
        return None if self._is_for_waiting or self._taken_at is None else place(*self._taken_at)


class ControlledRLock:
    """A `threading.RLock`."""

    _current_strand = staticmethod(current_strand)

    def __init__(self, real: Any = None) -> None:
        self._real = make_rlock() if real is None else real
        """What threads that aren't under control take."""
        self._lock = ControlledLock()
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = _NO_TIMEOUT) -> bool:
        """Take it, perhaps once more."""
        strand = self._current_strand()
        if strand is None:
            taken: bool = self._real.acquire(blocking, timeout)
            return taken
        if self._lock.owner is strand:
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._count = 1
        return True

    def release(self) -> None:
        """Give it back, as often as it was taken."""
        if self._is_other_threads():
            self._real.release()
            return
        self._count -= 1
        if not self._count:
            self._lock.release()

    def _is_other_threads(self) -> bool:
        return self._lock.owner is None or self._lock.owner is not self._current_strand()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def locked(self) -> bool:
        """Tell whether somebody has it."""
        return self._lock.locked()

    # What a condition asks of it.

    def _is_owned(self) -> bool:
        strand = self._current_strand()
        if strand is None:
            owned: bool = self._real._is_owned()
            return owned
        return self._lock.owner is strand

    def _release_save(self) -> Any:
        if self._is_other_threads():
            return self._real._release_save()
        count, self._count = self._count, 0
        self._lock.release()
        return count

    def _acquire_restore(self, count: Any) -> None:
        if self._current_strand() is None:
            self._real._acquire_restore(count)
            return
        self._lock.acquire()
        self._count = count

    def _recursion_count(self) -> int:
        return self._count if self._is_owned() else 0

    def _at_fork_reinit(self) -> None:
        self._real._at_fork_reinit()
        self._lock._at_fork_reinit()
        self._count = 0

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle '_thread.RLock' object")


allocate: Callable[[], Any] = _thread.allocate_lock
make_rlock: Callable[[], Any] = threading.RLock
"""As they are, before they are replaced."""


def _check(blocking: bool, timeout: float) -> None:
    if not blocking and timeout != _NO_TIMEOUT:
        raise ValueError("can't specify a timeout for a non-blocking call")
    if timeout < 0 and timeout != _NO_TIMEOUT:
        raise ValueError("timeout value must be a non-negative number")


def _line_of_user() -> tuple[CodeType, int] | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if is_user_code(frame.f_code.co_filename):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None
