"""The operating system's lock that lets one process at a time write to a file.

It is taken on a separate file beside the journal. SQLite has locks on the journal itself, and those
would be lost whenever anything in this process closed that file. The lock file stays when the lock
is released: else a process that had opened it and one that recreated it could both hold a lock.
The kernel releases the lock when the process dies, however it dies.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from harness.errors import JournalError, JournalLockedError
from harness.journal._owner import Owner, owner_from_json, words_for

if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> None:
        # A byte far beyond the text, so that others can read who holds the lock.
        os.lseek(fd, 1 << 30, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    _lock_shared = _lock

    def _unlock(fd: int) -> None:
        os.lseek(fd, 1 << 30, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _lock_shared(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def _unlock(fd: int) -> None:
        # Closing isn't enough: a forked child that still has the file open would keep the lock.
        fcntl.flock(fd, fcntl.LOCK_UN)


_WORDS_AT_MOST = 4_096
"""Bytes to read of a holder's text; an owner's is some hundred."""


_TRIES = 3
_SECONDS_PER_TRY = 0.02
"""A caller of `is_locked` holds the lock for microseconds."""


def is_locked(path: str) -> bool:
    """Return whether a journal is being written to, as far as this user can tell."""
    try:
        fd = os.open(_path_of_lock(path), os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        _lock_shared(fd)
        _unlock(fd)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _path_of_lock(path: str) -> str:
    # Of the real file: two links to one journal share one lock.
    return os.path.realpath(path) + "-lock"


class FileLock:
    """Holds the lock of one journal file, from creation until `release`."""

    def __init__(self, path: str, owner: Owner) -> None:
        """Take the lock, or say who has it.

        Raises:
          JournalLockedError: if another process, or another part of this one, has it.
          JournalError: if the lock file can't be made.
        """
        self._fd: int | None = None
        lock_path = _path_of_lock(path)
        fd, is_ours = _open_lock(lock_path)
        try:
            self._take(fd, path)
            before = os.pread(fd, _WORDS_AT_MOST, 0) if hasattr(os, "pread") else b""
            if before and owner_from_json(before.decode(errors="replace")) is None:
                raise JournalError(
                    f"{lock_path!r} is not a journal's lock file, so it was left alone; move it "
                    "away, or give the journal another name"
                )
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self._has_name = is_ours
        if is_ours:
            # On a full disk the name is missing, not the lock.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                os.write(fd, owner.text.encode())

    def _take(self, fd: int, path: str) -> None:
        for left in reversed(range(_TRIES)):
            try:
                _lock(fd)
            except OSError as error:
                if left:
                    time.sleep(_SECONDS_PER_TRY)
                    continue
                holder = os.pread(fd, _WORDS_AT_MOST, 0) if hasattr(os, "pread") else b""
                raise JournalLockedError(
                    f"the journal {path!r} is being written to by "
                    f"{words_for(holder.decode(errors='replace'))}; wait until that has ended. "
                    "Meanwhile it can be read, and a new batch can use another file"
                ) from error
            return

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                if self._has_name:
                    # Else it would be reported as the next holder's, if that user can't write here.
                    os.ftruncate(fd, 0)
            with contextlib.suppress(OSError):
                _unlock(fd)
            os.close(fd)


def _open_lock(path: str) -> tuple[int, bool]:
    """Return the opened lock file, and whether one may write to it.

    If another user created it, it can still be locked.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666), True
    except OSError as error:
        if sys.platform != "win32" and os.path.isfile(path):
            with contextlib.suppress(OSError):
                return os.open(path, os.O_RDONLY), False
        raise JournalError(
            f"the lock file {path!r} can't be opened for writing ({error.strerror}); a "
            "journal needs to write in its folder"
        ) from error
