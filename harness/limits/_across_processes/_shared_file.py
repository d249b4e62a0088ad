"""Keep a limiter's numbers in a file that the processes of one machine map into their memory.

The file has a header, which says in JSON whose limits these are, twice, so that one is whole at any
moment. Then come doubles: two *blocks* of numbers, a table of *members*, which are the processes,
and the cells of the windows. Nothing is written to disk on purpose: what counts is the memory that
the processes share, and after a restart of the machine its times mean nothing.

One process at a time holds the file's lock, for a moment. It reads the newer block and, when it
is done, writes the other one, whose sequence number, written last, makes it the newer. What it
changes elsewhere it notes first, with the number of the block it began from. So a process that is
killed in between leaves the block as it was and notes of the rest, which the next one takes back.
The kernel gives up the locks of a dead process.

The lock is never waited for, since that would hold up trio's loop: whoever can't have it within a
few tries does something else first.

Each member holds a lock on a file of its own beside this one. If that lock is free, the process is
dead, and its places are given back. Once the file itself is gone from its place, a missing lock
says nothing, and nobody counts as dead.

A forked child has the same locks as its parent, and would keep them when the parent dies. So it
closes its copies at once.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any
from zlib import crc32

from harness.limits._across_processes._shared_window import RING

if sys.platform != "win32":
    import fcntl

HEADER_BYTES = 4096
_SLOT_BYTES = HEADER_BYTES // 2
_SUM = Struct("II")
_NO_SUM = (0, 0)
_MOST_NUMBERS = 500
MOST_MEMBERS = 256
MEMBER_NUMBERS = 16
"""How many numbers there are for a member: its process, its places, what it has not settled."""
_MOST_NOTES = 500 + MOST_MEMBERS * MEMBER_NUMBERS  # All members may be found dead at once.

# Where things are, counted in doubles.
_NOTES, _NOTED_FROM, _FIRST_NOTE = 0, 1, 2
BLOCKS = _FIRST_NOTE + 2 * _MOST_NOTES
BLOCK_SIZE = 1 + _MOST_NUMBERS
MEMBERS = BLOCKS + 2 * BLOCK_SIZE
CELLS = MEMBERS + MOST_MEMBERS * MEMBER_NUMBERS

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
        self.path = path.absolute()  # The program may go to another folder.
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self._size = HEADER_BYTES + 8 * (CELLS + windows * 2 * RING)
        try:
            header_in(os.pread(self._fd, HEADER_BYTES, 0), self.path)  # Before anything is changed.
            _make_room(self._fd, self._size)
            self._map = mmap.mmap(self._fd, self._size)
        except BaseException:
            os.close(self._fd)
            raise
        self.numbers: memoryview[float] = memoryview(self._map)[HEADER_BYTES:].cast("d")
        self._newer = BLOCKS
        self._noted: set[int] = set()
        self._member = -1
        self._member_lock = -1
        self.is_cut = False
        """Whether somebody has made the file shorter, so that touching its memory may be fatal."""
        _open.add(self)

    def close(self) -> None:
        """Unmap and close it."""
        self.numbers.release()
        self._map.close()
        self.close_in_child()

    def close_in_child(self) -> None:
        """Close this process's copies of the locks; if it has the only ones, they are given up."""
        for fd in (self._fd, self._member_lock):
            if fd >= 0:
                os.close(fd)
        self._fd = self._member_lock = -1

    def cells(self, window: int) -> int:
        """Return where the cells of a window begin."""
        return CELLS + window * 2 * RING

    @property
    def is_gone(self) -> bool:
        """Whether whoever opens it now gets another file, or none."""
        try:
            there = os.stat(self.path)
        except OSError:
            return True
        return not os.path.samestat(there, os.fstat(self._fd))

    # The lock, and what it protects -----------------------------------------------------------

    def lock(self) -> bool:
        """Take the lock if it can be had at once, and take back what a dead process half did."""
        if os.fstat(self._fd).st_size < self._size:
            self.is_cut = True
            return False
        for _ in range(_TRIES):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.sched_yield()
                continue
            second = BLOCKS + BLOCK_SIZE
            self._newer = second if self.numbers[second] > self.numbers[BLOCKS] else BLOCKS
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
        other = 2 * BLOCKS + BLOCK_SIZE - self._newer
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
        return header_in(self._map[:HEADER_BYTES], self.path)

    def write_header(self, header: dict[str, Any]) -> None:
        """Say whose limits these are.

        It goes where the older of two is, and counts from the moment at which its sum is there: a
        process that is killed in between leaves the newer one as it was.

        Raises:
          ValueError: if it is too long.
        """
        before = self.header()
        number = 0 if before is None else before["written"] + 1
        text = json.dumps({**header, "written": number}).encode()
        if len(text) > _SLOT_BYTES - _SUM.size:
            raise ValueError("the limiter's name is too long; give it a shorter one")
        start = number % 2 * _SLOT_BYTES
        self._map[start : start + _SUM.size] = _SUM.pack(*_NO_SUM)
        self._map[start + _SUM.size : start + _SLOT_BYTES] = text.ljust(
            _SLOT_BYTES - _SUM.size, b"\0"
        )
        self._map[start : start + _SUM.size] = _SUM.pack(crc32(text), len(text))

    # Members, while it is locked --------------------------------------------------------------

    @property
    def own(self) -> int:
        """Where this process's numbers are."""
        return MEMBERS + self._member * MEMBER_NUMBERS

    def join(self) -> None:
        """Become a member.

        Raises:
          RuntimeError: if there are too many.
        """
        for member in range(MOST_MEMBERS):
            if not self.numbers[MEMBERS + member * MEMBER_NUMBERS]:
                self._member_lock = os.open(
                    self._lock_path(member), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600
                )
                # Whoever may use the file itself must be able to see who is dead.
                os.fchmod(self._member_lock, os.fstat(self._fd).st_mode & 0o666)
                fcntl.flock(self._member_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._member = member
                self.poke(self.own, os.getpid())
                return
        raise RuntimeError(
            f"{MOST_MEMBERS} processes use {str(self.path)!r}, and that is the most; share one "
            "limiter among the tasks of each"
        )

    def leave(self) -> None:
        """Be no member any longer."""
        self._clear(self.own)
        _unlink(self._lock_path(self._member))

    def bury(self) -> list[list[float]]:
        """Remove the members that are dead; return what each of them held."""
        dead: list[list[float]] = []
        if self.is_gone:  # So are the locks, of the living too.
            return dead
        for member in range(MOST_MEMBERS):
            start = MEMBERS + member * MEMBER_NUMBERS
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
            self.numbers[MEMBERS + member * MEMBER_NUMBERS]
            for member in range(MOST_MEMBERS)
            if member != self._member
        )

    def _is_alive(self, member: int) -> bool:
        path = self._lock_path(member)
        try:
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            _unlink(path)
            return False
        finally:
            os.close(lock)

    def _clear(self, start: int) -> None:
        for index in range(start, start + MEMBER_NUMBERS):
            if self.numbers[index]:
                self.poke(index, 0)

    def _lock_path(self, member: int) -> str:
        # With the number of the file's inode, so that one which replaces it has locks of its own.
        return f"{self.path}.{os.fstat(self._fd).st_ino}.{member}"


def header_in(written: bytes, path: Path) -> dict[str, Any] | None:
    """Return what a file's first bytes say of it; ``None`` if the file is new.

    Raises:
      ValueError: if it is another kind of file.
    """
    known: list[dict[str, Any]] = []
    written = written.ljust(HEADER_BYTES, b"\0")
    for start in (0, _SLOT_BYTES):
        sum_of, text = _SUM.unpack_from(written, start), written[start + _SUM.size :]
        text = text[: _SLOT_BYTES - _SUM.size].rstrip(b"\0")
        if sum_of == _NO_SUM:
            continue  # Never written, or by a process that was killed.
        if sum_of == (crc32(text), len(text)):
            known.append(json.loads(text))
        else:
            raise ValueError(
                f"{str(path)!r} isn't the file of a limiter; name a new one, which is made"
            )
    return max(known, key=lambda header: header["written"], default=None)


def _make_room(fd: int, size: int) -> None:
    """Make a file at least this long; what it grows by is zeros."""
    if sys.platform == "linux":
        # A hole would be filled when it is first written to, and a full disk would kill us then.
        os.posix_fallocate(fd, 0, size)
    elif os.fstat(fd).st_size < size:
        os.ftruncate(fd, size)


def _unlink(path: str) -> None:
    """Delete a file of a lock; if that can't be done, it is in nobody's way."""
    with suppress(OSError):
        os.unlink(path)


_open: weakref.WeakSet[SharedFile] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for file in _open:
        file.close_in_child()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_let_go_in_child)
