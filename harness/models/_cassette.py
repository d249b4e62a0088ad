"""Keep requests and their replies in a file, one line of JSON each, which only ever grows.

A line is on the disk when `Cassette.append` returns. A crash can only tear the last line, and a
torn line doesn't count: it is skipped when the file is read, and cut off before the next is
written. Any number of cassettes may write to one file, in any number of processes: a lock of the
operating system admits one at a time, and each looks up the end of the file again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import trio

from harness.errors import CassetteError
from harness.models._canonical import request_key, response_of_json
from harness.models._messages import ModelResponse

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_BLOCK_BYTES = 4_096


@attrs.frozen
class RecordedAnswer:
    """One request and its reply."""

    request: Mapping[str, Any]
    """The request, as JSON values."""

    response: ModelResponse

    pieces: tuple[str, ...] | None
    """The pieces it came in, if it was streamed."""

    line: int
    """Its line in the file, counting from 1."""


class Cassette:
    """The recordings in one file.

    Args:
      path: The file. A missing file is an empty cassette.

    Raises:
      CassetteError: if it can't be read, or a line in it isn't a recording.
    """

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        self.recordings: dict[str, RecordedAnswer] = {}
        """By the key of the request. If a request has several, the first."""
        self._lines = 0
        self._lock = trio.Lock()
        self._unwritten: list[bytes] = []
        self._load()

    def _load(self) -> None:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise CassetteError(
                f"the cassette {str(self.path)!r} can't be read: {error}"
            ) from error
        for line in content[: content.rfind(b"\n") + 1].splitlines():
            self._lines += 1
            try:
                values = json.loads(line)
                recorded = _recorded(values, self._lines)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CassetteError(
                    f"line {self._lines} of the cassette {str(self.path)!r} isn't a recording; "
                    "repair it, or delete the file and record again"
                ) from error
            self.recordings.setdefault(request_key(recorded.request), recorded)

    async def append(
        self, key: str, request: Mapping[str, Any], response: Mapping[str, Any], **more: Any
    ) -> RecordedAnswer:
        """Write a recording, and return it once it is on the disk.

        Recordings that arrive while another is being written are written together.

        Cancellation: it may have been written.
        """
        values = {"request": request, "response": response, **more}
        try:
            line = (json.dumps(values, ensure_ascii=False) + "\n").encode()
        except UnicodeEncodeError:  # Half a surrogate pair.
            line = (json.dumps(values) + "\n").encode()
        self._unwritten.append(line)
        async with self._lock:
            if any(waiting is line for waiting in self._unwritten):
                lines, self._unwritten = self._unwritten, []
                try:
                    await trio.to_thread.run_sync(self._write, b"".join(lines))
                except BaseException:
                    # Whoever else waits for one of them writes it, or hears of the failure itself.
                    others = [other for other in lines if other is not line]
                    self._unwritten = [*others, *self._unwritten]
                    raise
        self._lines += 1
        return self.recordings.setdefault(key, _recorded(values, self._lines))

    def _write(self, lines: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        with os.fdopen(fd, "r+b") as file, _locked(file):
            end = _end_of_lines(file)
            file.seek(end)
            file.truncate()  # What is left of a line after a crash.
            try:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                # Nobody is told that a line is there when it may be half a line.
                with suppress(OSError):
                    os.ftruncate(file.fileno(), end)
                raise


def _recorded(values: Mapping[str, Any], line: int) -> RecordedAnswer:
    pieces = tuple(values["pieces"]) if "pieces" in values else None
    return RecordedAnswer(values["request"], response_of_json(values["response"]), pieces, line)


def _end_of_lines(file: BinaryIO) -> int:
    """Return where the last whole line of a file ends."""
    end = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - _BLOCK_BYTES)
        file.seek(begin)
        last = file.read(end - begin).rfind(b"\n")
        if last >= 0:
            return begin + last + 1
        end = begin
    return 0


@contextmanager
def _locked(file: BinaryIO) -> Generator[None]:
    """Be the only writer among all processes. Called in a thread, because it waits."""
    if sys.platform == "win32":
        file.seek(1 << 30)  # A byte far beyond the text, which others go on reading.
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        try:
            yield
        finally:
            file.seek(1 << 30)
            msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
