"""Stages work at once like a conveyor, and a slow one holds up those behind it, up to the input."""

import math
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import harness
from harness.flow import Pipeline, stage
from tests.fanout.probes import AsyncSource, Flight, Source, echo


async def second(item: Any) -> Any:
    await trio.sleep(1)
    return item


async def numbers(count: int) -> AsyncGenerator[int]:
    for number in range(count):
        yield number


@pytest.mark.slow
@given(
    stages=st.integers(1, 5),
    count=st.integers(1, 25),
    limit=st.integers(1, 6),
    seconds=st.sampled_from([1, 2, 0.5]),
    buffer=st.sampled_from([0, 1, 2, 16]),
    is_async=st.booleans(),
)
def test_equal_stages_are_an_exact_conveyor(
    stages: int, count: int, limit: int, seconds: float, buffer: int, is_async: bool
) -> None:
    """The wall time is (ceil(n / limit) + stages - 1) × t: not a moment is lost between stages."""

    async def work(item: int) -> int:
        await trio.sleep(seconds)
        return item

    async def main() -> None:
        pipeline = Pipeline(*[stage(work, limit=limit)] * stages, buffer=buffer)
        results = await pipeline.run(numbers(count) if is_async else range(count))
        assert trio.current_time() - began_at == (math.ceil(count / limit) + stages - 1) * seconds
        assert results.values() == list(range(count))
        assert results.status == "ok"

    began_at = 0.0
    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("slow_at", [0, 1, 2])
async def test_the_slowest_stage_alone_decides_the_throughput(
    autojump_clock: MockClock, slow_at: int
) -> None:
    """Twenty items at two per three seconds: thirty seconds, with the rest running alongside."""

    async def slow(item: int) -> int:
        await trio.sleep(3)
        return item

    stages: list[Any] = [stage(second, limit=2) for _ in range(3)]
    stages[slow_at] = stage(slow, limit=2)
    await Pipeline(*stages).run(range(20))
    assert trio.current_time() == 30 + 2


@pytest.mark.parametrize("buffer", [0, 1, 3])
@pytest.mark.parametrize("kind", ["iterator", "async iterator"])
async def test_a_slow_last_stage_stops_the_reading(
    autojump_clock: MockClock, buffer: int, kind: str
) -> None:
    """Input is read ahead as far as the stages and buffers reach, and never a single item more."""
    source: Any = Source() if kind == "iterator" else AsyncSource()
    quick, slow = Flight(), Flight(second)
    pipeline = Pipeline(
        stage(quick, name="quick", limit=4), stage(slow, name="slow", limit=2), buffer=buffer
    )
    most_waiting = 0
    with trio.move_on_after(20.5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipeline.run, source)
            await trio.sleep(0.5)
            while True:
                first, last = pipeline.statistics().stages
                # Two in the last stage, the buffer full, and four done that keep their slots.
                assert (last.working, last.waiting, first.held_up) == (2, buffer, 4)
                ended = len(slow.ended)
                assert source.pulled == ended + 2 + buffer + 4
                most_waiting = max(most_waiting, last.waiting)
                await trio.sleep(1)
    assert most_waiting == buffer
    assert len(slow.ended) >= 40


async def test_items_pass_each_stage_in_the_order_in_which_they_come(
    autojump_clock: MockClock,
) -> None:
    """First come, first served: nobody is overtaken in a line."""
    served: list[int] = []

    async def serve(item: int) -> int:
        served.append(item)
        await trio.sleep(1)
        return item

    async def uneven(item: int) -> int:
        await trio.sleep(item * 0.01)
        return item

    await Pipeline(stage(uneven, limit=30), stage(serve), buffer=5).run(range(30))
    assert served == list(range(30))


async def test_a_quick_item_overtakes_a_slow_one_inside_a_stage(autojump_clock: MockClock) -> None:
    """Results come as they end, in a stage too: one slow item doesn't hold up seven quick ones."""

    async def nap(item: int) -> int:
        await trio.sleep(10 if item == 0 else 1)
        return item

    ended = Flight()
    await Pipeline(stage(nap, limit=2), stage(ended, name="ended")).run(range(8))
    assert ended.ended == [1, 2, 3, 4, 5, 6, 7, 0]
    assert trio.current_time() == 10


async def test_no_more_work_at_once_than_the_limit_of_each_stage(
    autojump_clock: MockClock,
) -> None:
    flights = [Flight(second), Flight(second), Flight(second)]
    limits = [5, 2, 1]
    await Pipeline(
        *(
            stage(flight, name=str(limit), limit=limit)
            for flight, limit in zip(flights, limits, strict=True)
        )
    ).run(range(40))
    assert [flight.peak for flight in flights] == [5, 2, 1]


async def test_only_what_can_work_or_wait_is_alive(autojump_clock: MockClock) -> None:
    """However long the input, there are no more tasks than slots and places."""
    peak = 0

    async def watch(item: int) -> int:
        nonlocal peak
        peak = max(peak, trio.lowlevel.current_statistics().tasks_living)
        return await echo(item)  # type: ignore[no-any-return]

    before = trio.lowlevel.current_statistics().tasks_living
    async with Pipeline(stage(echo, limit=3), stage(watch, limit=2), buffer=4).open(
        Source(2_000)
    ) as stream:
        count = 0
        async for _ in stream:
            count += 1
    assert count == 2_000
    assert peak <= before + 3 + 4 + 2 + 1
    assert harness.current_run_or_none() is None
