"""Read a trace back, as far as it is whole."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

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


def read_trace(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield each line of a trace as a dict; a last line that was cut off is left out.

    Args:
      path: The file that `record` writes, or has written.

    Raises:
      OSError: if the file can't be read.
      ValueError: if a line isn't one of a trace; the message says which.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # The process was killed while it wrote this.
            try:
                found = json.loads(line)
            except ValueError as error:
                raise ValueError(
                    f"{os.fspath(path)!r}, line {number} isn't JSON: {error}"
                ) from None
            if not isinstance(found, dict) or "type" not in found or "time" not in found:
                raise ValueError(
                    f"{os.fspath(path)!r}, line {number} is no line of a trace: it has no type or "
                    "no time; give the file that harness.observe.record() wrote"
                )
            yield found
