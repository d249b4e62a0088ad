"""Keep a limiter's numbers in a file that the processes of one machine map into their memory.

The file has a header, which says in JSON whose limits these are, and then doubles: two *blocks* of
numbers, a table of *members*, which are the processes, and the cells of the windows. Nothing is
written to disk on purpose: what counts is the memory that the processes share, and after a restart
of the machine its times mean nothing.

One process at a time holds the file's lock, for a moment. It reads the newer block and, when it
is done, writes the other one, whose sequence number, written last, makes it the newer. What it
changes elsewhere it notes first, with the number of the block it began from. So a process that is
killed in between leaves the block as it was and notes of the rest, which the next one takes back.
The kernel gives up the locks of a dead process.

The lock is never waited for, since that would hold up trio's loop: whoever can't have it within a
few tries does something else first.

Each member holds a lock on a file of its own beside this one. If that lock is free, the process is
dead, and its places are given back.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.limits._across_processes._shared_window import RING

if sys.platform != "win32":
    import fcntl

_HEADER_BYTES = 4096
_MOST_NUMBERS = 500
_MOST_NOTES = 500
_MOST_MEMBERS = 256
MEMBER_NUMBERS = 16
"""How many numbers there are for a member: its process, its places, what it has not settled."""

# Where things are, counted in doubles.
_NOTES, _NOTED_FROM, _FIRST_NOTE = 0, 1, 2
_BLOCKS = _FIRST_NOTE + 2 * _MOST_NOTES
_BLOCK_SIZE = 1 + _MOST_NUMBERS
_MEMBERS = _BLOCKS + 2 * _BLOCK_SIZE
_CELLS = _MEMBERS + _MOST_MEMBERS * MEMBER_NUMBERS

# Whoever holds the lock may have to be given the processor first.
_TRIES = 10


class SharedFile:
    """The numbers of one limiter, mapped into this process.

    Args:
      path: The file; it is made if it isn't there.
      windows: How many windows have their cells in it.

    Raises:
      OSError: if it can't be made or opened.
      ValueError: if it is another kind of file.
    """

    def __init__(self, path: Path, *, windows: int) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        size = _HEADER_BYTES + 8 * (_CELLS + windows * 2 * RING)
        try:
            self._header_in(os.pread(self._fd, _HEADER_BYTES, 0))  # Before anything is changed.
            if os.fstat(self._fd).st_size < size:
                os.ftruncate(self._fd, size)  # What it grows by is zeros.
            self._map = mmap.mmap(self._fd, size)
        except BaseException:
            os.close(self._fd)
            raise
        self.numbers: memoryview[float] = memoryview(self._map)[_HEADER_BYTES:].cast("d")
        self._newer = _BLOCKS
        self._noted: set[int] = set()
        self._member = -1
        self._member_lock = -1

    def close(self) -> None:
        """Unmap and close it."""
        self.numbers.release()
        self._map.close()
        os.close(self._fd)
        if self._member_lock >= 0:
            fcntl.flock(self._member_lock, fcntl.LOCK_UN)  # A forked child may have it open, too.
            os.close(self._member_lock)

    def cells(self, window: int) -> int:
        """Return where the cells of a window begin."""
        return _CELLS + window * 2 * RING

    @property
    def is_deleted(self) -> bool:
        """Whether nobody can open it any more."""
        return os.fstat(self._fd).st_nlink == 0

    # The lock, and what it protects -----------------------------------------------------------

    def lock(self) -> bool:
        """Take the lock if it can be had at once, and take back what a dead process half did."""
        for _ in range(_TRIES):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.sched_yield()
                continue
            second = _BLOCKS + _BLOCK_SIZE
            self._newer = second if self.numbers[second] > self.numbers[_BLOCKS] else _BLOCKS
            if self.numbers[_NOTES]:
                self._take_back()
            return True
        return False

    def unlock(self) -> None:
        """Let others have it."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def read(self, count: int) -> list[float]:
        """Return the first numbers of the newer block."""
        return [*self.numbers[self._newer + 1 : self._newer + 1 + count]]

    def commit(self, numbers: Sequence[float]) -> None:
        """Make these the newer block; whatever was poked counts from now on, too."""
        assert len(numbers) <= _MOST_NUMBERS
        view = self.numbers
        other = 2 * _BLOCKS + _BLOCK_SIZE - self._newer
        for index, number in enumerate(numbers, other + 1):
            view[index] = number
        view[other] = view[self._newer] + 1
        view[_NOTES] = 0
        self._newer = other
        self._noted.clear()

    def poke(self, index: int, number: float) -> None:
        """Change a number outside of the blocks, so that it can be taken back."""
        view = self.numbers
        if index not in self._noted:
            note = len(self._noted)
            assert note < _MOST_NOTES
            view[_FIRST_NOTE + 2 * note] = index
            view[_FIRST_NOTE + 2 * note + 1] = view[index]
            view[_NOTED_FROM] = view[self._newer]
            view[_NOTES] = note + 1
            self._noted.add(index)
        view[index] = number

    def _take_back(self) -> None:
        view = self.numbers
        if view[_NOTED_FROM] == view[self._newer]:
            for note in range(int(view[_NOTES])):
                index = int(view[_FIRST_NOTE + 2 * note])
                view[index] = view[_FIRST_NOTE + 2 * note + 1]
        view[_NOTES] = 0

    # What the file says of itself, while it is locked -----------------------------------------

    def header(self) -> dict[str, Any] | None:
        """Return whose limits these are, or ``None`` if the file is new.

        Raises:
          ValueError: if it is another kind of file.
        """
        return self._header_in(self._map[:_HEADER_BYTES])

    def _header_in(self, written: bytes) -> dict[str, Any] | None:
        written = written.rstrip(b"\0")
        if not written:
            return None
        try:
            header: dict[str, Any] = json.loads(written)
        except ValueError:
            header = {}
        if not isinstance(header, dict) or "limiter" not in header:
            raise ValueError(
                f"{str(self.path)!r} isn't the file of a limiter; name a new one, which is made"
            )
        return header

    def write_header(self, header: dict[str, Any]) -> None:
        """Say whose limits these are.

        Raises:
          ValueError: if it is too long.
        """
        written = json.dumps(header).encode()
        if len(written) > _HEADER_BYTES:
            raise ValueError("the limiter's name is too long; give it a shorter one")
        self._map[:_HEADER_BYTES] = written.ljust(_HEADER_BYTES, b"\0")

    # Members, while it is locked --------------------------------------------------------------

    @property
    def own(self) -> int:
        """Where this process's numbers are."""
        return _MEMBERS + self._member * MEMBER_NUMBERS

    def join(self) -> None:
        """Become a member.

        Raises:
          RuntimeError: if there are too many.
        """
        for member in range(_MOST_MEMBERS):
            if not self.numbers[_MEMBERS + member * MEMBER_NUMBERS]:
                self._member_lock = os.open(
                    self._lock_path(member), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600
                )
                fcntl.flock(self._member_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._member = member
                self.poke(self.own, os.getpid())
                return
        raise RuntimeError(
            f"{_MOST_MEMBERS} processes use {str(self.path)!r}, and that is the most; share one "
            "limiter among the tasks of each"
        )

    def leave(self) -> None:
        """Be no member any longer."""
        self._clear(self.own)
        os.unlink(self._lock_path(self._member))

    def bury(self) -> list[list[float]]:
        """Remove the members that are dead; return what each of them held."""
        dead: list[list[float]] = []
        for member in range(_MOST_MEMBERS):
            start = _MEMBERS + member * MEMBER_NUMBERS
            if not self.numbers[start] or member == self._member:
                continue
            if not self._is_alive(member):
                dead.append([*self.numbers[start : start + MEMBER_NUMBERS]])
                self._clear(start)
        return dead

    @property
    def others(self) -> bool:
        """Whether there are other members."""
        return any(
            self.numbers[_MEMBERS + member * MEMBER_NUMBERS]
            for member in range(_MOST_MEMBERS)
            if member != self._member
        )

    def _is_alive(self, member: int) -> bool:
        path = self._lock_path(member)
        try:
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            os.unlink(path)
            return False
        finally:
            os.close(lock)

    def _clear(self, start: int) -> None:
        for index in range(start, start + MEMBER_NUMBERS):
            if self.numbers[index]:
                self.poke(index, 0)

    def _lock_path(self, member: int) -> str:
        return f"{self.path}.{member}"
