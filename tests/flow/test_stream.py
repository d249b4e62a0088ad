"""The results of a pipeline one by one: order, window, what was not read."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from harness.flow import Pipeline, failed_at, stage
from tests.fanout.probes import Boom, Source, echo, nap, statuses


async def test_results_come_as_the_items_end_or_in_input_order(autojump_clock: MockClock) -> None:
    pipeline = Pipeline(echo, stage(nap, limit=3))
    for ordered, expected in ((False, [2, 1, 0]), (True, [0, 1, 2])):
        async with pipeline.open([3, 2, 1], ordered=ordered) as stream:
            assert [result.index async for result in stream] == expected


async def test_an_ordered_stream_is_not_held_up_by_its_first(autojump_clock: MockClock) -> None:
    """The stages go on with later items while the reader waits for a slow one."""
    async with Pipeline(stage(nap, limit=2), echo).open(
        [10, 1, 1, 1, 1, 1, 1, 1], ordered=True
    ) as stream:
        assert [result.index async for result in stream] == list(range(8))
    assert trio.current_time() == 10


@pytest.mark.parametrize("window", [1, 3, 8])
async def test_a_window_bounds_what_is_in_flight_or_unread(
    autojump_clock: MockClock, window: int
) -> None:
    source = Source(30)
    read = 0
    async with Pipeline(stage(nap_a_bit, limit=4), stage(nap_a_bit, limit=4)).open(
        source, window=window
    ) as stream:
        async for _ in stream:
            read += 1
            await trio.sleep(5)
            assert source.pulled - read <= window
    assert read == 30


async def nap_a_bit(item: Any) -> Any:
    await trio.sleep(0.1)
    return item


async def test_by_default_the_window_is_twice_the_room_there_is(autojump_clock: MockClock) -> None:
    source = Source()
    async with Pipeline(stage(echo, limit=3), stage(echo, limit=2), buffer=4).open(
        source
    ) as stream:
        await trio.sleep(5)
        assert source.pulled == 2 * (3 + 4 + 2)
        assert stream.summary().ok == 18


async def test_a_broken_policy_is_raised_to_the_reader(autojump_clock: MockClock) -> None:
    async def fails(item: int) -> int:
        await trio.sleep(item)
        if item == 3:
            raise Boom(item)
        return item

    read: list[int] = []
    with pytest.raises(FanOutError) as caught:
        async with Pipeline(echo, stage(fails, limit=9)).open([1, 2, 3, 4]) as stream:
            async for result in stream:
                read.append(result.index)
    assert read == [0, 1]
    assert failed_at(caught.value.exceptions[0]) == ("fails",)
    assert statuses(stream.results) == ["failed", "cancelled"]


async def test_keep_keeps_all(autojump_clock: MockClock) -> None:
    async with Pipeline(echo, echo).open(range(5), keep=True, name="nightly", key=str) as stream:
        assert stream.run.name == "nightly"
        async for _ in stream:
            pass
    assert stream.results.values() == [0, 1, 2, 3, 4]
    assert stream.results[4].key == "4"


async def test_a_stream_tells_its_own_statistics(autojump_clock: MockClock) -> None:
    """Two streams of one pipeline at once are two running pipelines."""
    pipeline = Pipeline(stage(nap, limit=1), stage(nap, limit=1))
    async with pipeline.open([1, 1]) as one, pipeline.open([2, 2, 2]) as other:
        async for _ in one:
            pass
        async for _ in other:
            pass
        assert one.statistics().stages[0].ok == 2
        assert other.statistics().stages[0].ok == 3
        assert one.statistics().seconds == 3
        assert pipeline.statistics() == other.statistics()


async def test_many_pipelines_of_one_object_at_once(autojump_clock: MockClock) -> None:
    """A pipeline holds no state of what it runs: the limits are those of each."""
    pipeline = Pipeline(stage(nap, limit=1), stage(nap, limit=1))
    done: list[Any] = []

    async def run(name: str) -> None:
        done.append(await pipeline.run([1, 1, 1], name=name))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(run, f"run-{number}")
    assert all(results.values() == [1, 1, 1] for results in done)
    assert {results.name for results in done} == {f"run-{n}" for n in range(5)}
    assert trio.current_time() == 4


@pytest.mark.slow
async def test_flat_memory(autojump_clock: MockClock) -> None:
    """What is alive doesn't grow with the input."""
    async with Pipeline(stage(echo, limit=8), stage(echo, limit=8)).open(Source(5_000)) as stream:
        most = 0
        async for result in stream:
            if result.index % 500 == 0:
                run = harness.current_run_or_none()
                assert run is None
                most = max(most, len(stream.run.children))
    assert most <= 8 + 16 + 8
