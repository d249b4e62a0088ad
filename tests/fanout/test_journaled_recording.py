"""When and how a journaled fan-out records, which is by many at a time and never too late."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from harness.fanout import _waiting_room
from tests.fanout.probes import Boom
from tests.support.memory_journal import MemoryBatch, MemoryJournal


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return what was recorded, as the name of the call and how many it was for."""
    made: list[tuple[str, int]] = []

    def counted(name: str) -> None:
        original = getattr(MemoryBatch, name)

        def call(self: MemoryBatch, many: Sequence[Any], *given: Any, **options: Any) -> Any:
            made.append((name, len(many)))
            return original(self, many, *given, **options)

        monkeypatch.setattr(MemoryBatch, name, call)

    counted("begin_nowait")
    counted("end_nowait")
    return made


async def run(journal: MemoryJournal, body: Any, items: Any, **options: Any) -> Any:
    return await harness.fan_out(body, items, journal=journal, key=str, **options)


async def test_items_that_end_in_one_step_are_recorded_together(
    autojump_clock: MockClock, calls: list[tuple[str, int]]
) -> None:
    """At a thousand items a second, a record for each would cost as much as the items do."""

    async def body(item: int) -> int:
        await trio.sleep(1)
        return item

    results = await run(MemoryJournal(), body, range(50), limit=50)
    assert results.values() == list(range(50))
    assert calls == [("begin_nowait", 50), ("end_nowait", 50)]


async def test_the_free_slots_are_begun_before_more_items_are_read(
    autojump_clock: MockClock, calls: list[tuple[str, int]]
) -> None:
    """The first items wait for no look-up but their own: there are hundreds of them ahead."""
    read: list[int] = []
    read_at_begin: list[int] = []

    def items() -> Any:
        for number in range(100):
            read.append(number)
            if calls and not read_at_begin:
                read_at_begin.append(number)
            yield number

    async def body(item: int) -> int:
        await trio.sleep(1)
        return item

    await run(MemoryJournal(), body, items(), limit=5)
    assert calls[0] == ("begin_nowait", 5)
    assert read_at_begin == [5]


async def test_items_that_follow_others_begin_before_the_books_are_kept(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred short items that end together would else all wait for the look-up of a hundred."""
    monkeypatch.setattr(_waiting_room, "WORTH_BEGINNING_AHEAD", 0.0)
    monkeypatch.setattr(_waiting_room, "RECORDS_AHEAD", 1e9)
    log: list[str] = []

    def items() -> Any:
        for number in range(300):
            log.append("read")
            yield number

    async def body(item: int) -> int:
        log.append("began")
        await trio.sleep(1)
        log.append("ended")
        return item

    await run(MemoryJournal(), body, items(), limit=10)
    waves = "".join(word[0] for word in log).split("e" * 10)
    assert len(waves) == 31
    # Before the first has ended nothing says that items are short; after the last, nothing follows.
    assert all(wave.startswith("b" * 10) for wave in waves[2:-1])


async def test_what_ends_during_the_cleanup_after_a_cut_is_recorded_at_once(
    autojump_clock: MockClock,
) -> None:
    """The clerk is gone then. A process that is killed in these seconds loses nothing."""
    journal = MemoryJournal()
    seen: list[Any] = []

    async def body(item: int) -> int:
        if item == 0:
            await trio.sleep(1)
            raise Boom(item)
        with trio.CancelScope(shield=True):
            await trio.sleep(1 + item)
        if item == 2:
            seen.extend(journal.log)
        return item

    with pytest.raises(FanOutError):
        await run(journal, body, range(3), limit=3)
    ended = [key for what, key in seen if what != "begun"]
    assert ended == ["0", "1"]
    assert journal.unended() == []


async def test_a_retry_is_recorded_after_the_attempt_before(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order in which it took place, also while the clerk waits for what it reads."""
    journal = MemoryJournal()
    tried: list[int] = []
    read = MemoryBatch.read

    async def read_slowly(self: MemoryBatch, entries: Sequence[Any]) -> Any:
        await trio.sleep(10)
        return await read(self, entries)

    monkeypatch.setattr(MemoryBatch, "read", read_slowly)

    async def body(item: int) -> int:
        tried.append(item)
        if tried == [0, 7]:
            await trio.sleep(2)
            raise Boom(item)
        return item

    async def items() -> AsyncGenerator[int]:
        yield 7
        await trio.sleep(1)
        yield 0

    await run(journal, body, [0], limit=1)
    journal.log.clear()
    each = harness.Attempt(retry=harness.Retry(2, first_delay=0))
    results = await run(journal, body, items(), limit=2, each=each)
    assert [(one.value, one.attempts) for one in results] == [(7, 2), (0, 1)]
    assert journal.log == [("begun", "7"), ("failed", "7"), ("begun", "7"), ("ok", "7")]
