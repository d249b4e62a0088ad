"""At most ``limit`` items are in flight, each pulled when there is room and not before."""

import gc
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from tests.fanout.probes import (
    AsyncSource,
    Flight,
    Source,
    echo,
    living_tasks,
    nap,
    nothing_left_behind,
)
from tests.scale import scaled

MANY = scaled(10_000, full=1_000_000)
EXTRA_TASKS = 3
"""What a fan-out may need beside a task per item: the reader of the source, a timer."""


@pytest.mark.parametrize("limit", [1, 3, 50])
@pytest.mark.parametrize("source", [Source, AsyncSource], ids=["iterator", "async iterator"])
async def test_the_limit_is_reached_and_never_passed(
    autojump_clock: MockClock, source: Any, limit: int
) -> None:
    flight = Flight(lambda item: nap(1 + item % 3))
    await harness.fan_out(flight, source(200), limit=limit)
    assert flight.peak == limit


async def test_the_default_limit_is_one_hundred(autojump_clock: MockClock) -> None:
    flight = Flight(lambda item: nap(1))
    await harness.fan_out(flight, range(250))
    assert flight.peak == 100


async def test_a_limit_of_one_runs_one_after_the_other(autojump_clock: MockClock) -> None:
    flight = Flight(lambda item: nap(1))
    begin = trio.current_time()
    await harness.fan_out(flight, range(5), limit=1)
    assert flight.started == flight.ended == [0, 1, 2, 3, 4]
    assert trio.current_time() - begin == 5


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_million_inputs_need_no_more_than_limit_tasks(autojump_clock: MockClock) -> None:
    """Starting everything first is the most reported fault of this kind of library."""
    before, peak = living_tasks(), 0

    async def body(item: int) -> int:
        nonlocal peak
        await trio.lowlevel.checkpoint()
        if item % 7 == 0:
            peak = max(peak, living_tasks() - before)
        return item

    with nothing_left_behind():
        total = 0
        async with harness.open_fan_out(body, iter(range(MANY)), limit=50) as stream:
            async for _ in stream:
                total += 1
    assert total == MANY
    assert 50 <= peak <= 50 + EXTRA_TASKS


@pytest.mark.parametrize("limit", [1, 4])
@pytest.mark.parametrize("source", [Source, AsyncSource], ids=["iterator", "async iterator"])
async def test_an_item_is_pulled_only_when_there_is_room_for_it(
    autojump_clock: MockClock, source: Any, limit: int
) -> None:
    items = source(40)
    ahead: list[int] = []

    @attrs.define(eq=False)
    class Body:
        ended: int = 0

        async def __call__(self, item: int) -> None:
            ahead.append(items.pulled - self.ended)
            await trio.sleep(1 + item % 2)
            ahead.append(items.pulled - self.ended)
            self.ended += 1

    await harness.fan_out(Body(), items, limit=limit)
    assert max(ahead) <= limit


async def test_the_next_item_starts_when_any_ends(autojump_clock: MockClock) -> None:
    """In waves the long first item would hold back all others: 10 + 10 seconds instead of 10."""
    starts: list[float] = []
    begin = trio.current_time()

    async def body(seconds: float) -> None:
        starts.append(trio.current_time() - begin)
        await trio.sleep(seconds)

    await harness.fan_out(body, [10, 1, 2, 3, 4], limit=2)
    assert starts == [0, 0, 1, 3, 6]
    assert trio.current_time() - begin == 10


async def test_a_slot_is_taken_again_at_the_same_instant(autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    await harness.fan_out(nap, [1.0] * 1_000, limit=100)
    assert trio.current_time() - begin == 10


async def test_failed_items_free_their_slots_as_others_do(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        await trio.sleep(1)
        raise ValueError(item)

    flight = Flight(body)
    begin = trio.current_time()
    results = await harness.fan_out(flight, range(30), limit=3, policy=harness.BestEffort())
    assert len(results.failed) == 30
    assert flight.peak == 3
    assert trio.current_time() - begin == 10


@pytest.mark.slow
async def test_a_body_without_checkpoints_can_neither_overflow_the_stack_nor_starve_others(
    autojump_clock: MockClock,
) -> None:
    """A finished item starts the next one: as a call inside a call this would be a recursion."""

    async def body(item: int) -> int:
        return item

    ticks = 0

    async def other() -> None:
        nonlocal ticks
        while True:
            await trio.lowlevel.checkpoint()
            ticks += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        results = await harness.fan_out(body, range(5_000), limit=2)
        nursery.cancel_scope.cancel()
    assert len(results.values()) == 5_000
    assert ticks > 100


async def test_a_fan_out_inside_a_fan_out_keeps_both_limits(autojump_clock: MockClock) -> None:
    inner = Flight(lambda item: nap(1))

    async def outer(item: int) -> int:
        results = await harness.fan_out(inner, range(6), limit=3)
        return sum(results.values())

    with nothing_left_behind():
        results = await harness.fan_out(outer, range(4), limit=2)
    assert list(results.values()) == [6] * 4
    assert inner.peak == 6


@pytest.mark.slow
async def test_garbage_collection_takes_no_running_item(autojump_clock: MockClock) -> None:
    async def body(item: int) -> int:
        await trio.sleep(1)
        gc.collect()
        return int(await echo(item))

    assert list((await harness.fan_out(body, range(4), limit=2)).values()) == list(range(4))
