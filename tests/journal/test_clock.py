"""What a journal says doesn't depend on the order of what clocks on walls said."""

import time

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.fanout import Ending, Results
from harness.journal import open_journal, read_journal

DAY = 86_400.0


class Wall:
    """The clock of a machine, which somebody sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + self.ahead)


async def work(item: str) -> str:
    if item == "bad":
        raise ValueError("bad")
    return item


async def session(path: str, *items: str) -> Results[str]:
    async with open_journal(path) as journal:
        return await harness.fan_out(
            work, items, journal=journal, key=str, name="b", policy=harness.BestEffort()
        )


async def test_what_an_earlier_session_recorded_ended_before_this_one(
    journal_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine's clock was a day ahead. Seen first as a failure that was kept, and counted as
    one of tonight's."""
    wall = Wall(monkeypatch)
    wall.ahead = DAY
    await session(journal_path, "a", "bad")
    wall.ahead = 0.0
    started_at = trio.current_time()
    kept = await session(journal_path, "a", "bad", "new")
    assert [result.run_id is None for result in kept] == [True, True, False]
    assert all(result.ended_at <= trio.current_time() for result in kept)
    assert all(result.started_at <= result.ended_at for result in kept)
    new = kept[2]
    assert started_at <= new.started_at <= new.ended_at


async def test_the_last_session_is_the_one_that_came_last(
    journal_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = Wall(monkeypatch)
    wall.ahead = DAY
    await session(journal_path, "a")
    wall.ahead = 0.0
    before = time.time()
    await session(journal_path, "b")
    with read_journal(journal_path) as reader:
        [batch] = reader.batches()
        assert before <= batch.last_session_at <= time.time()
        assert batch.created_at > batch.last_session_at
        assert batch.sessions == 2


@pytest.mark.parametrize("by", [DAY, -DAY])
async def test_a_clock_that_is_set_meanwhile_adds_no_time(
    journal_path: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, by: float
) -> None:
    """Backwards, a session took less than nothing, and took that off the others too."""
    wall = Wall(monkeypatch)
    async with open_journal(journal_path) as journal:
        batch = await journal.open_batch("b", target="t", settings={})
        entry = batch.find("a", 0)
        [number] = await batch.begin([entry])
        wall.ahead = by
        await batch.end(entry, number, Ending(status="ok", value="1"))
        totals = await batch.totals()
        assert 0 <= totals.seconds < 60
        entry = batch.find("b", 0)
        [number] = await batch.begin([entry])
        await batch.end(entry, number, Ending(status="ok", value="1"))
        [stored] = await batch.read([entry])
        assert 0 <= stored.ended_at - stored.started_at < 60
