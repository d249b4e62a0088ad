"""Take server-sent events from a stream of bytes, without any `await`.

The providers' clients have decoders of their own, but inside generators that they leave suspended
when a stream ends or is left, for the garbage collector to find. Here the bytes are read in one
place, which closes what it opened.
"""

from __future__ import annotations

from collections.abc import Iterator

MOST_BYTES = 16 * 1024 * 1024
"""For one event. Anything larger isn't a model's answer, but something that fills up memory."""


class EventTooLargeError(Exception):
    """An event doesn't end."""


class EventDecoder:
    """A decoder that is fed bytes as they come, and gives the data of each whole event."""

    __slots__ = ("_after_return", "_data", "_line", "_size")

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._after_return = False

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yield the data of the events that end in ``chunk``.

        Raises:
          EventTooLargeError: if the event it is part of is larger than `MOST_BYTES`.
        """
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # A line ending split between two chunks.
        if chunk:
            self._after_return = chunk.endswith(b"\r")
        # The specification of server-sent events has three ways to end a line.
        lines = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._size += len(chunk)
        if self._size > MOST_BYTES:
            raise EventTooLargeError(f"an event of the stream has more than {MOST_BYTES} bytes")
        for end in lines[:-1]:
            self._line.append(end)
            line = b"".join(self._line)
            self._line.clear()
            if not line:
                yield from self._dispatch()
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        self._line.append(lines[-1])

    def end(self) -> Iterator[str]:
        """Yield the event that the end of the stream completes, if there is one.

        Some servers forget the empty line after the last event.
        """
        line = b"".join(self._line)
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        self._line.clear()
        yield from self._dispatch()

    def _dispatch(self) -> Iterator[str]:
        data, self._data = self._data, []
        self._size = 0
        if data:
            yield b"\n".join(data).decode("utf-8", "replace")


class JsonDecoder(EventDecoder):
    """The same for one piece of JSON: what a server sends that ignores the request to stream."""

    __slots__ = ()

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Keep the bytes; nothing is whole before the end.

        Raises:
          EventTooLargeError: if there are more than `MOST_BYTES`.
        """
        self._data.append(chunk)
        self._size += len(chunk)
        if self._size > MOST_BYTES:
            raise EventTooLargeError(f"the answer has more than {MOST_BYTES} bytes")
        return iter(())

    def end(self) -> Iterator[str]:
        """Yield the JSON."""
        yield b"".join(self._data).decode("utf-8", "replace")
