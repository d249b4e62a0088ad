"""Lines in the right order, whatever comes in between."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from harness.cli._result_lines import ResultLines
from harness.cli._writer import LineWriter
from tests.cli.test_writer import FullDisk, create


async def test_new_lines_are_held_until_the_last_kept_one(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with LineWriter(create(path)) as writer:
        lines = ResultLines(writer, folder=tmp_path)
        lines.expect(2)
        await lines.write(b"new 1\n", is_kept=False)
        await lines.write(b"kept 1\n", is_kept=True)
        await lines.write(b"new 2\n", is_kept=False)
        assert path.read_bytes() == b"kept 1\n"
        assert os.listdir(tmp_path) == ["out.jsonl"], "what is held has no name to be left behind"
        await lines.write(b"kept 2\n", is_kept=True)
        assert path.read_bytes() == b"kept 1\nkept 2\nnew 1\nnew 2\n"
        await lines.write(b"new 3\n", is_kept=False)
        assert path.read_bytes().endswith(b"new 3\n"), "no more than it must be"
        assert lines.kept_missing == 0
        lines.close()


async def test_what_is_held_in_the_end_is_written(tmp_path: Path) -> None:
    """Some that the journal has are gone from the input."""
    path = tmp_path / "out.jsonl"
    with LineWriter(create(path)) as writer:
        lines = ResultLines(writer)
        lines.expect(2)
        held = [b"new %d\n" % number for number in range(1_000)]
        for line in held:
            await lines.write(line, is_kept=False)
        await lines.write(b"kept\n", is_kept=True)
        await lines.release()
        assert path.read_bytes() == b"".join([b"kept\n", *held])
        assert lines.kept_missing == 1
        await lines.release()
        lines.close()


async def test_lines_without_an_order_are_written_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with LineWriter(create(path)) as writer:
        lines = ResultLines(writer, kept_first=False)
        lines.expect(1)
        await lines.write(b"new\n", is_kept=False)
        await lines.write(b"kept\n", is_kept=True)
        assert path.read_bytes() == b"new\nkept\n"
        assert lines.kept_missing == 0


async def test_a_full_disk_takes_whole_lines_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.TemporaryFile

    def full(**given: Any) -> Any:
        with make(**given) as file:
            disk = FullDisk(os.dup(file.fileno()), "rb+")
        disk.room_bytes = 8
        return disk

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    path = tmp_path / "out.jsonl"
    with LineWriter(create(path)) as writer:
        lines = ResultLines(writer, folder=tmp_path)
        lines.expect(1)
        await lines.write(b"new 1\n", is_kept=False)
        with pytest.raises(OSError, match="No space"):
            await lines.write(b"new 2\n", is_kept=False)
        await lines.release()
        assert path.read_bytes() == b"new 1\n"
        lines.close()
