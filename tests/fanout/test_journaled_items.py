"""What items a journaled fan-out takes: their keys, values, sources and order."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.errors import (
    FanOutError,
    JournalKeyError,
    JournalValueError,
)
from tests.fanout.journaled import Body, key_of, run
from tests.fanout.probes import Boom
from tests.support.memory_journal import MemoryJournal

# Keys and values ----------------------------------------------------------------------------------


async def test_a_journal_needs_keys() -> None:
    journal: Any = MemoryJournal()
    with pytest.raises(TypeError, match=r"needs key=: an item is found again by its key"):
        await harness.fan_out(Body(), [1], journal=journal)
    with pytest.raises(TypeError, match=r"needs key="):
        harness.open_fan_out(Body(), [1], journal=journal)
    with pytest.raises(TypeError, match=r"takes an open journal, not 'run.db'"):
        await harness.fan_out(Body(), [1], journal="run.db", key=key_of)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [None, "", 1.5, True, "k0"], ids=repr)
async def test_a_key_that_names_no_item_is_refused(autojump_clock: MockClock, key: Any) -> None:
    """Not as the failure of that item: it could never be found again to be retried."""
    body = Body()
    keys = ["k0", key, "k2"]
    with pytest.raises(JournalKeyError):
        await harness.fan_out(
            body, range(3), journal=MemoryJournal(), key=lambda item: keys[item], limit=1
        )


async def test_a_key_function_that_raises_ends_the_fan_out(autojump_clock: MockClock) -> None:
    journal = MemoryJournal()
    with pytest.raises(JournalKeyError, match=r"key= raised KeyError\('id'\)"):
        items: list[dict[str, str]] = [{}]
        await harness.fan_out(Body(), items, journal=journal, key=lambda item: item["id"])


async def test_a_value_without_json_fails_its_item_and_is_not_tried_again(
    autojump_clock: MockClock,
) -> None:
    calls = 0

    async def body(item: int) -> Any:
        nonlocal calls
        calls += 1
        await trio.sleep(1)
        return object() if item == 1 else item

    each = harness.Attempt(retry=harness.Retry(5))
    journal = MemoryJournal()
    results = await run(journal, body, range(3), each=each)
    assert [one.status for one in results] == ["ok", "failed", "ok"]
    assert isinstance(results[1].error, JournalValueError)
    assert calls == 3
    assert journal.unended() == []


async def test_a_fallback_may_stand_in_for_a_value_without_json(autojump_clock: MockClock) -> None:
    async def body(item: int) -> Any:
        return object()

    journal = MemoryJournal()
    each = harness.Attempt(fallback=lambda item, error: (item, "guess"))
    [result] = await run(journal, body, [1], each=each)
    assert (result.value, result.degraded) == ([1, "guess"], True)
    [kept] = await run(journal, body, [1], each=each)
    assert (kept.value, kept.degraded, kept.attempts) == ([1, "guess"], True, 1)

    each = harness.Attempt(fallback=lambda item, error: object())
    [result] = await run(MemoryJournal(), body, [1], each=each)
    assert (result.status, result.degraded) == ("failed", False)
    assert isinstance(result.error, JournalValueError)


async def test_a_function_that_is_not_async_is_nothing_to_keep(autojump_clock: MockClock) -> None:
    journal = MemoryJournal()

    def plain(item: int) -> Any:
        return item

    with pytest.raises(TypeError, match="where an awaitable was expected"):
        await run(journal, plain, range(3))
    assert not any(status in ("ok", "failed") for status, _ in journal.log)


# Sources, order, ends -----------------------------------------------------------------------------


async def test_async_sources_are_read_and_closed(autojump_clock: MockClock) -> None:
    journal, body, closed = MemoryJournal(), Body(), 0

    async def numbers(count: int) -> AsyncGenerator[int]:
        nonlocal closed
        try:
            for number in range(count):
                await trio.sleep(0.1)
                yield number
        finally:
            closed += 1

    await run(journal, body, numbers(5))
    results = await run(journal, body, numbers(9))
    assert results.complete
    assert body.ran == list(range(9))
    assert closed == 2


async def test_results_are_read_while_an_async_source_gives_more(
    autojump_clock: MockClock,
) -> None:
    """Seen as a crash of a killed batch's next session: the list that was being read had grown."""
    journal, body = MemoryJournal(), Body()

    async def numbers() -> AsyncGenerator[int]:
        for number in range(300):
            await trio.lowlevel.checkpoint()
            yield number

    await run(journal, Body(seconds=0), range(300))
    results = await run(journal, body, numbers(), limit=50)
    assert [result.item for result in results] == list(range(300))
    assert results.complete
    assert body.ran == []


async def test_a_source_that_breaks_is_told_in_its_turn(autojump_clock: MockClock) -> None:
    journal, body = MemoryJournal(), Body()

    def numbers() -> Iterator[int]:
        yield from range(6)
        raise OSError("the network is gone")

    with pytest.raises(FanOutError, match="could not be read beyond the first 6") as caught:
        await run(journal, body, numbers(), limit=2)
    assert sorted(body.ran) == list(range(6)), "what was read before it is still run"
    assert isinstance(caught.value.exceptions[0], OSError)


async def test_at_most_the_limit_runs_and_few_are_pulled(autojump_clock: MockClock) -> None:
    journal, body, pulled = MemoryJournal(), Body(), 0

    def numbers() -> Iterator[int]:
        nonlocal pulled
        for number in range(10_000):
            pulled += 1
            yield number

    async with harness.open_fan_out(
        body, numbers(), journal=journal, key=key_of, limit=3, window=7
    ) as stream:
        await trio.sleep(20)
        assert len(body.ran) <= 7
        assert pulled <= 14, "the window, and as many ahead"
        await anext(stream)
        await trio.sleep(20)
        assert len(body.ran) <= 8
        assert max(body.beside.values()) == 2


async def test_a_stop_lets_what_is_in_flight_end_and_keeps_it(autojump_clock: MockClock) -> None:
    journal, body = MemoryJournal(), Body()
    async with harness.open_fan_out(
        body, range(50), journal=journal, key=key_of, limit=4
    ) as stream:
        await trio.sleep(1.5)
        stream.run.stop("tea time")
        got = [result async for result in stream]
    assert sorted(result.item for result in got if result.ok) == list(range(8))
    assert {result.status for result in got} == {"ok", "skipped"}
    assert sum(status == "ok" for status, _ in journal.log) == 8
    assert journal.unended() == []


@pytest.mark.parametrize("within", [None, 5.0])
async def test_an_item_that_a_retry_was_owed_to_is_not_done(
    autojump_clock: MockClock, within: float | None
) -> None:
    """Stopped before its retry, or too late for it. Else the journal would keep a failure that an
    unbroken batch would not have had."""
    journal, calls = MemoryJournal(), 0

    async def body(item: int) -> int:
        nonlocal calls
        calls += 1
        await trio.sleep(1)
        if calls == 1:
            raise Boom(item)
        return item

    each = harness.Attempt(retry=harness.Retry(2, first_delay=10, jitter=0))
    async with harness.open_run("outer") as outer, trio.open_nursery() as nursery:
        if within is None:

            async def stop() -> None:
                await trio.sleep(3)
                outer.stop()

            nursery.start_soon(stop)
        [first] = await run(journal, body, [7], each=each, within=within)
    assert (first.status, first.attempts) == ("cancelled" if within is None else "failed", 1)
    assert isinstance(first.error.__cause__ if within is None else first.error, Boom)
    [second] = await run(journal, body, [7], each=each)
    assert (second.status, second.attempts) == ("ok", 2)
    assert journal.unended() == []


async def test_priorities_hold_among_what_is_looked_ahead(autojump_clock: MockClock) -> None:
    journal, body = MemoryJournal(), Body()
    await run(journal, Body(), range(0, 20, 2))
    results = await run(journal, body, range(20), priority=lambda item: item, limit=1)
    assert results.complete
    assert body.ran == sorted(range(1, 20, 2), reverse=True)

    def broken(item: int) -> float:
        if item == 3:
            raise Boom(item)
        return item

    results = await run(MemoryJournal(), body, range(5), priority=broken)
    assert [one.item for one in results.failed] == [3]


@pytest.mark.parametrize("window", [1, 3, 12])
async def test_with_priorities_the_window_bounds_what_is_read_ahead(
    autojump_clock: MockClock, window: int
) -> None:
    """As without a journal: a small window is for items that are large."""
    pulled = 0
    read = 0

    def items() -> Iterator[int]:
        nonlocal pulled
        for number in range(100):
            pulled += 1
            assert pulled - read <= window + 1, "one is in the reader's hands"
            yield number

    async with harness.open_fan_out(
        Body(),
        items(),
        journal=MemoryJournal(),
        key=key_of,
        priority=harness.policies.Priority(lambda item: item, lookahead=50),
        window=window,
        limit=2,
    ) as stream:
        async for _ in stream:
            read += 1
            await trio.sleep(10)
    assert read == 100


async def test_nothing_is_started_in_a_run_that_was_stopped_before(
    autojump_clock: MockClock,
) -> None:
    journal, body = MemoryJournal(), Body()
    async with harness.open_run("nightly") as outer:
        outer.stop()
        results = await run(journal, body, range(5))
    assert {one.status for one in results} == {"skipped"}
    assert journal.begun == []


async def test_a_crash_of_the_function_leaves_the_rest_resumable(autojump_clock: MockClock) -> None:
    """SystemExit passes, and what was in flight beside it is given back."""
    journal = MemoryJournal()

    async def body(item: int) -> int:
        await trio.sleep(1 + item % 4)
        if item == 2:
            raise SystemExit(3)
        return item

    with pytest.raises(SystemExit):
        await run(journal, body, range(8))
    assert len(journal.unended()) == 1, "only of the item that ended the process"
    await wait_all_tasks_blocked()


@pytest.mark.slow
def test_a_program_without_a_journal_loads_none_of_it() -> None:
    names = "[name for name in sys.modules for part in ('journal', 'sqlite', '_recorded') "
    names += "if part in name]"
    code = "import sys, trio, harness.flow; trio.run(harness.flow.Pipeline(trio.sleep).run, [0])\n"
    code += f"loaded = {names}; assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True)
