"""`BestEffort(max_failures=)` gives up once too much has failed, and lets what is in flight end."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, TooManyFailuresError
from harness.flow import Batch, Pipeline, Router, stage, track
from harness.journal import open_journal
from tests.fanout.probes import Boom, Flight, nothing_left_behind, statuses


async def fails_if_negative(item: float) -> float:
    """Sleep for as long as the item says, and fail when it is negative."""
    await trio.sleep(abs(item))
    if item < 0:
        raise Boom(item)
    return item


async def fails_always(item: int) -> None:
    """Fail after a second."""
    await trio.sleep(1)
    raise Boom(item)


async def test_as_many_failures_as_allowed_are_no_news(autojump_clock: MockClock) -> None:
    results = await harness.fan_out(
        fails_if_negative, [-1, 2, -3, 4], policy=harness.BestEffort(max_failures=2)
    )
    assert statuses(results) == ["failed", "ok", "failed", "ok"]


async def test_one_more_starts_nothing_and_lets_what_is_in_flight_end(
    autojump_clock: MockClock,
) -> None:
    begin = trio.current_time()
    policy = harness.BestEffort(max_failures=1)
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(
            fails_if_negative, [-1, -1.5, 9, 1, 1, 1], policy=policy, limit=3, name="nightly"
        )
    assert trio.current_time() - begin == 9
    assert statuses(caught.value.results) == ["failed", "failed", "ok", "ok", "skipped", "skipped"]
    assert [type(entry) for entry in caught.value.exceptions] == [Boom, Boom, TooManyFailuresError]
    assert "'nightly': TooManyFailuresError: 2 items failed, with max_failures=1" in str(
        caught.value
    )
    assert "2 items failed, with max_failures=1" in str(caught.value.results[5].error)


async def test_none_may_fail_with_a_count_of_zero(autojump_clock: MockClock) -> None:
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(
            fails_if_negative, [-1, 5, 1], policy=harness.BestEffort(max_failures=0), limit=2
        )
    assert statuses(caught.value.results) == ["failed", "ok", "skipped"]


async def test_a_share_is_not_judged_before_twenty_items(autojump_clock: MockClock) -> None:
    """The first of a thousand fails: that is all of them so far, and says nothing."""
    flight = Flight(fails_always)
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(
            flight, range(1_000), policy=harness.BestEffort(max_failures=0.5), limit=1
        )
    assert len(flight.started) == 20
    assert "20 of 20 items failed, with max_failures=0.5" in str(caught.value)


async def test_a_share_counts_what_ended_ok(autojump_clock: MockClock) -> None:
    async def every_tenth(item: int) -> int:
        await trio.sleep(1)
        if item % 10 == 0:
            raise Boom(item)
        return item

    policy = harness.BestEffort(max_failures=0.1)
    results = await harness.fan_out(every_tenth, range(1, 201), policy=policy, limit=1)
    assert len(results.failed) == 20
    with pytest.raises(FanOutError):
        await harness.fan_out(every_tenth, range(100), policy=policy, limit=1)


async def test_a_share_of_few_items_is_judged_at_the_end(autojump_clock: MockClock) -> None:
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(
            fails_if_negative, [-1, 2, -3, 4], policy=harness.BestEffort(max_failures=0.4)
        )
    assert statuses(caught.value.results) == ["failed", "ok", "failed", "ok"]


async def test_no_retry_starts_after_it(autojump_clock: MockClock) -> None:
    """One that sleeps before its next attempt is woken, and ends with the error it has."""
    calls: list[int] = []

    async def body(item: int) -> None:
        calls.append(item)
        await trio.sleep(item)
        raise Boom(item)

    def each(item: int) -> harness.Attempt:
        return harness.Attempt(retry=harness.Retry(3, first_delay=1_000) if item == 1 else None)

    begin = trio.current_time()
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(
            body, [1, 2], policy=harness.BestEffort(max_failures=0), each=each, key=str
        )
    assert trio.current_time() - begin == 2
    assert sorted(calls) == [1, 2]
    assert not caught.value.results.complete


async def test_a_critical_item_still_cancels_what_is_in_flight(autojump_clock: MockClock) -> None:
    policy = harness.BestEffort(critical=lambda item: item == -5, max_failures=0)
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(fails_if_negative, [-1, -5, 9, 1], policy=policy, limit=3)
    assert statuses(caught.value.results) == ["failed", "failed", "cancelled", "skipped"]


async def test_a_stream_tells_it_first_and_still_has_the_results(
    autojump_clock: MockClock,
) -> None:
    policy = harness.BestEffort(max_failures=1)
    with pytest.raises(FanOutError):
        async with harness.open_fan_out(
            fails_if_negative, [-1, -1.5, 5, 1, 1, 1], policy=policy, limit=3
        ) as stream:
            await trio.sleep(3)
            async for _ in stream:
                pass
    assert statuses(stream.results) == ["failed", "failed", "ok", "ok", "skipped", "skipped"]


async def test_what_is_in_flight_ends_undisturbed_with_what_it_started(
    autojump_clock: MockClock,
) -> None:
    """A fan-out in an item is part of what is in flight: nothing in it is skipped."""
    stopping: list[bool] = []

    async def outer(item: int) -> list[int]:
        if item == 0:
            raise Boom(item)
        values = (await harness.fan_out(inner, range(3), limit=1)).values()
        stopping.append(harness.current_run().stopping)
        return values

    async def inner(item: int) -> int:
        await trio.sleep(1)
        return item

    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(outer, range(5), policy=harness.BestEffort(max_failures=0), limit=2)
    results = caught.value.results
    assert statuses(results) == ["failed", "ok", "skipped", "skipped", "skipped"]
    assert results[1].value == [0, 1, 2]
    assert stopping == [False]


async def test_a_pipeline_lets_its_items_end_batches_included(autojump_clock: MockClock) -> None:
    async def together(items: list[float]) -> list[float]:
        await trio.sleep(1)
        return items

    pipeline = Pipeline(
        stage(fails_if_negative, limit=3), stage(together, batch=Batch(2, within=60))
    )
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await pipeline.run([-1, 2, 3, 4, 5], policy=harness.BestEffort(max_failures=0))
    assert statuses(caught.value.results)[:3] == ["failed", "ok", "ok"]
    assert "skipped" in statuses(caught.value.results)


@pytest.mark.parametrize("kind", ["pipeline", "router"])
async def test_a_stage_or_track_makes_no_further_attempt_either(
    autojump_clock: MockClock, kind: str
) -> None:
    calls: list[float] = []

    async def body(item: float) -> float:
        calls.append(item)
        return await fails_if_negative(item)

    def each(item: float) -> harness.Attempt:
        return harness.Attempt(retry=harness.Retry(3, first_delay=1_000) if item != -2 else None)

    flow: Pipeline[float, float] | Router[float, float]
    if kind == "pipeline":
        flow = Pipeline(stage(body, each=each))
    else:
        flow = Router(lambda item: "one", tracks={"one": track(body, each=each)})
    begin = trio.current_time()
    with nothing_left_behind(), pytest.raises(FanOutError):
        await flow.run([-1, -2, -3], policy=harness.BestEffort(max_failures=0))
    assert trio.current_time() - begin == 3
    assert sorted(calls) == [-3, -2, -1]


async def test_of_a_share_only_this_session_counts(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Ninety that were ok last week would hide that everything fails today."""
    broken = False

    async def body(item: int) -> int:
        await trio.sleep(1)
        if broken:
            raise Boom(item)
        return item

    policy = harness.BestEffort(max_failures=0.5)
    async with open_journal(tmp_path / "j") as journal:
        await harness.fan_out(body, range(90), policy=policy, key=int, journal=journal, name="b")
        broken = True
        with pytest.raises(FanOutError) as caught:
            await harness.fan_out(
                body, range(150), policy=policy, key=int, journal=journal, limit=1, name="b"
            )
    assert len(caught.value.results.failed) == 20
