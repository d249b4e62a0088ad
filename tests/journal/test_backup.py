"""A copy of a journal is complete, whenever it is made."""

import os
import sqlite3
import stat
from pathlib import Path

import pytest
import trio

from harness.errors import JournalError, JournalMissingError
from harness.fanout import Ending
from harness.journal import backup_journal, open_journal, read_journal
from harness.journal._batch import JournalBatch


async def record(batch: JournalBatch, key: int) -> None:
    entry = batch.find(key, 0)
    [number] = await batch.begin([entry])
    await batch.end(entry, number, Ending(status="ok", value="1"))


def counts(path: Path) -> object:
    with read_journal(path) as reader:
        return reader.counts("nightly")


@pytest.mark.slow
async def test_a_copy_has_all_that_was_acknowledged(tmp_path: Path) -> None:
    """While the batch goes on, and over checkpoints of its WAL: each copy is of one moment."""
    path = tmp_path / "run.db"
    acknowledged = 0
    missing: list[int] = []
    async with open_journal(path) as journal, trio.open_nursery() as nursery:
        batch = await journal.open_batch("nightly", target="t", settings={})

        async def write() -> None:
            nonlocal acknowledged
            for key in range(600):
                await record(batch, key)
                acknowledged += 1

        nursery.start_soon(write)
        for number in range(5):
            await trio.lowlevel.checkpoint()
            before = acknowledged
            copy = tmp_path / f"{number}.db"
            await trio.to_thread.run_sync(backup_journal, path, copy)
            connection = sqlite3.connect(f"file:{copy}?mode=ro&immutable=1", uri=True)
            query = "SELECT count(*) FROM harness_endings"
            missing.append(max(0, before - connection.execute(query).fetchone()[0]))
            connection.close()
    assert missing == [0] * 5
    assert acknowledged == 600
    names = {f"{number}.db" for number in range(5)} | {"run.db", "run.db-lock"}
    assert set(os.listdir(tmp_path)) == names
    backup_journal(path, tmp_path / "whole.db")
    assert counts(tmp_path / "whole.db") == {"ok": 600}
    # It is a journal like any other, and complete without a second file.
    async with open_journal(tmp_path / "4.db") as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        await record(batch, 10_000)


async def test_a_copy_after_a_crash_has_what_is_in_the_wal(tmp_path: Path) -> None:
    path, killed = tmp_path / "run.db", tmp_path / "killed.db"
    async with open_journal(path) as journal:
        await record(await journal.open_batch("nightly", target="t", settings={}), 0)
        for ending in ("", "-wal"):
            content = (tmp_path / f"run.db{ending}").read_bytes()
            (tmp_path / f"killed.db{ending}").write_bytes(content)
    assert backup_journal(killed, tmp_path / "copy.db") == len((tmp_path / "copy.db").read_bytes())
    assert counts(tmp_path / "copy.db") == {"ok": 1}


async def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """Least of all another journal, or the WAL of one that was moved away."""
    path = tmp_path / "run.db"
    async with open_journal(path) as journal:
        await journal.open_batch("nightly", target="t", settings={})
    for there in ("copy.db", "copy.db-wal", "copy.db-lock"):
        (tmp_path / there).write_text("mine")
        with pytest.raises(JournalError, match=rf"{there}' already exists.*another name"):
            backup_journal(path, tmp_path / "copy.db")
        assert (tmp_path / there).read_text() == "mine"
        (tmp_path / there).unlink()
    (tmp_path / "copy.db").symlink_to("nowhere")
    with pytest.raises(JournalError, match="already exists"):
        backup_journal(path, tmp_path / "copy.db")
    with pytest.raises(JournalError, match="already exists"):
        backup_journal(path, path)
    assert sorted(os.listdir(tmp_path)) == ["copy.db", "run.db", "run.db-lock"]


async def test_a_copy_is_as_private_as_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    async with open_journal(path):
        pass
    path.chmod(0o600)
    backup_journal(path, tmp_path / "copy.db")
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600


async def test_what_cannot_be_copied_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalMissingError, match="there is no journal"):
        backup_journal(tmp_path / "run.db", tmp_path / "copy.db")
    async with open_journal(tmp_path / "run.db"):
        pass
    with pytest.raises(JournalError, match=r"missing.*can't be written \(No such file"):
        backup_journal(tmp_path / "run.db", tmp_path / "missing" / "copy.db")


def test_a_journal_on_a_server_is_left_to_the_server(postgres_path: str, tmp_path: Path) -> None:
    async def make() -> None:
        async with open_journal(postgres_path):
            pass

    trio.run(make)
    with pytest.raises(JournalError, match=r"is on a server.*pg_dump"):
        backup_journal(postgres_path, tmp_path / "copy.db")
