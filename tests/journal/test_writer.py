"""The writer's thread: what it shares, and what becomes of everybody when it fails."""

import queue
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from harness.errors import JournalError
from harness.fanout import Ending
from harness.journal import _writer, open_journal
from harness.journal._backend import Rows
from harness.journal._schema import COLUMNS
from harness.journal._sqlite import SqliteBackend
from tests.scale import PATIENCE_SECONDS


class Disk:
    """Counts the transactions of a journal, and lets a test hold them up or break them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[int] = []
        self.error: Exception | None = None
        self.free = threading.Event()
        self.free.set()
        write = SqliteBackend.write

        def counted(backend: SqliteBackend, rows: Rows) -> None:
            assert self.free.wait(PATIENCE_SECONDS)
            if self.error is not None:
                raise self.error
            self.groups.append(sum(len(values) // len(COLUMNS[to]) for to, values in rows.items()))
            write(backend, rows)

        monkeypatch.setattr(SqliteBackend, "write", counted)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_records_that_come_during_a_commit_share_the_next_one(
    tmp_path: Path, disk: Disk
) -> None:
    """Never a commit per item under load: what makes a hundred writers as fast as one."""
    async with open_journal(tmp_path / "run.db") as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        entries = [batch.find(key, 0) for key in range(101)]
        disk.free.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(batch.begin, entries[:1])
            await wait_all_tasks_blocked(0.01)  # The thread has taken the first, and holds it.
            for entry in entries[1:]:
                nursery.start_soon(batch.begin, [entry])
            await wait_all_tasks_blocked()
            disk.free.set()
    # An item, what it was, and an attempt each.
    assert disk.groups == [3, 300]


@pytest.mark.slow
async def test_one_transaction_has_its_limit(tmp_path: Path, disk: Disk) -> None:
    """Else the first of a million records would wait for the last."""
    async with open_journal(tmp_path / "run.db") as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        disk.free.clear()
        heard: list[BaseException | None] = []
        for key in range(6_000):
            batch.begin_nowait([batch.find(key, 0)], heard.append)
        disk.free.set()
        await batch.flush()
        assert heard == [None] * 6_000
    assert sum(disk.groups) == 18_000
    assert max(disk.groups) < _writer.GROUP_ROWS_AT_MOST + 3


class CountingQueue(queue.SimpleQueue[Any]):
    """Counts how often the thread went to sleep over it."""

    slept = 0

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        CountingQueue.slept += 1
        return super().get(block, timeout)


@pytest.mark.parametrize(("linger_seconds", "stays_awake"), [(60.0, True), (0.0, False)])
async def test_the_thread_stays_awake_only_where_the_next_record_is_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linger_seconds: float, stays_awake: bool
) -> None:
    """To be woken takes a third of what a record does; to stay awake takes a processor."""
    monkeypatch.setattr(_writer, "LINGER_SECONDS", linger_seconds)
    monkeypatch.setattr(queue, "SimpleQueue", CountingQueue)
    monkeypatch.setattr(CountingQueue, "slept", 0)
    async with open_journal(tmp_path / "run.db") as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        for key in range(20):
            await batch.begin([batch.find(key, 0)])
    if stays_awake:
        assert CountingQueue.slept == 1, "only over the first, before it knew how near others are"
    else:
        assert CountingQueue.slept >= 20


async def test_when_the_disk_fails_everybody_hears_of_it(tmp_path: Path, disk: Disk) -> None:
    """Those in the group, those behind it, and those who come later; nobody waits for ever."""
    with pytest.raises(JournalError, match="OSError: the disk is gone"):
        async with open_journal(tmp_path / "run.db") as journal:
            batch = await journal.open_batch("nightly", target="t", settings={})
            entries = [batch.find(key, 0) for key in range(10)]
            [number] = await batch.begin(entries[:1])
            disk.error = OSError("the disk is gone")
            told: list[Exception] = []

            async def begin(key: int) -> None:
                try:
                    await batch.begin([entries[key]])
                except JournalError as error:
                    told.append(error)

            async with trio.open_nursery() as nursery:
                for key in range(1, 10):
                    nursery.start_soon(begin, key)
            assert len({id(error) for error in told}) == 9  # Each has a traceback of its own.
            disk.error = None
            ending = Ending(status="ok", value="1")
            for later in (
                batch.begin(entries[:1]),
                batch.end(entries[0], number, ending),
                batch.totals(),
                batch.flush(),
            ):
                with pytest.raises(JournalError, match="the disk is gone"):
                    await later
            with pytest.raises(JournalError, match="the disk is gone"):
                batch.end_nowait([(entries[0], number, ending)], lambda _: None)
    async with open_journal(tmp_path / "run.db") as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        assert [batch.find(key, 0).state for key in range(2)] == ["in_flight", "new"]


async def test_an_error_of_the_block_is_told_before_that_of_the_disk(
    tmp_path: Path, disk: Disk
) -> None:
    with pytest.raises(KeyError):
        async with open_journal(tmp_path / "run.db") as journal:
            batch = await journal.open_batch("nightly", target="t", settings={})
            disk.error = OSError("the disk is gone")
            batch.begin_nowait([batch.find("a", 0)], lambda _: None)
            raise KeyError("mine")


@pytest.mark.real_clock
async def test_a_disk_that_never_answers_is_not_waited_for_for_ever(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network disk that hangs must not keep a program from ending."""
    monkeypatch.setattr(_writer, "CLOSE_SECONDS_AT_MOST", 0.05)
    with pytest.raises(JournalError, match=r"didn't take the last records .* within 0.05 s"):
        async with open_journal(tmp_path / "run.db") as journal:
            batch = await journal.open_batch("nightly", target="t", settings={})
            disk.free.clear()
            batch.begin_nowait([batch.find("a", 0)], lambda _: None)
    disk.free.set()
    thread = journal._writer._thread
    await trio.to_thread.run_sync(thread.join, 60)
    assert not thread.is_alive()


async def test_a_cancelled_wait_leaves_the_record(
    tmp_path: Path, disk: Disk, autojump_clock: MockClock
) -> None:
    """It is too late to take it back; only the wait ends."""
    async with open_journal(tmp_path / "run.db") as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        entry = batch.find("a", 0)
        disk.free.clear()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(batch.begin, [entry])
                await wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        assert disk.groups == []
        disk.free.set()
    assert disk.groups == [3]


async def test_nan_costs_nobody_the_journal(tmp_path: Path) -> None:
    """A database has no nan, and would refuse the whole group for it."""
    async with open_journal(tmp_path / "run.db") as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        entry = batch.find("a", 0)
        [number] = await batch.begin([entry])
        await batch.end(entry, number, Ending(status="ok", value="1", cost_usd=float("nan")))
        assert (await batch.totals()).cost_usd == 0.0


def test_trio_that_ends_without_the_block_leaves_what_was_acknowledged(tmp_path: Path) -> None:
    """A generator that is dropped: its block never ends, and its thread has nobody to tell."""
    kept: list[Any] = []

    async def main() -> None:
        context = open_journal(tmp_path / "run.db")
        journal = await context.__aenter__()
        kept.append((context, journal))
        batch = await journal.open_batch("nightly", target="t", settings={})
        await batch.begin([batch.find("a", 0)])
        batch.begin_nowait([batch.find("b", 0)], lambda _: None)

    trio.run(main)
    [(_, journal)] = kept
    journal._writer._queue.put(None)  # As at the end of a process: nobody waits for the thread.
    journal._writer._thread.join(PATIENCE_SECONDS)

    async def again() -> int:
        async with open_journal(tmp_path / "run.db") as journal:
            return (await journal.open_batch("nightly", target="t", settings={})).items

    assert trio.run(again) >= 1
