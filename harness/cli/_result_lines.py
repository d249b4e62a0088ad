"""Write the lines of a batch; if it is resumed, first all that the journal has, then the new ones.

Records that are done and others may be anywhere in the input, which is read once. So new lines are
held, in a temporary file without a name, until the last of the journal's has been written; if those
come first anyway, hardly any are held. A million records take no more memory, and a process that is
killed leaves no file behind. What it held isn't lost: the journal has it.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import trio

from harness.cli._writer import LineWriter

_LINES_PER_CHECKPOINT = 64
"""A disk takes lines without a checkpoint, and there may be a million of them."""


class ResultLines:
    """Where the line of each result goes. Close it, since it may hold a temporary file."""

    kept_missing: int
    """How many results of the journal have no line yet."""

    def __init__(
        self,
        writer: LineWriter,
        *,
        kept_first: bool = True,
        folder: Path | None = None,
    ) -> None:
        """Write lines to ``writer``.

        Args:
          writer: Where they go.
          kept_first: Whether what the journal has comes first; else lines are written as they
            come.
          folder: Where lines are held meanwhile; None: where the system keeps temporary files.
        """
        self._writer = writer
        self._kept_first = kept_first
        self._holds = False
        self._folder = folder
        self._held: tuple[LineWriter, io.FileIO] | None = None
        self.kept_missing = 0

    def expect(self, kept: int) -> None:
        """Hear how many results the journal has, before the first line."""
        self.kept_missing = kept
        self._holds = self._kept_first and kept > 0

    async def write(self, line: bytes, *, is_kept: bool) -> None:
        """Write a line, or hold it.

        Args:
          line: Ends with a newline.
          is_kept: Whether its result was in the journal when the batch was resumed.

        Raises:
          BrokenPipeError, OSError: as of `LineWriter.write`, whichever file it is.

        Checkpoint: as `LineWriter.write`; at the last of the journal's lines, also as `release`.

        Cancellation: none while a line, or what was held, is being written.
        """
        if is_kept:
            self.kept_missing -= 1
        elif self._holds:
            await self._hold(line)
            return
        await self._writer.write(line)
        if self._holds and self.kept_missing <= 0:
            await self.release()

    async def release(self) -> None:
        """Write what was held, and hold nothing from now on.

        Raises:
          BrokenPipeError, OSError: as of `LineWriter.write`.

        Checkpoint: once every 64 lines, and as `LineWriter.write`.

        Cancellation: shielded until all is written, so that no line is lost.
        """
        self._holds = False
        if self._held is None:
            return
        _, file = self._held
        self._held = None
        file.seek(0)
        with io.BufferedReader(file) as lines, trio.CancelScope(shield=True):
            for count, line in enumerate(lines, 1):
                await self._writer.write(line)
                if count % _LINES_PER_CHECKPOINT == 0:
                    await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Discard what is held, without writing it."""
        if self._held is not None:
            self._held[1].close()

    async def _hold(self, line: bytes) -> None:
        if self._held is None:
            # Unbuffered: a full disk is noticed at the line that doesn't fit.
            # Closed by `release`, or by `close`.
            file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            self._held = LineWriter(file), file
        await self._held[0].write(line)
