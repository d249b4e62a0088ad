"""`BestEffort` keeps every outcome, and raises only for items that are critical."""

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from tests.fanout.probes import Boom, Flight, nothing_left_behind, statuses


async def test_one_failure_of_ten_leaves_nine_values_and_one_error(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> int:
        await trio.sleep(item % 4)
        if item == 3:
            raise Boom(item)
        return item

    results = await harness.fan_out(body, range(10), policy=harness.BestEffort())
    assert list(results.values()) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert statuses(results) == ["ok"] * 3 + ["failed"] + ["ok"] * 6
    assert [str(result.error) for result in results.failed] == ["3"]


async def test_failed_samples_are_counted_and_not_dropped(autojump_clock: MockClock) -> None:
    """Five of 448 fail: 448 results, and the text says so."""

    async def body(item: int) -> int:
        await trio.lowlevel.checkpoint()
        if item % 100 == 17:
            raise Boom(item)
        return item

    results = await harness.fan_out(body, range(448), policy=harness.BestEffort())
    assert len(results) == 448
    assert len(results.values()) == 443
    assert [result.index for result in results.failed] == [17, 117, 217, 317, 417]
    text = str(results.summary())
    assert "443" in text
    assert "5" in text


async def test_all_may_fail(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        raise Boom(item)

    with nothing_left_behind():
        results = await harness.fan_out(body, range(20), limit=3, policy=harness.BestEffort())
    assert statuses(results) == ["failed"] * 20
    assert [result.error.args for result in results if result.error] == [(n,) for n in range(20)]


async def test_a_critical_item_that_fails_ends_the_rest(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        await trio.sleep(item)
        if item in (1, 3, 5):
            raise Boom(item)

    flight = Flight(body)
    policy = harness.BestEffort(critical=lambda item: item == 3)
    begin = trio.current_time()
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(flight, range(8), policy=policy, limit=6)
    assert trio.current_time() - begin == 3
    assert statuses(caught.value.results) == [
        "ok",
        "failed",
        "ok",
        "failed",
        "cancelled",
        "cancelled",
        "cancelled",
        "cancelled",
    ]
    assert 3 in [error.args[0] for error in caught.value.exceptions]


async def test_a_critical_item_that_times_out_ends_the_rest(autojump_clock: MockClock) -> None:
    policy = harness.BestEffort(critical=lambda item: item == 9)
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(
            trio.sleep, [50, 9, 50], policy=policy, each=harness.Attempt(timeout=8)
        )
    assert "timed_out" in statuses(caught.value.results)


async def test_a_critical_item_that_cancels_itself_or_succeeds_raises_nothing(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> int:
        if item == 0:
            harness.current_run().cancel()
        await trio.sleep(1)
        return item

    policy = harness.BestEffort(critical=lambda item: True)
    results = await harness.fan_out(body, range(3), policy=policy)
    assert statuses(results) == ["cancelled", "ok", "ok"]


async def test_a_failure_that_a_retry_or_fallback_mends_is_not_critical(
    autojump_clock: MockClock,
) -> None:
    policy = harness.BestEffort(critical=lambda item: True)
    calls = 0

    async def body(item: int) -> int:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise Boom
        return item

    each = harness.Attempt(retry=harness.Retry(3, first_delay=1, jitter=0))
    results = await harness.fan_out(body, [7], policy=policy, each=each)
    assert list(results.values()) == [7]
    calls = 0
    each = harness.Attempt(fallback=lambda item, error: -item)
    results = await harness.fan_out(body, [7], policy=policy, each=each)
    assert list(results.values()) == [-7]
