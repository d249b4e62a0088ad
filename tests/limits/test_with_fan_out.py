"""A limiter under a fan-out: one reservation per attempt, settled by the function itself."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import NestedReservationError, QuotaExhaustedError
from harness.limits import Limiter, ProviderPool, current_reservation
from harness.policies import ReservingLimiter


async def test_each_attempt_reserves_and_the_function_settles(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=600, tokens_per_minute=60_000)
    tried: dict[int, int] = {}

    async def classify(item: int) -> int:
        tried[item] = tried.get(item, 0) + 1
        reservation = current_reservation()
        await trio.sleep(0.1)
        reservation.settle(tokens=10 + item)
        if item % 10 == 0 and tried[item] == 1:
            raise ConnectionError
        return item

    results = await harness.fan_out(
        classify,
        range(50),
        each=harness.Attempt(limiter=limiter, tokens=100, retry=harness.Retry(2)),
        policy=harness.BestEffort(),
    )
    assert results.complete
    statistics = limiter.statistics()
    assert statistics.granted == sum(tried.values()) == 55
    assert statistics.dimensions["tokens"].used == sum(
        (10 + item) * count for item, count in tried.items()
    )
    assert statistics.in_flight == statistics.waiting == 0


async def test_waiting_for_the_limiter_is_no_part_of_the_timeout(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("model", requests_per_minute=6)

    async def work(item: int) -> float:
        await trio.sleep(1)
        return trio.current_time()

    results = await harness.fan_out(
        work, range(5), each=harness.Attempt(limiter=limiter, timeout=2)
    )
    assert max(results.values()) == pytest.approx(41)


async def test_refusals_spend_no_attempt_and_all_succeed(autojump_clock: MockClock) -> None:
    """A 30 s outage and a hundred items: one shared pause after the other, no storm."""
    limiter = Limiter("model", requests_per_minute=6_000)
    calls = 0

    class Refused(Exception):
        status_code = 429

    async def work(item: int) -> int:
        nonlocal calls
        calls += 1
        await trio.sleep(0.1)
        if trio.current_time() < 30:
            raise Refused
        return item

    results = await harness.fan_out(
        work,
        range(100),
        each=harness.Attempt(limiter=limiter, retry=harness.Retry(1)),
        policy=harness.BestEffort(),
    )
    assert results.complete
    assert calls < 300
    assert limiter.statistics().pauses >= 3


async def test_a_fan_out_inside_a_reservation_of_its_limiter_is_refused(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("model", concurrent=1)

    async def work(item: int) -> int:
        return item

    async with harness.open_run("parent"), limiter.reserve():
        with pytest.raises(harness.errors.FanOutError) as failed:
            await harness.fan_out(work, [1], each=harness.Attempt(limiter=limiter))
    assert isinstance(failed.value.exceptions[0], NestedReservationError)


async def test_limiters_and_pools_fit_an_attempt(autojump_clock: MockClock) -> None:
    """For the type checker, too: both are what `Attempt` asks for."""
    first = Limiter("first", requests_per_minute=60)
    second = Limiter("second", requests_per_minute=60)
    pool = ProviderPool([first, second])
    fitting: tuple[ReservingLimiter, ...] = (Limiter("model", concurrent=2), pool)

    async def work(item: int) -> str:
        provider = current_reservation().provider
        current_reservation().settle(status=429 if provider == "first" else 200)
        return provider

    for limiter in fitting:
        assert isinstance(limiter, ReservingLimiter)
        results = await harness.fan_out(
            work, range(4), each=harness.Attempt(limiter=limiter, tokens=10), limit=1
        )
        assert results.complete
    assert results.values()[:2] == ["first", "second"], "the pool, past a refusal"


async def test_a_quota_ends_a_fan_out_without_a_wait(autojump_clock: MockClock) -> None:
    """The limiter learns it once; those in line fail, and none tries again."""
    limiter = Limiter("model", requests_per_minute=600)

    async def work(item: int) -> None:
        await trio.sleep(0.01)
        current_reservation().settle(
            status=429, body={"error": {"message": "limit of 50 requests per day reached"}}
        )
        raise ConnectionError

    results = await harness.fan_out(
        work,
        range(200),
        each=harness.Attempt(limiter=limiter, retry=harness.Retry(3, first_delay=0.01)),
        policy=harness.BestEffort(),
    )
    assert {type(result.error) for result in results} == {QuotaExhaustedError}
    assert limiter.statistics().granted <= 11
    assert trio.current_time() < 1
