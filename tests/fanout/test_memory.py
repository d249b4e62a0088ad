"""A stream of any length needs memory for its window only."""

import gc
import tracemalloc
import weakref
from collections.abc import Generator

import pytest
import trio
from trio.testing import MockClock

import harness
from tests.fanout.probes import Boom, Source
from tests.scale import scaled

MANY = scaled(3_000, full=100_000)


class Item:
    """An item whose life can be watched."""

    def __init__(self, number: int) -> None:
        """Make the item of this number."""
        self.number = number


@pytest.mark.long
@pytest.mark.parametrize("ordered", [False, True])
async def test_items_and_results_that_were_read_are_freed(
    autojump_clock: MockClock, ordered: bool
) -> None:
    alive: weakref.WeakSet[Item] = weakref.WeakSet()

    def items() -> Generator[Item]:
        for number in range(800):
            item = Item(number)
            alive.add(item)
            yield item

    async def body(item: Item) -> Item:
        await trio.sleep(item.number % 3)
        return item

    most = 0
    gc.collect()
    async with harness.open_fan_out(
        body, items(), limit=10, window=20, ordered=ordered, key=lambda item: item.number
    ) as stream:
        async for result in stream:
            if result.index % 100 == 50:
                gc.collect()
                most = max(most, len(alive))
    assert most <= 20 + 5


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("failing", [False, True])
async def test_a_long_stream_needs_flat_memory(autojump_clock: MockClock, failing: bool) -> None:
    async def body(item: int) -> int:
        await trio.lowlevel.checkpoint()
        if failing and item % 2:
            raise Boom
        return item

    sizes: list[int] = []
    tracemalloc.start()
    try:
        async with harness.open_fan_out(
            body, Source(MANY), limit=20, policy=harness.BestEffort()
        ) as stream:
            async for result in stream:
                if result.index % (MANY // 6) == MANY // 12:
                    gc.collect()
                    sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(sizes) == 6
    # How full the window is at a sample varies by less than this; results that stay would take
    # more than twice as much.
    assert sizes[-1] - sizes[1] < 150_000


@pytest.mark.slow
async def test_nothing_of_a_fan_out_is_held_after_its_block(autojump_clock: MockClock) -> None:
    """Not by the context either, in which a finished item started the next."""
    watched: list[weakref.ref[Item]] = []

    async def body(item: Item) -> None:
        watched.append(weakref.ref(item))
        await trio.sleep(1)

    async with harness.open_fan_out(body, map(Item, range(10)), limit=3) as stream:
        async for _ in stream:
            pass
    del _
    gc.collect()
    assert len(stream.results) == 0
    assert [ref for ref in watched if ref() is not None] == []
