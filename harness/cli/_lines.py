"""Cut a stream of bytes into lines, without ever holding more than one long line.

Only the newline byte ends a line. ``str.splitlines`` would also cut at characters such as U+2028
that stand inside JSON strings and CSV fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

CHUNK_BYTES = 64 * 1024
"""How much is read at once; so one read never keeps other threads waiting for long."""

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A longer line is not kept: a file without newlines must not fill the memory."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ByteSource(Protocol):
    """What lines are read from: a raw file, a pipe, a `io.BytesIO`."""

    def read(self, size: int, /) -> bytes | None:
        """Return up to ``size`` bytes as soon as there are any; nothing at the end."""


class LineReader:
    """The lines of a byte stream, without their newlines; None in place of one that is too long.

    To be iterated once. A byte order mark at the start is left out.
    """

    number: int
    """The line that was yielded last, counted from 1."""

    bytes_read: int
    """How many bytes the lines up to that one had."""

    def __init__(self, source: ByteSource, before_read: Callable[[], None] | None = None) -> None:
        """Read from ``source``, and call ``before_read`` whenever the next read may block."""
        self._source = source
        self._before_read = before_read
        self.number = 0
        self.bytes_read = 0

    def __iter__(self) -> Iterator[bytes | None]:
        begun: list[bytes] = []  # The pieces of a line whose newline is yet to come.
        size = 0
        for chunk in self._chunks():
            first, newline, rest = chunk.partition(b"\n")
            begun.append(first)
            size += len(first)
            if size > MAX_LINE_BYTES:
                begun.clear()
            if not newline:
                continue
            yield self._line(begun, size, newline=1)
            lines = rest.split(b"\n")
            last = lines.pop()
            begun, size = [last], len(last)
            for line in lines:
                self.number += 1
                self.bytes_read += len(line) + 1
                yield line
        if size:
            yield self._line(begun, size, newline=0)

    def _chunks(self) -> Iterator[bytes]:
        first = True
        while True:
            if self._before_read is not None:
                self._before_read()
            chunk = self._source.read(CHUNK_BYTES)
            if not chunk:
                return
            if first:
                first = False
                # A pipe may hand over the mark byte by byte; then it is left in, and reported as
                # an odd character. No program that writes one does that.
                if chunk.startswith(_BYTE_ORDER_MARK):
                    self.bytes_read += len(_BYTE_ORDER_MARK)
                    chunk = chunk[len(_BYTE_ORDER_MARK) :]
            yield chunk

    def _line(self, pieces: list[bytes], size: int, *, newline: int) -> bytes | None:
        self.number += 1
        self.bytes_read += size + newline
        return b"".join(pieces) if size <= MAX_LINE_BYTES else None
