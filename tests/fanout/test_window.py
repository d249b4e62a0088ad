"""In flight plus unread results never exceed the window: a slow reader slows the source."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from tests.fanout.probes import AsyncSource, Source, echo, nap, nothing_left_behind


@pytest.mark.parametrize("source", [Source, AsyncSource], ids=["iterator", "async iterator"])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("limit", "window"), [(1, 1), (1, 5), (4, 4), (4, 9), (10, 3)])
async def test_what_is_pulled_and_not_read_never_exceeds_the_window(
    autojump_clock: MockClock, source: Any, ordered: bool, limit: int, window: int
) -> None:
    items, read, most = source(60), 0, 0

    async def body(item: int) -> int:
        nonlocal most
        most = max(most, items.pulled - read)
        await trio.sleep(item % 4)
        most = max(most, items.pulled - read)
        return item

    with nothing_left_behind():
        async with harness.open_fan_out(
            body, items, limit=limit, window=window, ordered=ordered
        ) as stream:
            indexes = []
            async for result in stream:
                # It counts as read from now on; what its place lets in is seen at the next step.
                read += 1
                indexes.append(result.index)
                await trio.sleep(result.index % 3)
    assert sorted(indexes) == list(range(60))
    if ordered:
        assert indexes == sorted(indexes)
    assert most <= window


@pytest.mark.parametrize("source", [Source, AsyncSource], ids=["iterator", "async iterator"])
async def test_without_a_reader_the_window_fills_and_nothing_more_is_pulled(
    autojump_clock: MockClock, source: Any
) -> None:
    items = source()
    with nothing_left_behind():
        async with harness.open_fan_out(echo, items, limit=5, window=12):
            await trio.sleep(100)
            assert items.pulled == 12


async def test_the_default_window_is_twice_the_limit(autojump_clock: MockClock) -> None:
    items = Source()
    async with harness.open_fan_out(echo, items, limit=7):
        await trio.sleep(100)
        assert items.pulled == 14


async def test_each_read_makes_room_for_one(autojump_clock: MockClock) -> None:
    items = Source()
    async with harness.open_fan_out(echo, items, limit=2, window=4) as stream:
        for read in range(5):
            await trio.sleep(10)
            assert items.pulled == 4 + read
            await stream.__anext__()


async def test_an_ordered_stream_waits_for_its_head_with_a_full_window(
    autojump_clock: MockClock,
) -> None:
    """The results behind a slow first item count as unread, or they would pile up without end."""
    items = Source(100)
    async with harness.open_fan_out(
        lambda item: nap(50 if item == 0 else 1), items, limit=3, window=10, ordered=True
    ) as stream:
        await trio.sleep(40)
        assert items.pulled == 10
        assert [result.index async for result in stream] == list(range(100))


async def test_a_window_of_one_still_ends(autojump_clock: MockClock) -> None:
    for ordered in (False, True):
        async with harness.open_fan_out(
            echo, range(20), limit=1, window=1, ordered=ordered
        ) as stream:
            assert [result.index async for result in stream] == list(range(20))
