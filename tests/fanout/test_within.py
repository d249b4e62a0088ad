"""``within`` ends the whole at a time, with what is there."""

import math

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, RunCancelled
from tests.fanout.probes import Boom, Flight, Source, nap, nothing_left_behind, statuses


@pytest.mark.parametrize("policy", [harness.FailFast(), harness.BestEffort()])
async def test_within_returns_what_is_there_at_that_instant(
    autojump_clock: MockClock, policy: harness.FailFast | harness.BestEffort
) -> None:
    """What it cuts is cancelled, which no policy takes for a failure."""
    begin = trio.current_time()
    with nothing_left_behind():
        results = await harness.fan_out(nap, [1, 9, 2, 9, 9], policy=policy, limit=3, within=5)
    assert trio.current_time() - begin == 5
    assert statuses(results) == ["ok", "cancelled", "ok", "cancelled", "cancelled"]
    assert isinstance(results[1].error, RunCancelled)


async def test_what_within_left_unstarted_is_skipped(autojump_clock: MockClock) -> None:
    results = await harness.fan_out(nap, [9, 9, 9, 9], limit=2, within=5)
    assert statuses(results) == ["cancelled", "cancelled", "skipped", "skipped"]


async def test_within_of_an_endless_source(autojump_clock: MockClock) -> None:
    source = Source()
    with nothing_left_behind():
        results = await harness.fan_out(lambda _: nap(1), source, limit=10, within=10.5)
    assert len(results) == source.pulled == 110
    assert statuses(results) == ["ok"] * 100 + ["cancelled"] * 10


async def test_a_failure_before_within_still_raises(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        await trio.sleep(item)
        raise Boom(item)

    with pytest.raises(FanOutError):
        await harness.fan_out(body, [1, 9], within=5)


async def test_a_fan_out_that_is_done_before_does_not_wait_for_within(
    autojump_clock: MockClock,
) -> None:
    begin = trio.current_time()
    results = await harness.fan_out(nap, [1, 2], within=50)
    assert results.complete
    assert trio.current_time() - begin == 2


async def test_an_infinite_within_is_none(autojump_clock: MockClock) -> None:
    assert (await harness.fan_out(nap, [1, 2], within=math.inf)).complete


async def test_within_lets_shielded_work_finish_and_counts_it(autojump_clock: MockClock) -> None:
    async def body(item: int) -> int:
        with trio.CancelScope(shield=True):
            await trio.sleep(item)
        return item

    results = await harness.fan_out(body, [1, 7], within=5)
    assert statuses(results) == ["ok", "ok"]


async def test_items_know_the_deadline(autojump_clock: MockClock) -> None:
    remaining: list[float] = []

    async def body(item: int) -> None:
        await trio.sleep(item)
        remaining.append(harness.current_run().remaining())

    await harness.fan_out(body, [1, 2], within=10)
    assert remaining == [9, 8]


async def test_within_of_a_stream_ends_the_iteration_quietly(autojump_clock: MockClock) -> None:
    flight = Flight(nap)
    with nothing_left_behind():
        async with harness.open_fan_out(flight, [1, 2, 9, 9], limit=3, within=5) as stream:
            read = [result async for result in stream]
    both = read + list(stream.results)
    assert sorted(result.index for result in both) == [0, 1, 2, 3]
    by_index = sorted(both, key=lambda result: result.index)
    assert statuses(by_index) == ["ok", "ok", "cancelled", "cancelled"]
