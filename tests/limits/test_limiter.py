"""What a limiter grants, charges and refuses."""

from __future__ import annotations

import math
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from harness.errors import LimiterRunError, ReservationError
from harness.limits import AdaptiveCapacity, Limiter, Rate


def used(limiter: Limiter, name: str = "requests") -> float:
    return limiter.statistics().dimensions[name].used


def assert_nothing_held(limiter: Limiter) -> None:
    statistics = limiter.statistics()
    assert (statistics.waiting, statistics.in_flight) == (0, 0)
    assert all(dimension.unsettled == 0 for dimension in statistics.dimensions.values())


async def test_a_hundred_callers_and_tokens_for_ten(autojump_clock: MockClock) -> None:
    """All read 'nothing used yet', and passed together: reserving first lets ten pass."""
    limiter = Limiter("model", tokens=Rate(1_000, 60), burst_seconds=60)
    sent: list[float] = []

    async def call() -> None:
        async with limiter.reserve(tokens=100):
            sent.append(trio.current_time())

    with trio.move_on_after(59):
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(call)
    assert len(sent) == 10
    assert_nothing_held(limiter)


async def test_refused_for_a_place_costs_no_request(autojump_clock: MockClock) -> None:
    """A call that was refused for concurrency still spent a request."""
    limiter = Limiter("model", requests_per_minute=6_000, concurrent=2)
    async with limiter.reserve(), limiter.reserve():
        before = used(limiter)
        for _ in range(1_000):
            with pytest.raises(trio.WouldBlock):
                limiter.reserve_nowait()
        assert used(limiter) == before == 2
    assert_nothing_held(limiter)


async def test_all_dimensions_or_none(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=100, tokens=Rate(50, 60), burst_seconds=60)
    async with limiter.reserve(tokens=40):
        pass
    with pytest.raises(trio.WouldBlock):
        limiter.reserve_nowait(tokens=20)
    assert used(limiter) == 1
    assert used(limiter, "tokens") == 40


async def test_an_estimate_above_the_limit_is_granted_at_once_and_repaid(
    autojump_clock: MockClock,
) -> None:
    """A default estimate of 1,024 refused the first call of an idle 500-token limiter."""
    limiter = Limiter("small", tokens_per_minute=500)
    async with limiter.reserve(tokens=1_024):
        assert trio.current_time() == 0
    async with limiter.reserve(tokens=1):
        # The burst of 8.3 pays part of it; the rest comes back at 500 per minute.
        assert trio.current_time() == pytest.approx((1_024 + 1) / 500 * 60 - 1)
    assert_nothing_held(limiter)


async def test_a_request_larger_than_the_bucket_does_not_hang(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", tokens=Rate(666, 1))
    async with limiter.reserve(tokens=10):
        pass
    with trio.fail_after(10):
        async with limiter.reserve(tokens=800):
            assert trio.current_time() == 1, "an empty window and a full bucket"
        async with limiter.reserve(tokens=1):
            assert trio.current_time() >= 2


async def test_settling_gives_back_and_charges_what_is_beyond(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", tokens=Rate(100, 10), burst_seconds=10)
    async with limiter.reserve(tokens=80) as reservation:
        reservation.settle(tokens=10)
        assert used(limiter, "tokens") == 10
    async with limiter.reserve(tokens=50) as reservation:
        reservation.settle(tokens=120)
    assert used(limiter, "tokens") == 130
    assert limiter.statistics().debt["tokens"] == 30
    async with limiter.reserve(tokens=1):
        assert trio.current_time() == 10, "an overrun is repaid before the next grant"


async def test_leaving_without_settling_keeps_the_estimate(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", tokens_per_minute=10_000)
    async with limiter.reserve(tokens=100):
        pass
    with pytest.raises(ValueError, match="boom"):
        async with limiter.reserve(tokens=200):
            raise ValueError("boom")
    assert used(limiter, "tokens") == 300
    assert_nothing_held(limiter)


async def test_a_refund_gives_back_request_tokens_and_window(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=1, tokens_per_minute=100)
    for _ in range(5):
        async with limiter.reserve(tokens=100) as reservation:
            reservation.refund()
        assert used(limiter) == used(limiter, "tokens") == 0
    assert trio.current_time() == 0
    async with limiter.reserve(tokens=1):
        assert trio.current_time() == 0


async def test_a_second_settle_or_refund_is_an_error(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", tokens_per_minute=1_000)
    async with limiter.reserve(tokens=10) as reservation:
        reservation.settle(tokens=5)
        for again in (partial(reservation.settle, tokens=5), reservation.refund):
            with pytest.raises(ReservationError, match="settled, refunded or left before"):
                again()
    async with limiter.reserve(tokens=10) as reservation:
        reservation.refund()
        for again in (reservation.settle, reservation.refund):
            with pytest.raises(ReservationError):
                again()
    async with limiter.reserve(tokens=10) as reservation:
        pass
    with pytest.raises(ReservationError):
        reservation.settle(tokens=5)
    assert used(limiter, "tokens") == 15


async def test_a_reservation_is_entered_once_and_settled_inside(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=60)
    reservation = limiter.reserve()
    with pytest.raises(ReservationError, match="not granted yet"):
        reservation.settle()
    async with reservation:
        pass
    with pytest.raises(ReservationError, match="once"):
        async with reservation:
            pass


async def test_a_bad_settle_changes_nothing_and_can_be_corrected(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("model", tokens_per_minute=1_000)
    async with limiter.reserve(tokens=10) as reservation:
        for bad in (-1, math.nan, math.inf):
            with pytest.raises(ValueError, match="tokens"):
                reservation.settle(tokens=bad)
        for wrong in ("5", True, [5]):
            with pytest.raises(TypeError, match="tokens"):
                reservation.settle(tokens=wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="output_tokens"):
            reservation.settle(input_tokens=5, output_tokens=-1)
        assert used(limiter, "tokens") == 10
        reservation.settle(tokens=7)
    assert used(limiter, "tokens") == 7
    assert_nothing_held(limiter)


async def test_nowait_is_charged_and_left_like_any_other(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=600, concurrent=1)
    reservation = limiter.reserve_nowait()
    assert limiter.statistics().in_flight == 1
    assert limiter.statistics().granted == 0, "not entered yet"
    with pytest.raises(trio.WouldBlock):
        limiter.reserve_nowait()
    async with reservation:
        assert limiter.statistics().granted == 1
    unused = limiter.reserve_nowait()
    unused.refund()
    assert used(limiter) == 1
    assert_nothing_held(limiter)


async def test_nowait_that_is_cancelled_as_it_is_entered_gives_its_place_back() -> None:
    """Nobody had entered it, so nobody left it, and the place was gone for good."""
    limiter = Limiter("model", requests_per_minute=600, concurrent=1)
    reservation = limiter.reserve_nowait()
    with trio.CancelScope() as scope:
        scope.cancel()
        async with reservation:
            raise AssertionError("entered")
    assert used(limiter) == 0
    assert_nothing_held(limiter)


async def test_nowait_never_overtakes_the_line(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", tokens=Rate(100, 60), burst_seconds=60)
    async with limiter.reserve(tokens=90):
        async with trio.open_nursery() as nursery:

            async def large() -> None:
                async with limiter.reserve(tokens=50):
                    pass

            nursery.start_soon(large)
            await wait_all_tasks_blocked()
            assert limiter.statistics().waiting == 1
            with pytest.raises(trio.WouldBlock):
                limiter.reserve_nowait(tokens=1)


async def test_what_tokens_default_to(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", tokens_per_minute=10**6)

    async def charged(**given: float | str | None) -> float:
        before = used(limiter, "tokens")
        async with limiter.reserve(**given) as reservation:  # type: ignore[arg-type]
            after = used(limiter, "tokens")
            reservation.refund()
        return after - before

    assert await charged() == limiter.estimate(model=None, input_tokens=None)
    assert await charged(tokens=0) == 0
    assert await charged(input_tokens=30, output_tokens=20) == 50
    assert await charged(input_tokens=0, output_tokens=0) == 0
    assert await charged(input_tokens=30, model="m") == limiter.estimate(model="m", input_tokens=30)
    async with limiter.reserve(tokens=500, model="m") as reservation:
        reservation.settle(input_tokens=100, output_tokens=40)
    assert limiter.estimate(model="m", input_tokens=10) == 50
    assert await charged(model="m") == 140
    assert await charged(input_tokens=10, model="m") == 50


async def test_input_and_output_have_limits_of_their_own(autojump_clock: MockClock) -> None:
    limiter = Limiter("anthropic", input_tokens_per_minute=60_000, output_tokens_per_minute=6_000)
    async with limiter.reserve(input_tokens=100, model="m") as reservation:
        assert used(limiter, "input_tokens") == 100
        assert used(limiter, "output_tokens") == 1_024
        reservation.settle(input_tokens=110, output_tokens=30)
    assert used(limiter, "input_tokens") == 110
    assert used(limiter, "output_tokens") == 30
    await trio.sleep(60)
    async with limiter.reserve(tokens=100, model="m"):
        assert used(limiter, "input_tokens") == 70
        assert used(limiter, "output_tokens") == 30


async def test_what_settle_does_not_mention_keeps_its_estimate(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", tokens_per_minute=10**6)
    async with limiter.reserve(input_tokens=100, output_tokens=50) as reservation:
        reservation.settle(output_tokens=10)
    assert used(limiter, "tokens") == 110
    async with limiter.reserve(tokens=100) as reservation:
        reservation.settle(status=200)
    assert used(limiter, "tokens") == 210


def test_a_requested_maximum_counts_only_where_the_provider_counts_it() -> None:
    asked = {"model": "m", "input_tokens": 100, "max_output_tokens": 4_000}
    assert Limiter("openai", tokens_per_minute=1).estimate(**asked) == 4_100  # type: ignore[arg-type]
    assert Limiter("azure", tokens_per_minute=1).estimate(**asked) == 4_100  # type: ignore[arg-type]
    assert Limiter("anthropic", tokens_per_minute=1).estimate(**asked) == 1_124  # type: ignore[arg-type]
    asked["max_output_tokens"] = 10
    assert Limiter("anthropic", tokens_per_minute=1).estimate(**asked) == 110  # type: ignore[arg-type]


def test_what_counts_differs_by_provider() -> None:
    anthropic = Limiter("Anthropic", requests_per_minute=5).profile
    openai = Limiter("main account", requests_per_minute=5, provider="openai").profile
    assert anthropic.counted_input_tokens(1_000, cache_read_tokens=900) == 100
    assert openai.counted_input_tokens(1_000, cache_read_tokens=900) == 1_000
    assert openai.counts_requested_maximum
    assert not anthropic.counts_requested_maximum


async def test_places_are_given_back_whatever_happens(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", concurrent=3)
    most = 0

    async def call(index: int) -> None:
        nonlocal most
        async with limiter.reserve():
            most = max(most, limiter.statistics().in_flight)
            await trio.sleep(1)
            if index % 3 == 0:
                raise ValueError(index)

    async def tolerant(index: int) -> None:
        with trio.move_on_after(5.5 if index % 5 == 0 else 100):
            try:
                await call(index)
            except ValueError:
                pass

    async with trio.open_nursery() as nursery:
        for index in range(60):
            nursery.start_soon(tolerant, index)
    assert most == 3
    assert_nothing_held(limiter)
    assert limiter.statistics().concurrent == 3


async def test_an_adaptive_capacity_is_fed_by_settle(autojump_clock: MockClock) -> None:
    capacity = AdaptiveCapacity(minimum=1, start=8, maximum=20, cooldown=15)
    limiter = Limiter("model", concurrent=capacity)
    async with limiter.reserve() as reservation:
        reservation.settle(status=429, headers={"retry-after": "0"})
    assert capacity.limit == 4
    await trio.sleep(20)

    async def call() -> None:
        async with limiter.reserve() as reservation:
            await trio.sleep(1)
            reservation.settle(status=200)

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(call)
    assert capacity.limit > 4
    assert limiter.statistics().concurrent == capacity.limit
    assert_nothing_held(limiter)
    limiter.reset()
    assert capacity.limit == 8


async def test_the_capacity_reaches_its_minimum_under_long_pauses(
    autojump_clock: MockClock,
) -> None:
    capacity = AdaptiveCapacity(start=100)
    for _ in range(400):
        capacity.record(status=429, in_use=1, retry_after=89)
        await trio.sleep(2)
    assert capacity.limit == 1


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, ValueError),
        ({"requests_per_minute": 0}, ValueError),
        ({"requests_per_minute": -5}, ValueError),
        ({"tokens_per_minute": math.nan}, ValueError),
        ({"tokens_per_minute": math.inf}, ValueError),
        ({"requests_per_minute": "60"}, TypeError),
        ({"requests_per_minute": True}, TypeError),
        ({"requests": 60}, TypeError),
        ({"concurrent": 0}, ValueError),
        ({"concurrent": 2.5}, TypeError),
        ({"concurrent": True}, TypeError),
        ({"requests_per_minute": 5, "headroom": 0}, ValueError),
        ({"requests_per_minute": 5, "headroom": 1.1}, ValueError),
        ({"requests_per_minute": 5, "burst_seconds": -1}, ValueError),
        ({"requests_per_minute": 5, "provider": "nobody"}, ValueError),
        ({"requests_per_minute": 5, "provider": 5}, TypeError),
    ],
)
def test_senseless_limits_are_refused(given: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        Limiter("model", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"tokens": -1}, ValueError),
        ({"tokens": math.nan}, ValueError),
        ({"tokens": math.inf}, ValueError),
        ({"tokens": "7"}, TypeError),
        ({"tokens": True}, TypeError),
        ({"input_tokens": -1}, ValueError),
        ({"output_tokens": -1}, ValueError),
        ({"priority": math.nan}, ValueError),
        ({"priority": "high"}, TypeError),
    ],
)
@pytest.mark.parametrize("limits", [{"requests_per_minute": 5}, {"tokens_per_minute": 5}])
def test_senseless_requests_are_refused(
    limits: dict[str, float], given: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error, match=next(iter(given))):
        Limiter("model", **limits).reserve(**given)  # type: ignore[arg-type]


def test_a_limiter_with_no_name_or_no_limit_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="requests_per_minute"):
        Limiter("model")
    with pytest.raises(TypeError, match="string"):
        Limiter(5, requests_per_minute=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="minimum <= start <= maximum"):
        AdaptiveCapacity(minimum=5, start=2)


def test_use_in_a_second_run_is_an_error_until_reset() -> None:
    limiter = Limiter("model", requests_per_minute=60, concurrent=2)

    async def use() -> None:
        async with limiter.reserve():
            pass

    async def nowait() -> None:
        limiter.reserve_nowait()

    async def pause() -> None:
        limiter.pause(1)

    async def observe() -> None:
        limiter.observe(status=200)

    trio.run(use)
    for again in (use, nowait, pause, observe):
        with pytest.raises(LimiterRunError, match=r"run.*limiter\.reset\(\)"):
            trio.run(again)
    limiter.reset()
    trio.run(use)
    limiter.reset()
    trio.run(partial(trio.sleep, 0))
    trio.run(use)


def test_a_reservation_of_an_earlier_run_cannot_hurt_the_next() -> None:
    limiter = Limiter("model", requests_per_minute=60, concurrent=2)
    kept = []

    async def leave_open() -> None:
        kept.append(limiter.reserve_nowait())

    async def settle_late() -> None:
        assert limiter.statistics().in_flight == 0
        async with kept[0] as reservation:
            reservation.settle()
        assert limiter.statistics().in_flight == 0

    trio.run(leave_open)
    limiter.reset()
    trio.run(settle_late)


def test_statistics_can_be_read_when_all_is_over() -> None:
    limiter = Limiter("model", requests_per_minute=60, tokens_per_minute=600)
    assert limiter.statistics().granted == 0

    async def use() -> None:
        async with limiter.reserve(tokens=5):
            pass

    async def look() -> None:
        assert limiter.statistics().use == {"requests": 1 / 60, "tokens": 5 / 600}

    trio.run(use)
    assert limiter.statistics().use == {"requests": 1 / 60, "tokens": 5 / 600}
    trio.run(look, clock=MockClock())
    assert limiter.statistics().granted == 1


async def test_reset_refuses_while_tasks_wait(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", concurrent=1)
    async with trio.open_nursery() as nursery:
        async with limiter.reserve():

            async def call() -> None:
                async with limiter.reserve():
                    pass

            nursery.start_soon(call)
            await wait_all_tasks_blocked()
            with pytest.raises(LimiterRunError, match="1 tasks"):
                limiter.reset()


async def test_statistics_are_frozen_and_say_it_in_words(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=60, tokens_per_minute=6_000, concurrent=5)
    async with limiter.reserve(tokens=600):
        statistics = limiter.statistics()
    assert statistics.use == {"requests": 1 / 60, "tokens": 0.1}
    assert statistics.dimensions["tokens"].unsettled == 600
    assert statistics.debt == {"requests": 0, "tokens": 500}
    assert str(statistics) == (
        "model: requests 2%, tokens 10%; 1 of 5 in flight, 0 waiting; 0 waited 0.0 s on average"
    )
    with pytest.raises(AttributeError):
        statistics.granted = 5  # type: ignore[misc]
    assert repr(limiter) == (
        "<Limiter 'model', requests: 60 per 60 s, tokens: 6000 per 60 s, 5 at once>"
    )


async def test_entering_is_a_checkpoint_and_leaving_is_not(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=60_000)
    with trio.CancelScope() as scope:
        scope.cancel()
        async with limiter.reserve():
            pytest.fail("a cancelled task must not get a reservation")
    assert scope.cancelled_caught
    assert used(limiter) == 0
    with trio.testing.assert_checkpoints():
        entered = await limiter.reserve().__aenter__()
    with trio.testing.assert_no_checkpoints():
        await entered.__aexit__(None, None, None)
