"""A stage that yields several outputs for an item: runs of their own, and one result for all."""

import pickle
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, OutputsFailedError, RunTimedOut
from harness.flow import DROP, Batch, Pipeline, failed_at, stage
from tests.fanout.probes import Boom, FakeLimiter, Flight, echo, nothing_left_behind, statuses


async def pages(count: int) -> AsyncGenerator[str, None]:
    for page in range(count):
        await trio.sleep(1)
        yield f"{count}.{page}"


async def read(page: str) -> str:
    await trio.sleep(0.5)
    if page.endswith(".1"):
        raise Boom(page)
    return page.upper()


async def test_the_value_is_the_tuple_of_what_came_of_the_outputs(
    autojump_clock: MockClock,
) -> None:
    results = await Pipeline(pages, stage(echo, limit=2)).run([2, 0, 3])
    assert results.values() == [("2.0", "2.1"), (), ("3.0", "3.1", "3.2")]
    assert statuses(results) == ["ok"] * 3


async def test_outputs_keep_their_order_however_they_end(autojump_clock: MockClock) -> None:
    async def three(item: int) -> AsyncGenerator[int, None]:
        for seconds in (3, 2, 1):
            yield seconds

    async def nap(seconds: int) -> int:
        await trio.sleep(seconds)
        return seconds

    results = await Pipeline(three, stage(nap, limit=3)).run([0])
    assert results.values() == [(3, 2, 1)]
    assert trio.current_time() == 3


async def test_as_the_last_stage_the_outputs_are_the_value(autojump_clock: MockClock) -> None:
    assert (await Pipeline(echo, pages).run([2])).values() == [("2.0", "2.1")]


async def test_several_after_several_nest(autojump_clock: MockClock) -> None:
    async def twice(item: Any) -> AsyncGenerator[Any, None]:
        yield f"{item}a"
        await trio.lowlevel.checkpoint()
        yield f"{item}b"

    results = await Pipeline(twice, twice, stage(echo, limit=9)).run([1])
    assert results.values() == [(("1aa", "1ab"), ("1ba", "1bb"))]


async def test_dropped_outputs_are_left_out(autojump_clock: MockClock) -> None:
    async def some(item: int) -> AsyncGenerator[Any, None]:
        yield 1
        await trio.lowlevel.checkpoint()
        yield DROP
        yield 2
        yield 3

    async def odd_only(item: int) -> Any:
        await trio.lowlevel.checkpoint()
        return item if item % 2 else DROP

    assert (await Pipeline(some, odd_only).run([0])).values() == [(1, 3)]


async def test_a_generator_waits_for_room_behind_it(autojump_clock: MockClock) -> None:
    """Backpressure reaches into the generator: it yields as fast as outputs are taken."""
    yielded: list[tuple[float, int]] = []

    async def endless(item: int) -> AsyncGenerator[int, None]:
        for number in range(8):
            yielded.append((trio.current_time(), number))
            yield number

    async def slow(item: int) -> int:
        await trio.sleep(1)
        return item

    await Pipeline(stage(endless, limit=1), stage(slow, limit=1), buffer=2).run([0])
    # One at work, two in the buffer, one that waits for room.
    assert yielded == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 6), (4, 7)]


async def test_a_slot_is_free_for_the_next_item_when_the_outputs_are_on_their_way(
    autojump_clock: MockClock,
) -> None:
    async def slow(item: str) -> str:
        await trio.sleep(10)
        return item

    flight = Flight(slow)
    await Pipeline(stage(pages, limit=1), stage(flight, name="slow", limit=6)).run([3, 3])
    assert trio.current_time() == 16
    assert flight.peak == 6


async def test_a_failed_output_fails_the_item_and_loses_no_other(
    autojump_clock: MockClock,
) -> None:
    """The other outputs go on; what came of each is in the error."""
    results = await Pipeline(pages, stage(read, limit=9)).run([3, 1], policy=harness.BestEffort())
    assert statuses(results) == ["failed", "ok"]
    error = results[0].error
    assert isinstance(error, OutputsFailedError)
    assert str(error) == "1 of 3 outputs of stage 'pages' have no value; first Boom: 3.1"
    assert isinstance(error.__cause__, Boom)
    assert failed_at(error) == ("read",)
    assert statuses(error.results) == ["ok", "failed", "ok"]
    assert error.results.values() == ["3.0", "3.2"]
    assert [part.item for part in error.results] == ["3.0", "3.1", "3.2"]
    again = pickle.loads(pickle.dumps(error))
    assert again.results.values() == ["3.0", "3.2"]
    assert str(again) == str(error)


async def test_with_fail_fast_the_first_failed_output_ends_everything(
    autojump_clock: MockClock,
) -> None:
    with nothing_left_behind():
        with pytest.raises(FanOutError) as caught:
            await Pipeline(stage(pages, limit=1), stage(read, limit=9)).run([9, 2])
    assert [type(entry) for entry in caught.value.exceptions] == [Boom]
    assert failed_at(caught.value.exceptions[0]) == ("read",)
    assert trio.current_time() == 2.5


async def test_a_generator_that_fails_late_has_sent_what_it_sent(
    autojump_clock: MockClock,
) -> None:
    async def breaks(item: int) -> AsyncGenerator[int, None]:
        yield 0
        await trio.lowlevel.checkpoint()
        yield 1
        raise Boom(item)

    each = harness.Attempt(retry=harness.Retry(3), fallback=lambda item, error: -1)
    results = await Pipeline(stage(breaks, each=each), stage(echo, limit=2)).run(
        [7], policy=harness.BestEffort()
    )
    error = results[0].error
    assert isinstance(error, OutputsFailedError)
    assert str(error) == "stage 'breaks' failed after 2 outputs; first Boom: 7"
    assert error.results.values() == [0, 1]
    assert failed_at(error) == ("breaks",)
    assert results[0].attempts == 1


async def test_a_generator_that_fails_at_once_is_tried_again(autojump_clock: MockClock) -> None:
    tries = 0

    async def flaky(item: int) -> AsyncGenerator[int, None]:
        nonlocal tries
        tries += 1
        await trio.lowlevel.checkpoint()
        if tries < 3:
            raise Boom(item)
        yield item
        yield item

    each = harness.Attempt(retry=harness.Retry(3, first_delay=1, factor=1, jitter=0))
    results = await Pipeline(stage(flaky, each=each), stage(echo, limit=2)).run([7])
    assert results.values() == [(7, 7)]
    assert results[0].attempts == 3
    assert trio.current_time() == 2


async def test_a_fallback_is_the_one_output_of_a_generator_that_gave_none(
    autojump_clock: MockClock,
) -> None:
    async def fails(item: int) -> AsyncGenerator[int, None]:
        await trio.lowlevel.checkpoint()
        raise Boom(item)
        yield

    each = harness.Attempt(fallback=lambda item, error: f"instead of {item}")
    results = await Pipeline(stage(fails, each=each), echo).run([7])
    assert results.values() == [("instead of 7",)]
    assert results[0].degraded


async def test_without_outputs_the_generator_s_error_is_the_item_s(
    autojump_clock: MockClock,
) -> None:
    async def fails(item: int) -> AsyncGenerator[int, None]:
        await trio.lowlevel.checkpoint()
        raise Boom(item)
        yield

    results = await Pipeline(fails, echo).run([7], policy=harness.BestEffort())
    assert isinstance(results[0].error, Boom)
    assert failed_at(results[0].error) == ("fails",)


async def test_its_time_is_the_time_that_it_runs(autojump_clock: MockClock) -> None:
    """Waiting for room after it isn't the generator's fault."""

    async def slow(item: str) -> str:
        await trio.sleep(10)
        return item

    each = harness.Attempt(timeout=4)
    pipeline = Pipeline(stage(pages, each=each), slow, buffer=0)
    results = await pipeline.run([3, 5], policy=harness.BestEffort())
    assert statuses(results) == ["ok", "failed"]
    error = results[1].error
    assert isinstance(error, OutputsFailedError)
    assert isinstance(error.__cause__, RunTimedOut)
    assert error.results.values() == ["5.0", "5.1", "5.2"]


async def test_a_generator_that_never_yields_times_out(autojump_clock: MockClock) -> None:
    async def hangs(item: int) -> AsyncGenerator[int, None]:
        await trio.sleep_forever()
        yield item

    results = await Pipeline(stage(hangs, each=harness.Attempt(timeout=4)), echo).run(
        [3], policy=harness.BestEffort()
    )
    assert statuses(results) == ["timed_out"]
    assert failed_at(results[0].error) == ("hangs",)


async def test_its_limiter_is_held_while_it_runs(autojump_clock: MockClock) -> None:
    limiter = FakeLimiter(wait_seconds=2)
    each = harness.Attempt(limiter=limiter, tokens=lambda count: count * 10)
    results = await Pipeline(stage(pages, each=each), echo).run([2])
    assert results.values() == [("2.0", "2.1")]
    assert limiter.asked == [20]
    assert limiter.granted == limiter.returned == 1
    assert trio.current_time() == 4


async def test_a_generator_is_closed_when_its_item_is_cancelled(autojump_clock: MockClock) -> None:
    closed: list[int] = []

    async def endless(item: int) -> AsyncGenerator[int, None]:
        try:
            while True:
                await trio.sleep(1)
                yield item
        finally:
            closed.append(item)

    async def hang(item: int) -> None:
        await trio.sleep_forever()

    for where in (hang, echo):  # It is cut short while it waits for room, or while it runs.
        with nothing_left_behind():
            results = await Pipeline(endless, where, buffer=1).run([1], within=9.5)
            assert statuses(results) == ["cancelled"]
    assert closed == [1, 1]


async def test_an_item_that_waits_for_its_outputs_is_cancelled_with_them(
    autojump_clock: MockClock,
) -> None:
    """The outputs keep the cancel to themselves; it must not look like a failure of theirs."""

    async def hang(item: str) -> None:
        await trio.sleep_forever()

    results = await Pipeline(pages, stage(hang, limit=9)).run([3], within=9)
    assert statuses(results) == ["cancelled"]
    assert "within" in str(results[0].error)


async def test_an_output_that_never_gets_on_its_way_holds_up_nothing(
    autojump_clock: MockClock,
) -> None:
    def refuse(value: list[Any]) -> list[Any]:
        raise Boom("no copies")

    local = harness.RunLocal[list[Any]](list, fork=refuse)

    async def split(item: int) -> AsyncGenerator[int, None]:
        yield 0
        local.get()
        yield 1
        yield 2

    results = await Pipeline(split, echo).run([7], policy=harness.BestEffort())
    error = results[0].error
    assert isinstance(error, OutputsFailedError)
    assert statuses(error.results) == ["ok", "failed", "failed"]


async def test_a_stop_lets_a_generator_finish(autojump_clock: MockClock) -> None:
    """What is in flight may end; a tuple that lacks outputs would be a silent loss."""

    async def stop(item: str) -> str:
        run = harness.current_run().parent
        assert run is not None
        assert run.parent is not None
        run.parent.stop("enough")
        await trio.lowlevel.checkpoint()
        return item

    results = await Pipeline(stage(pages, limit=1), stage(stop, limit=1)).run([3, 3])
    assert statuses(results) == ["ok", "skipped"]
    assert results.values() == [("3.0", "3.1", "3.2")]


async def test_an_output_that_cancels_its_run_is_a_gap(autojump_clock: MockClock) -> None:
    """It has no value, so the item isn't complete: nothing is left out silently."""

    async def give_up(item: str) -> str:
        if item == "3.1":
            harness.current_run().cancel("unreadable")
        await trio.lowlevel.checkpoint()
        return item

    results = await Pipeline(pages, give_up).run([3], policy=harness.BestEffort())
    error = results[0].error
    assert isinstance(error, OutputsFailedError)
    assert statuses(error.results) == ["ok", "cancelled", "ok"]
    assert "unreadable" in str(error.results[1].error)


async def test_outputs_are_gathered_like_items(autojump_clock: MockClock) -> None:
    sizes: list[int] = []

    async def embed(items: list[str]) -> list[str]:
        sizes.append(len(items))
        await trio.sleep(1)
        return [item + "!" for item in items]

    results = await Pipeline(pages, stage(embed, batch=Batch(3)), stage(echo, limit=9)).run([2, 3])
    assert results.values() == [("2.0!", "2.1!"), ("3.0!", "3.1!", "3.2!")]
    assert sizes == [3, 2]
