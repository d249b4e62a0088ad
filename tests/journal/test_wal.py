"""The WAL of a journal is given its length early, and that is all that happens to it."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from harness.fanout import Ending
from harness.journal import _wal, open_journal
from harness.journal._sqlite import PAGES_PER_CHECKPOINT

GROWN_BYTES = PAGES_PER_CHECKPOINT * _wal.PAGE_BYTES


def wal_length(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


async def commits(path: Path, count: int) -> list[int]:
    """Make so many commits after opening, and return the length of the WAL after each."""
    lengths: list[int] = []
    async with open_journal(path) as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        entry = batch.find("a", 0)
        for number in range(count):
            [attempt] = await batch.begin([entry])
            await batch.end(entry, attempt, Ending(status="ok", value=str(number)))
            lengths.append(wal_length(path))
    return lengths


@pytest.mark.slow
async def test_after_some_commits_the_wal_has_the_length_that_it_will_have(tmp_path: Path) -> None:
    """From then on it doesn't grow, also not at the checkpoints that come."""
    count = _wal.GROWN_AFTER_COMMITS // 2 + PAGES_PER_CHECKPOINT
    lengths = await commits(tmp_path / "run.db", count)
    grown = [length for length in lengths if length >= GROWN_BYTES]
    assert len(grown) >= count - _wal.GROWN_AFTER_COMMITS // 2
    assert len(set(grown)) == 1
    assert lengths[0] < GROWN_BYTES // 10, "a small journal pays nothing"


async def test_what_grew_it_leaves_nothing_in_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    await commits(path, _wal.GROWN_AFTER_COMMITS + 10)
    assert path.stat().st_size < GROWN_BYTES // 10
    connection = sqlite3.connect(path)
    try:
        tables = {name for [name] in connection.execute("SELECT name FROM sqlite_master")}
        assert "harness_spilled" not in tables
        [count] = connection.execute("SELECT count(*) FROM harness_endings").fetchone()
        assert count == _wal.GROWN_AFTER_COMMITS + 10
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        connection.close()


async def test_on_a_disk_with_little_room_it_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = _wal.FREE_BYTES_AT_LEAST - 1
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    lengths = await commits(tmp_path / "run.db", _wal.GROWN_AFTER_COMMITS)
    assert max(lengths) < GROWN_BYTES


class Refusing:
    """A connection on which one kind of statement fails."""

    def __init__(self, connection: sqlite3.Connection, start: str) -> None:
        self.connection = connection
        self.start = start

    def execute(self, statement: str, *arguments: Any) -> Any:
        if statement.startswith(self.start):
            raise sqlite3.OperationalError("no")
        return self.connection.execute(statement, *arguments)


@pytest.mark.parametrize("start", ["BEGIN", "CREATE", "INSERT", "PRAGMA"])
def test_if_it_cannot_grow_nothing_is_lost_but_time(tmp_path: Path, start: str) -> None:
    """The connection is as it was: in no transaction, with the cache that it had."""
    path = tmp_path / "run.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA cache_size=-16384")
    refusing: Any = Refusing(connection, start)
    _wal.grow_wal(refusing, str(path), pages=PAGES_PER_CHECKPOINT)
    assert not connection.in_transaction
    assert connection.execute("PRAGMA cache_size").fetchone() == (-16384,)
    connection.execute("CREATE TABLE there (number INTEGER)")
    connection.close()
