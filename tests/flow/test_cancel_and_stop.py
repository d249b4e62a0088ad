"""Cancels, stops and ends reach every stage, and leave nothing alive."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.flow import Pipeline, stage
from tests.fanout.probes import Closing, Flight, Source, echo, nap, nothing_left_behind, statuses


async def second(item: Any) -> Any:
    await trio.sleep(1)
    return item


async def test_a_cancel_from_outside_passes_through(autojump_clock: MockClock) -> None:
    closing = Closing()
    flights = [Flight(second), Flight(second)]
    with nothing_left_behind():
        with trio.move_on_after(3.5) as scope:
            await Pipeline(stage(flights[0], name="a", limit=2), stage(flights[1], name="b")).run(
                closing.numbers()
            )
        assert scope.cancelled_caught
    assert closing.closed == 1
    assert [flight.live for flight in flights] == [0, 0]


async def test_cancelling_its_own_run_returns_what_is_there(autojump_clock: MockClock) -> None:
    runs: list[harness.Run] = []

    async def note(item: int) -> int:
        run = harness.current_run().parent
        assert run is not None
        runs.append(run)
        return await nap(item)  # type: ignore[return-value]

    async def cancel() -> None:
        await trio.sleep(2.5)
        runs[0].cancel("enough")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel)
        results = await Pipeline(stage(note, limit=2), echo).run([1, 1, 5, 5, 5])
    assert statuses(results) == ["ok", "ok", "cancelled", "cancelled", "skipped"]
    assert results.status == "cancelled"
    assert "enough" in str(results[2].error)


async def test_a_stop_lets_items_go_their_whole_way(autojump_clock: MockClock) -> None:
    """Those in progress end in the last stage; nothing more is pulled."""
    source = Source()

    async def may_stop(item: int) -> int:
        await trio.sleep(1)
        if item == 2:
            run = harness.current_run().parent
            assert run is not None
            run.stop("enough")
        return item

    results = await Pipeline(stage(may_stop, limit=1), stage(second, limit=1)).run(source)
    assert statuses(results) == ["ok"] * len(results)
    assert source.pulled == len(results) == 3
    assert results.status == "ok"


@pytest.mark.parametrize("kind", ["iterator", "async iterator"])
async def test_leaving_a_stream_closes_the_source_and_ends_all_stages(
    autojump_clock: MockClock, kind: str
) -> None:
    closing = Closing()
    flights = [Flight(second), Flight(second), Flight(second)]
    pipeline = Pipeline(*(stage(flight, name=str(id(flight)), limit=3) for flight in flights))
    source: Any = closing.numbers() if kind == "iterator" else closing.async_numbers()
    read: list[int] = []
    with nothing_left_behind():
        async with pipeline.open(source) as stream:
            async for result in stream:
                read.append(result.index)
                if len(read) == 5:
                    break
        pulled = closing.pulled
        await trio.sleep(10)
    assert closing.closed == 1
    assert closing.pulled == pulled
    assert [flight.live for flight in flights] == [0, 0, 0]
    assert sorted([*read, *(result.index for result in stream.results)]) == list(range(pulled))
    assert {result.status for result in stream.results} <= {"ok", "cancelled"}


async def test_an_error_in_the_reader_s_code_comes_out_as_itself(
    autojump_clock: MockClock,
) -> None:
    with nothing_left_behind():
        with pytest.raises(ZeroDivisionError):
            async with Pipeline(second, second).open(Source()) as stream:
                async for _ in stream:
                    raise ZeroDivisionError


async def test_a_source_that_breaks_tells_so_and_what_came_before_is_kept(
    autojump_clock: MockClock,
) -> None:
    async def breaks() -> AsyncGenerator[int]:
        yield 0
        yield 1
        raise OSError("gone")

    with pytest.raises(harness.errors.FanOutError) as caught:
        await Pipeline(second, second).run(breaks(), policy=harness.BestEffort())
    assert [type(entry) for entry in caught.value.exceptions] == [OSError]
    assert caught.value.results.values() == [0, 1]


async def test_cleanup_of_a_stage_runs_in_the_item_s_own_time(autojump_clock: MockClock) -> None:
    said: list[str] = []

    async def polite(item: int) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with harness.cleanup(max_seconds=2):
                await trio.sleep(1)
                said.append("goodbye")

    await Pipeline(echo, stage(polite, limit=2)).run([1, 2], within=5)
    assert said == ["goodbye", "goodbye"]
    assert trio.current_time() == 6


async def test_tasks_that_belong_to_an_item_end_before_it(autojump_clock: MockClock) -> None:
    """And the item keeps no slot of a stage meanwhile."""
    ended: list[int] = []

    async def straggle(item: int) -> None:
        await trio.sleep(10)
        ended.append(item)

    async with trio.open_nursery() as nursery:

        async def begins(item: int) -> int:
            harness.start_soon(nursery, straggle, item, run=harness.current_run())
            await trio.sleep(1)
            return item

        results = await Pipeline(stage(begins, limit=1), stage(echo, limit=1)).run(range(3))
    assert sorted(ended) == [0, 1, 2]
    assert results.complete
    assert trio.current_time() == 12


async def test_a_cancelled_item_leaves_its_place_to_the_first_outside(
    autojump_clock: MockClock,
) -> None:
    """And that item's stage can go on: the place was all it was waiting for."""
    runs: dict[int, harness.Run] = {}
    began: dict[int, float] = {}

    async def first(item: int) -> int:
        runs[item] = harness.current_run()
        began[item] = trio.current_time()
        await trio.sleep(1)
        return item

    async def cancel() -> None:
        await trio.sleep(5)
        runs[1].cancel("not needed")

    async def long(item: int) -> int:
        await trio.sleep(100)
        return item

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel)
        results = await Pipeline(stage(first, limit=1), stage(long, limit=1), buffer=1).run(
            range(4)
        )
    assert statuses(results) == ["ok", "cancelled", "ok", "ok"]
    assert began == {0: 0, 1: 1, 2: 2, 3: 5}


async def test_words_of_what_an_item_waits_for(autojump_clock: MockClock) -> None:
    pipeline = Pipeline(stage(echo, limit=2), stage(second, name="parse"), buffer=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pipeline.run, range(4))
        await trio.sleep(0.5)
        assert "a slot of stage 'parse'" in harness.dump()
