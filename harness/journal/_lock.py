"""The lock of the operating system that lets one process at a time write to a file.

It is taken on a file of its own beside the journal. SQLite has locks on the journal itself, and
those would be lost whenever anybody in this process closed that file. The lock file stays when the
lock is given back: a process that had opened it and one that made it anew would else both hold one.
The kernel gives the lock back when the process dies, however it dies.
"""

from __future__ import annotations

import contextlib
import os
import sys

from harness.errors import JournalError, JournalLockedError
from harness.journal._owner import Owner, words_for

if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> None:
        # A byte far behind the text, so that others can read who holds the lock.
        os.lseek(fd, 1 << 30, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _unlock(fd: int) -> None:
        os.lseek(fd, 1 << 30, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(fd: int) -> None:
        # Not only closed: a forked child that still has the file open would keep the lock.
        fcntl.flock(fd, fcntl.LOCK_UN)


_WORDS_AT_MOST = 4_096
"""Bytes that are read of who holds a lock; an owner's text is some hundred."""


class FileLock:
    """Holds the lock of one journal file, from its making until `release`."""

    def __init__(self, path: str, owner: Owner) -> None:
        """Take the lock, or say who has it.

        Raises:
          JournalLockedError: if another process, or another part of this one, has it.
          JournalError: if the lock file can't be made.
        """
        # Of the file itself: two links to one journal have one lock.
        lock_path = os.path.realpath(path) + "-lock"
        try:
            self._fd: int | None = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise JournalError(
                f"the lock file {lock_path!r} can't be opened for writing ({error.strerror}); a "
                "journal needs to write in its folder"
            ) from error
        try:
            _lock(self._fd)
        except OSError as error:
            holder = os.pread(self._fd, _WORDS_AT_MOST, 0) if hasattr(os, "pread") else b""
            os.close(self._fd)
            raise JournalLockedError(
                f"the journal {path!r} is written to by "
                f"{words_for(holder.decode(errors='replace'))}; wait until that has ended. "
                "Meanwhile it can be read, and a new batch can have a file of its own"
            ) from error
        with contextlib.suppress(OSError):  # On a full disk the name is missing, not the lock.
            os.ftruncate(self._fd, 0)
            os.write(self._fd, owner.text.encode())

    def release(self) -> None:
        """Give the lock back; a second time does nothing."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                _unlock(fd)
            os.close(fd)
