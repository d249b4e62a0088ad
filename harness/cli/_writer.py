"""Write lines so that whoever reads the file, at any moment, finds whole lines.

Each line is one write to the operating system, bypassing Python's buffers. If a write gets only
half of a line onto a disk, that half is cut off again.
"""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import trio

_PIPE_ATOM_BYTES = getattr(select, "PIPE_BUF", 512)


class LineWriter:
    """Whole lines to one file, pipe or terminal.

    A context manager: leaving it closes the file, and removes one that it created and wrote
    nothing to because of an error, so that the same command can be tried again.
    """

    lines: int
    """How many lines were written."""

    def __init__(self, file: BinaryIO, *, created: Path | None = None) -> None:
        """Write to ``file``, unbuffered; ``created`` is its path if it didn't exist before."""
        self._file = file
        self._created = created
        self._size_bytes = 0
        self.lines = 0
        try:
            self._on_disk = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            self._in_memory = False
        except (OSError, AttributeError):
            self._on_disk, self._in_memory = False, True

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._in_memory:
            self._file.close()
        if error is not None:
            self.discard_if_empty()

    def discard_if_empty(self) -> None:
        """Remove the file if it was created here and nothing was written to it."""
        if self._created is not None and not self.lines:
            self._created.unlink(missing_ok=True)

    async def write(self, line: bytes) -> None:
        """Write ``line``, which ends with a newline.

        Raises:
          BrokenPipeError: if the reader of a pipe is gone.
          OSError: if the disk is full, or gone; then no part of ``line`` stays on it.

        Checkpoint: only when a pipe or terminal has no room. A disk takes the line at once, and
        a million lines would pay for a million checkpoints.

        Cancellation: none while the line is being written, so that it is never half a line.
        """
        if self._on_disk or self._in_memory or self._has_room(len(line)):
            self._write(line)
        else:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._write, line)

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            if self._on_disk:
                self._file.seek(self._size_bytes)
                self._file.truncate()
            raise
        self._size_bytes += len(line)
        self.lines += 1

    def _has_room(self, size_bytes: int) -> bool:
        """Tell whether a pipe takes ``size_bytes`` now, whole and without waiting."""
        if size_bytes > _PIPE_ATOM_BYTES or not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(self._file, select.POLLOUT)
        return bool(poll.poll(0))
