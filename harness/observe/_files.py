"""Open, hold and replace the files of traces, and of what is made of them.

What they say of a program is nobody else's business: they are the user's alone to read, as the
sockets are.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

if sys.platform == "win32":

    def hold(fd: int) -> None:
        """Do nothing: a lock would keep others from reading."""

    def _is_held(fd: int) -> bool:
        return False

else:
    import fcntl

    def hold(fd: int) -> None:
        """Show for as long as the file is open that it is being written.

        Raises:
          BlockingIOError: if somebody else writes it.
        """
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _is_held(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False


def is_being_written(path: str | os.PathLike[str]) -> bool:
    """Return whether a process that is alive still records to the file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return _is_held(fd)
    finally:
        os.close(fd)


def refuse_same(source: str | os.PathLike[str], output: str | os.PathLike[str]) -> None:
    """Raise ValueError if writing ``output`` would replace what is read from ``source``."""
    if os.path.realpath(source) == os.path.realpath(output):
        raise ValueError(
            f"{os.fspath(output)!r} is the trace itself, which would be lost; give another file"
        )


def open_alone(path: str | bytes) -> int:
    """Open a file to write a trace at its end, and make it the user's alone.

    Raises:
      OSError: if that can't be done, or it is no file.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        # Opening a pipe would hold the whole program up until somebody reads it.
        raise OSError(f"{path!r} is no file that a trace can be written to; name another")
    binary = getattr(os, "O_BINARY", 0)  # Or Windows would add to each line break.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | binary, 0o600)
    if sys.platform != "win32":
        try:
            os.fchmod(fd, 0o600)
        except PermissionError:
            pass  # Somebody else's, who lets us write to it.
    return fd


@contextmanager
def replacing(output: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Write a file that is the user's alone, and put it in place of ``output`` once it is whole.

    Raises:
      OSError: if it can't be written, or what is there is no file.
    """
    path = os.fspath(output)
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, "it is no file; name another", path)
    try:
        fd, unfinished = tempfile.mkstemp(dir=os.path.dirname(path) or ".", suffix=".part")
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    try:
        with open(fd, "w", encoding="utf-8") as file:
            yield file
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise
