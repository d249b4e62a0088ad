"""What a pipeline says about its stages: which are busy, what waits, where the bottleneck is."""

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.flow import Batch, Pipeline, stage
from tests.fanout.probes import Boom, echo


def sleeper(seconds: float) -> Any:
    async def work(item: Any) -> Any:
        await trio.sleep(seconds)
        return item

    return work


async def test_the_slowest_stage_is_the_bottleneck(autojump_clock: MockClock) -> None:
    """Those behind it keep slots too, but being held up isn't work."""
    pipeline = Pipeline(
        stage(sleeper(1), name="fetch", limit=2),
        stage(sleeper(4), name="parse", limit=2),
        stage(sleeper(1), name="write", limit=1),
        buffer=2,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pipeline.run, range(20))
        await trio.sleep(20.5)
        now = pipeline.statistics()
        fetch, parse, write = now.stages
        assert now.bottleneck == "parse"
        assert (fetch.held_up, fetch.working) == (2, 0)
        assert (parse.waiting, parse.working) == (2, 2)
        assert parse.busy_share == pytest.approx(2 * 19.5 / (2 * 20.5))
        assert write.ok == 8 - write.working - write.waiting
        assert write.throughput == write.ok / 20.5
    end = pipeline.statistics()
    assert end.seconds == 1 + 40 + 2
    assert [one.ok for one in end.stages] == [20, 20, 20]
    assert [one.waiting for one in end.stages] == [0, 0, 0]
    assert end.bottleneck == "parse"
    await trio.sleep(100)
    assert pipeline.statistics() == end


async def test_they_are_frozen_and_read_well(autojump_clock: MockClock) -> None:
    pipeline = Pipeline(
        stage(sleeper(1), limit=1, name="fetch"), stage(sleeper(2), limit=1, name="parse")
    )
    await pipeline.run(range(3))
    statistics = pipeline.statistics()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        statistics.seconds = 0  # type: ignore[misc]
    assert str(statistics) == (
        "fetch: 43% busy, 0 of 1 working, 0 waiting, 0.429 items/s\n"
        "parse: 86% busy, 0 of 1 working, 0 waiting, 0.429 items/s <- bottleneck"
    )


def test_before_anything_ran_there_is_nothing_to_tell() -> None:
    """Also outside trio."""
    statistics = Pipeline(echo, echo).statistics()
    assert statistics.seconds == 0
    assert statistics.bottleneck is None
    assert [one.name for one in statistics.stages] == ["echo", "echo-2"]
    assert [one.busy_share for one in statistics.stages] == [0, 0]


def test_after_trio_has_ended_the_last_word_stands() -> None:
    pipeline = Pipeline(stage(sleeper(1), limit=1, name="fetch"))

    async def main() -> None:
        await pipeline.run(range(3))

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert pipeline.statistics().seconds == 3
    assert pipeline.statistics().stages[0].busy_share == 1

    async def calls() -> None:
        for item in range(2):
            await pipeline(item)

    trio.run(calls, clock=MockClock(autojump_threshold=0))
    assert pipeline.statistics().seconds == 2


async def test_failures_and_cancels_are_counted_apart(autojump_clock: MockClock) -> None:
    async def work(item: int) -> int:
        await trio.sleep(item)
        if item == 1:
            raise Boom(item)
        return item

    pipeline = Pipeline(stage(work, limit=9))
    await pipeline.run([0, 1, 2, 50], within=5, policy=harness.BestEffort())
    one = pipeline.statistics().stages[0]
    assert (one.calls, one.ok, one.failed, one.cancelled, one.working) == (4, 2, 1, 1, 0)
    assert "1 failed" in str(pipeline.statistics())


async def test_a_stage_that_gathers_counts_batches_and_items(autojump_clock: MockClock) -> None:
    async def embed(items: list[int]) -> list[int]:
        await trio.sleep(1)
        return items

    pipeline = Pipeline(stage(embed, batch=Batch(4), limit=1))
    await pipeline.run(range(10))
    one = pipeline.statistics().stages[0]
    assert (one.calls, one.ok, one.limit) == (3, 3, 1)
    assert one.busy_share == 1
    assert one.throughput == 10 / 3


async def test_work_under_way_counts_as_busy(autojump_clock: MockClock) -> None:
    pipeline = Pipeline(stage(sleeper(100), name="slow", limit=2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pipeline.run, range(1))
        await trio.sleep(10)
        assert pipeline.statistics().stages[0].busy_share == 0.5
