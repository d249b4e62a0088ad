"""A chain of providers: the first that can serve now, and the first again when it recovers."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from harness.errors import QuotaExhaustedError, RateLimitedError, ReservationError
from harness.limits import Limiter, ProviderPool


def pool_of(**requests_per_minute: float) -> ProviderPool:
    return ProviderPool(
        [Limiter(name, requests_per_minute=rate) for name, rate in requests_per_minute.items()]
    )


async def ask(pool: ProviderPool, **settle: object) -> str:
    async with pool.reserve() as reservation:
        reservation.settle(**settle)  # type: ignore[arg-type]
        return reservation.provider


def assert_nothing_held(pool: ProviderPool) -> None:
    assert pool.waiting == 0
    for statistics in pool.statistics():
        assert (statistics.waiting, statistics.in_flight) == (0, 0)
    for limiter in pool.limiters:
        assert not limiter._grants._listeners


async def test_the_first_serves_while_it_can(autojump_clock: MockClock) -> None:
    pool = pool_of(first=60_000, second=60_000)
    assert {await ask(pool, status=200) for _ in range(50)} == {"first"}


async def test_the_next_serves_when_one_is_empty(autojump_clock: MockClock) -> None:
    pool = pool_of(first=60, second=60, third=60)
    assert [await ask(pool) for _ in range(3)] == ["first", "second", "third"]
    await trio.sleep(10)
    assert await ask(pool) == "first"


async def test_all_empty_waits_for_whichever_is_free_first(autojump_clock: MockClock) -> None:
    pool = pool_of(slow=1, quick=60)
    await ask(pool)
    await ask(pool)
    async with pool.reserve() as reservation:
        assert reservation.provider == "quick"
        assert trio.current_time() == pytest.approx(1)
    assert_nothing_held(pool)


async def test_the_next_serves_while_one_is_paused(autojump_clock: MockClock) -> None:
    pool = pool_of(first=60_000, second=60_000)
    await ask(pool, status=429, headers={"retry-after": "30"})
    assert await ask(pool) == "second"
    await trio.sleep(41)
    assert await ask(pool) == "first"


async def test_the_next_serves_while_one_fails(autojump_clock: MockClock) -> None:
    pool = pool_of(first=60_000, second=60_000)
    assert await ask(pool, status=500) == "first"
    assert await ask(pool, status=200) == "second"
    await trio.sleep(11)
    assert await ask(pool, status=200) == "first", "the first again when it recovers"


async def test_an_error_under_a_reservation_counts_as_a_failure(
    autojump_clock: MockClock,
) -> None:
    pool = pool_of(first=60_000, second=60_000)
    with pytest.raises(ConnectionError):
        async with pool.reserve():
            raise ConnectionError
    assert await ask(pool) == "second"


async def test_one_failure_among_many_answers_changes_nothing(autojump_clock: MockClock) -> None:
    pool = pool_of(first=60_000, second=60_000)
    for _ in range(10):
        await ask(pool, status=200)
    await ask(pool, status=503)
    assert await ask(pool) == "first"


async def test_if_all_fail_the_first_is_tried_all_the_same(autojump_clock: MockClock) -> None:
    pool = pool_of(first=60_000, second=60_000)
    assert [await ask(pool, status=500) for _ in range(3)] == ["first", "second", "first"]
    assert trio.current_time() == 0


async def test_a_long_pause_and_a_quota_move_on(autojump_clock: MockClock) -> None:
    pool = pool_of(first=60_000, second=60_000)
    await ask(pool, status=429, headers={"retry-after": "600"})
    assert await ask(pool, status=429, body="daily limit reached") == "second"
    with pytest.raises(RateLimitedError, match="'first'"):
        await ask(pool)
    quota = pool_of(only=60_000)
    await ask(quota, status=429, body="daily limit reached")
    with pytest.raises(QuotaExhaustedError):
        await ask(quota)


async def test_who_waits_moves_on_when_its_provider_is_paused(autojump_clock: MockClock) -> None:
    """The waiter isn't tied to a provider: it goes wherever there is room first."""
    first = Limiter("first", concurrent=1)
    second = Limiter("second", concurrent=1)
    pool = ProviderPool([first, second])
    served: list[tuple[str, float]] = []

    async def call() -> None:
        async with pool.reserve() as reservation:
            served.append((reservation.provider, trio.current_time()))

    async with trio.open_nursery() as nursery:
        async with second.reserve(), first.reserve() as held:
            nursery.start_soon(call)
            await trio.sleep(1)
            held.settle(status=429, headers={"retry-after": "60"})
            await trio.sleep(1)
            assert served == []
    assert served == [("second", 2)]
    assert_nothing_held(pool)


async def test_waiters_are_turned_away_when_nobody_is_left(autojump_clock: MockClock) -> None:
    pool = pool_of(first=60, second=60)
    errors = []

    async def call() -> None:
        try:
            await ask(pool)
        except RateLimitedError as error:
            errors.append(error)

    await ask(pool)
    await ask(pool)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(call)
        await wait_all_tasks_blocked()
        assert pool.waiting == 5
        for limiter in pool.limiters:
            limiter.pause(1_000)
    assert len(errors) == 5
    assert_nothing_held(pool)


async def test_cancelled_in_line_costs_nothing(autojump_clock: MockClock) -> None:
    pool = pool_of(first=60, second=60)
    served = 0

    async def call(patience: float) -> None:
        nonlocal served
        with trio.move_on_after(patience):
            await ask(pool)
            served += 1

    async with trio.open_nursery() as nursery:
        for index in range(100):
            nursery.start_soon(call, 3.5 if index % 2 else 1_000)
    assert_nothing_held(pool)
    assert served == sum(statistics.granted for statistics in pool.statistics())
    assert served >= 50


async def test_own_callers_of_a_provider_come_first(autojump_clock: MockClock) -> None:
    limiter = Limiter("only", requests_per_minute=60)
    pool = ProviderPool([limiter])
    order: list[str] = []

    async def direct() -> None:
        async with limiter.reserve():
            order.append("direct")

    async def pooled() -> None:
        async with pool.reserve():
            order.append("pooled")

    await ask(pool)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pooled)
        await wait_all_tasks_blocked()
        nursery.start_soon(direct)
    assert order == ["direct", "pooled"]
    assert trio.current_time() == pytest.approx(2)
    assert_nothing_held(pool)


def test_senseless_pools_are_refused() -> None:
    limiter = Limiter("model", requests_per_minute=5)
    with pytest.raises(ValueError, match="at least 1"):
        ProviderPool([])
    with pytest.raises(ValueError, match="twice"):
        ProviderPool([limiter, limiter])
    with pytest.raises(TypeError, match="'openai'"):
        ProviderPool(["openai"])  # type: ignore[list-item]


async def test_a_pools_reservation_is_entered_once(autojump_clock: MockClock) -> None:
    asked = pool_of(first=60).reserve()
    async with asked:
        pass
    with pytest.raises(ReservationError, match="once"):
        async with asked:
            pass
    with pytest.raises(ValueError, match="tokens"):
        pool_of(first=60).reserve(tokens=-1)
