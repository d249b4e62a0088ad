"""Cut a stream of bytes into lines, without ever holding more than one long line.

Only the newline byte ends a line; for CSV a lone carriage return does too. ``str.splitlines`` would
also cut at characters such as U+2028, which JSON strings and CSV fields may contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

CHUNK_BYTES = 64 * 1024
"""How much is read at once, so that one read never keeps other threads waiting for long."""

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A longer line is not kept: a file without newlines must not fill the memory."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ByteSource(Protocol):
    """What lines are read from: a raw file, a pipe, an `io.BytesIO`."""

    def read(self, size: int, /) -> bytes | None:
        """Return up to ``size`` bytes as soon as there are any; nothing at the end."""


class LineReader:
    """The lines of a byte stream, without their newlines; None in place of one that is too long.

    Iterate over it once, or read it once `with_ends`. A byte order mark at the start is left out.
    """

    number: int
    """The number of the line that was yielded last, from 1."""

    bytes_read: int
    """How many bytes the lines up to and including that one had."""

    def __init__(self, source: ByteSource, before_read: Callable[[], None] | None = None) -> None:
        """Read from ``source``, calling ``before_read`` whenever the next read may block."""
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
            yield self._line(begun, size)

    def with_ends(self) -> Iterator[bytes | None]:
        r"""Yield the lines with their endings: ``\n``, ``\r\n`` or ``\r``.

        None in place of one that is too long, as in ``__iter__``.
        """
        begun: list[bytes] = []
        size = 0
        last = b""  # The last byte so far: a ``\r`` there may be half of a ``\r\n``.
        for chunk in self._chunks():
            if last == b"\r" and chunk[:1] != b"\n":
                yield self._line(begun, size)
                begun, size = [], 0
            lines = chunk.splitlines(keepends=True)
            for place, line in enumerate(lines, 1):
                begun.append(line)
                size += len(line)
                if size > MAX_LINE_BYTES:
                    begun.clear()
                last = line[-1:]
                if last == b"\n" or (last == b"\r" and place < len(lines)):
                    yield self._line(begun, size)
                    begun, size, last = [], 0, b""
        if size:
            yield self._line(begun, size)

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
                # A pipe may deliver the mark byte by byte; then it is left in, and reported as an
                # odd character. No program that writes one does that.
                if chunk.startswith(_BYTE_ORDER_MARK):
                    self.bytes_read += len(_BYTE_ORDER_MARK)
                    chunk = chunk[len(_BYTE_ORDER_MARK) :]
            yield chunk

    def _line(self, pieces: list[bytes], size: int, *, newline: int = 0) -> bytes | None:
        self.number += 1
        self.bytes_read += size + newline
        return b"".join(pieces) if size <= MAX_LINE_BYTES else None
