"""Whole lines in a file, whatever happens."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
import trio

from harness.cli._writer import LineWriter


def create(path: Path) -> BinaryIO:
    return cast(BinaryIO, open(path, "xb", buffering=0))


class FullDisk(io.FileIO):
    """Takes what fits, and then says that it is full, as a disk does."""

    room_bytes = 0

    def write(self, data: Any, /) -> int:
        if not self.room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(len(data), self.room_bytes)
        self.room_bytes -= taken
        written = super().write(data[:taken])
        assert written == taken
        return taken


async def test_line_is_in_the_file_before_write_returns(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with LineWriter(create(path)) as writer:
        await writer.write(b"one\n")
        assert path.read_bytes() == b"one\n"
        await writer.write(b"two\n")
        assert path.read_bytes() == b"one\ntwo\n"
    assert writer.lines == 2


async def test_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    file = FullDisk(path, "xb")
    file.room_bytes = 6
    with LineWriter(cast(BinaryIO, file)) as writer:
        await writer.write(b"one\n")
        with pytest.raises(OSError, match="No space"):
            await writer.write(b"two\n")
        assert path.read_bytes() == b"one\n"
        file.room_bytes = 100
        await writer.write(b"three\n")
    assert path.read_bytes() == b"one\nthree\n"


async def test_line_that_the_disk_takes_in_pieces_is_whole(tmp_path: Path) -> None:
    class Slow(io.FileIO):
        def write(self, data: Any, /) -> int:
            return super().write(data[:3])

    path = tmp_path / "out.jsonl"
    with LineWriter(cast(BinaryIO, Slow(path, "xb"))) as writer:
        await writer.write(b"a longer line\n")
    assert path.read_bytes() == b"a longer line\n"


def test_created_file_without_a_line_is_removed_after_an_error(tmp_path: Path) -> None:
    """Else the same command, corrected, would be refused because its output exists."""
    path = tmp_path / "out.jsonl"
    with pytest.raises(ZeroDivisionError), LineWriter(create(path), created=path):
        raise ZeroDivisionError
    assert not path.exists()


async def test_file_that_was_there_or_has_a_line_is_never_removed(tmp_path: Path) -> None:
    for created, lines in ((False, 0), (True, 1)):
        path = tmp_path / f"{created}.jsonl"
        with (
            pytest.raises(ZeroDivisionError),
            LineWriter(create(path), created=path if created else None) as writer,
        ):
            for _ in range(lines):
                await writer.write(b"x\n")
            raise ZeroDivisionError
        assert path.exists()


async def test_reader_that_has_gone_is_an_error_here() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with io.FileIO(writing, "wb") as file, LineWriter(cast(BinaryIO, file)) as writer:
        with pytest.raises(BrokenPipeError):
            await writer.write(b"x\n")


@pytest.mark.parametrize("size_bytes", [100, 100_000])
async def test_full_pipe_does_not_stop_other_tasks(size_bytes: int) -> None:
    """A pager that nobody scrolls must not stop the batch's timers."""
    line = b"x" * (size_bytes - 1) + b"\n"
    count = 1_000_000 // size_bytes
    reading, writing = os.pipe()
    received = bytearray()
    with io.FileIO(writing, "wb") as file, LineWriter(cast(BinaryIO, file)) as writer:
        async with trio.lowlevel.FdStream(reading) as stream, trio.open_nursery() as nursery:

            async def write() -> None:
                for _ in range(count):
                    await writer.write(line)
                file.close()

            nursery.start_soon(write)
            # Runs at all only if the full pipe leaves the loop alone.
            async for piece in stream:
                received += piece
    assert received == line * count
