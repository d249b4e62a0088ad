"""Pipelines and routers as functions of fan-outs, stages and tracks, with limits that hold."""

import gc
import weakref
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.flow import DROP, Batch, Pipeline, Router, failed_at, stage, track
from tests.fanout.probes import Boom, Flight, echo, nothing_left_behind, statuses


async def second(item: Any) -> Any:
    await trio.sleep(1)
    return item


async def odd_ones_fail(item: int) -> int:
    await trio.lowlevel.checkpoint()
    if item % 2:
        raise Boom(item)
    return item


async def test_a_pipeline_is_the_function_of_a_fan_out_and_its_limits_hold(
    autojump_clock: MockClock,
) -> None:
    """They are what protects whoever is called; a fan-out of fifty must not get around them."""
    flights = [Flight(second), Flight(second)]
    pipeline = Pipeline(
        stage(flights[0], name="fetch", limit=4), stage(flights[1], name="write", limit=2)
    )
    results = await harness.fan_out(pipeline, range(20), limit=20)
    assert results.values() == list(range(20))
    assert [flight.peak for flight in flights] == [4, 2]
    assert trio.current_time() == 11
    statistics = pipeline.statistics()
    assert [one.ok for one in statistics.stages] == [20, 20]
    assert statistics.bottleneck == "write"


async def test_a_router_is_the_function_of_a_fan_out_and_its_limits_hold(
    autojump_clock: MockClock,
) -> None:
    flight = Flight(second)
    router = Router(lambda item: "only", tracks={"only": track(flight, limit=3)})
    await harness.fan_out(router, range(12), limit=12)
    assert flight.peak == 3
    assert router.statistics().tracks["only"].ok == 12
    assert trio.current_time() == 4


async def test_errors_tell_the_whole_way(autojump_clock: MockClock) -> None:
    inner = Pipeline(echo, stage(odd_ones_fail, name="parse"))
    outer = Pipeline(stage(inner, name="read", limit=4), echo)
    results = await outer.run(range(3), policy=harness.BestEffort())
    assert statuses(results) == ["ok", "failed", "ok"]
    assert failed_at(results[1].error) == ("read", "parse")
    results = await harness.fan_out(outer, range(3), policy=harness.BestEffort())
    assert failed_at(results[1].error) == ("read", "parse")


async def test_a_retry_around_a_pipeline_takes_its_whole_way_again(
    autojump_clock: MockClock,
) -> None:
    tries: list[int] = []

    async def flaky(item: int) -> int:
        tries.append(item)
        await trio.sleep(1)
        if len(tries) == 1:
            raise Boom(item)
        return item

    pipeline = Pipeline(second, flaky)
    each = harness.Attempt(retry=harness.Retry(2, first_delay=0, jitter=0))
    results = await harness.fan_out(pipeline, [7], each=each)
    assert results[0].attempts == 2
    assert trio.current_time() == 4


async def test_a_called_pipeline_gathers_nothing(autojump_clock: MockClock) -> None:
    """A call is one item, and nothing more can arrive for it."""
    sizes: list[int] = []

    async def embed(items: list[int]) -> list[int]:
        sizes.append(len(items))
        await trio.sleep(1)
        return [-item for item in items]

    pipeline = Pipeline(echo, stage(embed, batch=Batch(10, within=60), limit=2))
    results = await harness.fan_out(pipeline, range(1, 5))
    assert results.values() == [-1, -2, -3, -4]
    assert sizes == [1, 1, 1, 1]
    assert trio.current_time() == 2


async def test_a_called_pipeline_yields_a_tuple_or_drops(autojump_clock: MockClock) -> None:
    async def split(item: int) -> AsyncGenerator[int, None]:
        for number in range(item):
            yield number
            await trio.lowlevel.checkpoint()

    async def even_only(item: int) -> Any:
        await trio.lowlevel.checkpoint()
        return DROP if item % 2 else item

    assert await Pipeline(split, even_only)(4) == (0, 2)
    assert await Pipeline(even_only, echo)(3) is DROP
    assert (await Pipeline(Pipeline(even_only), echo).run(range(4))).values() == [0, 2]
    with pytest.raises(Boom):
        await Pipeline(split, stage(odd_ones_fail, limit=2))(4)


async def test_a_cancelled_call_leaves_no_line_and_no_slot(autojump_clock: MockClock) -> None:
    pipeline = Pipeline(stage(second, limit=1), stage(second, limit=1), buffer=1)
    with nothing_left_behind():
        for after in (0.5, 1.5, 2.5):
            with trio.move_on_after(after):
                async with trio.open_nursery() as nursery:
                    for item in range(6):
                        nursery.start_soon(pipeline, item)
    for one in pipeline.statistics().stages:
        assert (one.working, one.waiting, one.held_up) == (0, 0, 0)
    began_at = trio.current_time()
    await pipeline(1)
    assert trio.current_time() - began_at == 2


async def test_a_call_checks_for_cancellation_as_its_stages_do(autojump_clock: MockClock) -> None:
    pipeline, router = Pipeline(echo), Router(lambda item: "a", tracks={"a": echo})
    for call in (pipeline, router):
        with trio.CancelScope() as scope:
            scope.cancel()
            await call(1)
        assert scope.cancelled_caught


def test_a_pipeline_and_a_router_work_in_one_trio_run_after_another() -> None:
    """What their calls share is of one `trio.run`; nothing of the first is left for the second."""
    pipeline = Pipeline(stage(second, limit=2))
    router = Router(lambda item: "a", tracks={"a": track(pipeline, limit=1)})

    async def main() -> None:
        with trio.move_on_after(0.5):
            async with trio.open_nursery() as nursery:
                for item in range(4):
                    nursery.start_soon(router, item)
                    nursery.start_soon(pipeline, item)
            raise AssertionError
        assert (await harness.fan_out(router, range(3))).values() == [0, 1, 2]

    for _ in range(2):
        trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.slow
async def test_a_called_pipeline_that_nobody_keeps_is_freed(autojump_clock: MockClock) -> None:
    """What its calls share is kept for as long as it lives, and no longer."""
    pipeline = Pipeline(echo)
    await pipeline(1)
    gone = weakref.ref(pipeline)
    del pipeline
    gc.collect()
    assert gone() is None


async def test_a_fan_out_inside_a_stage(autojump_clock: MockClock) -> None:
    async def ask_all(item: int) -> int:
        results = await harness.fan_out(second, range(item))
        return sum(results.values())

    results = await Pipeline(echo, stage(ask_all, limit=3)).run([3, 4])
    assert results.values() == [3, 6]
    assert trio.current_time() == 1
