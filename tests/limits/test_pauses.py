"""429 and what follows: one shared pause, a paced release, quotas, the provider's own count."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from harness.errors import QuotaExhaustedError, RateLimitedError
from harness.limits import AdaptiveCapacity, Limiter, Rate


async def refuse(limiter: Limiter, **headers: str) -> None:
    """Make one call that the provider refuses."""
    async with limiter.reserve() as reservation:
        reservation.settle(
            status=429, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )


async def grant_times(limiter: Limiter, count: int) -> list[float]:
    times: list[float] = []

    async def call() -> None:
        async with limiter.reserve() as reservation:
            times.append(trio.current_time())
            reservation.settle(status=200)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(call)
    return times


async def test_no_request_comes_before_retry_after(autojump_clock: MockClock) -> None:
    """Retries fired at once, and the header was ignored."""
    limiter = Limiter("model", requests_per_minute=6_000)
    await refuse(limiter, retry_after="2")
    times = await grant_times(limiter, 50)
    assert 2 < times[0] <= 5


async def test_the_release_is_paced_and_begins_with_one(autojump_clock: MockClock) -> None:
    """All waiters slept the same time, and then collided."""
    limiter = Limiter("model", requests_per_minute=600)
    await refuse(limiter, retry_after="30")
    times = await grant_times(limiter, 100)
    assert 30 < times[0] <= 40
    assert sum(time < times[0] + 0.1 for time in times) == 1, "one probe"
    assert all(later - earlier > 0.09 for earlier, later in pairwise(times))


async def test_the_pause_is_for_those_who_wait_already(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=60)
    async with trio.open_nursery() as nursery:
        async with limiter.reserve() as reservation:

            async def call() -> None:
                async with limiter.reserve():
                    assert trio.current_time() > 20.5

            nursery.start_soon(call)
            await trio.sleep(0.5)
            reservation.settle(status=429, headers={"retry-after": "20"})


async def test_many_refusals_of_one_moment_are_one_pause(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=6_000)

    async def refused(after: float) -> None:
        async with limiter.reserve() as reservation:
            await trio.sleep(after)
            reservation.settle(status=429, headers={"retry-after": "10"})

    async with trio.open_nursery() as nursery:
        for index in range(20):
            nursery.start_soon(refused, index)
    statistics = limiter.statistics()
    assert statistics.pauses == 1, "the late ones were sent before the pause"
    assert statistics.rate_limited == 20
    assert statistics.paused_seconds == 0


async def test_refusals_without_a_delay_wait_longer_each_time(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=6_000)
    times = []
    for _ in range(4):
        async with limiter.reserve() as reservation:
            times.append(trio.current_time())
            reservation.settle(status=429)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert 1 < gaps[0] < 1.5
    assert 2 < gaps[1] < 2.5
    assert 4 < gaps[2] < 4.7


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "soon"])
async def test_a_senseless_delay_counts_as_none(value: str, autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=6_000)
    await refuse(limiter, retry_after=value)
    assert 0 < limiter.statistics().paused_seconds < 2
    assert limiter.statistics().unreadable == 1


async def test_pause_by_hand(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=6_000)
    limiter.pause(30)
    limiter.pause(5)
    with pytest.raises(trio.WouldBlock):
        limiter.reserve_nowait()
    async with limiter.reserve():
        assert 30 < trio.current_time() <= 40
    for bad in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="seconds"):
            limiter.pause(bad)
    with pytest.raises(TypeError):
        limiter.pause("30")  # type: ignore[arg-type]


async def test_a_very_long_pause_is_an_error_and_not_a_wait(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=60)
    errors: list[RateLimitedError] = []

    async def call() -> None:
        try:
            async with limiter.reserve():
                pytest.fail("granted")
        except RateLimitedError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        async with limiter.reserve() as reservation:
            for _ in range(10):
                nursery.start_soon(call)
            await wait_all_tasks_blocked()
            reservation.settle(status=429, headers={"retry-after": "600"})
    assert len(errors) == 10
    assert errors[0].retry_after == pytest.approx(600)
    with pytest.raises(RateLimitedError, match="pause of 600 s"):
        async with limiter.reserve():
            pass
    with pytest.raises(trio.WouldBlock):
        limiter.reserve_nowait()
    await trio.sleep(500)
    async with limiter.reserve():
        assert trio.current_time() > 600, "what is left of it is short enough to wait"


@pytest.mark.parametrize("seconds", [119, 120])
async def test_two_minutes_are_still_waited_for(seconds: int, autojump_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=60)
    limiter.pause(seconds)
    async with limiter.reserve():
        assert seconds < trio.current_time() <= seconds + 10


TOO_LARGE = {
    "error": {
        "message": "Request too large for m on tokens per min (TPM): Limit 30000, Requested 45000.",
        "code": "rate_limit_exceeded",
    }
}


async def test_a_request_above_the_limit_pauses_nobody(autojump_clock: MockClock) -> None:
    """One hopeless request, asked again and again, once took 92 % of the limit from the others."""
    limiter = Limiter("openai", requests_per_minute=600, concurrent=AdaptiveCapacity(1, 10, 100))
    served = 0

    async def small() -> None:
        nonlocal served
        while True:
            async with limiter.reserve() as reservation:
                reservation.settle(status=200)
            served += 1

    with trio.move_on_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(small)
            for _ in range(20):
                async with limiter.reserve() as reservation:
                    reservation.settle(status=429, headers={"retry-after": "3"}, body=TOO_LARGE)
                await trio.sleep(1)
    statistics = limiter.statistics()
    assert (statistics.pauses, statistics.rate_limited, statistics.concurrent) == (0, 0, 10)
    assert served >= 0.95 * 600


RPD = "Rate limit reached for m on requests per day (RPD): Limit 10000, Used 10000, Requested 1."


async def test_a_rolling_quota_is_waited_for_if_the_wait_is_short(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("openai", requests_per_minute=600)
    body = {"error": {"message": f"{RPD} Please try again in 8.64s."}}
    async with limiter.reserve() as reservation:
        reservation.settle(status=429, body=body)
    async with limiter.reserve():
        assert 8.64 < trio.current_time() < 10


async def test_a_rolling_quota_says_when_it_is_back(autojump_clock: MockClock) -> None:
    limiter = Limiter("openai", requests_per_minute=600)
    body = {"error": {"message": f"{RPD} Please try again in 14m24s."}}
    async with limiter.reserve() as reservation:
        reservation.settle(status=429, body=body)
    with pytest.raises(QuotaExhaustedError, match="back in 864 s") as caught:
        async with limiter.reserve():
            pass
    assert caught.value.resets_after == 864
    await trio.sleep(864)
    async with limiter.reserve():
        pass


DAILY = {"error": {"message": "Rate limit reached on requests per day (RPD): Limit 200"}}


@pytest.mark.parametrize(
    ("provider", "headers", "body"),
    [
        ("openai", {}, DAILY),
        ("openai", {"retry-after": "20"}, DAILY),
        ("groq", {"x-ratelimit-remaining-requests": "0"}, None),
        ("groq", {"x-ratelimit-remaining-requests": "0", "retry-after": "7200"}, None),
    ],
)
async def test_a_daily_quota_fails_at_once(
    provider: str, headers: Mapping[str, str], body: object, autojump_clock: MockClock
) -> None:
    """It was retried for hours."""
    limiter = Limiter(provider, requests_per_minute=60)
    errors = 0

    async def call() -> None:
        nonlocal errors
        with pytest.raises(QuotaExhaustedError):
            async with limiter.reserve():
                pass
        errors += 1

    async with trio.open_nursery() as nursery:
        async with limiter.reserve() as reservation:
            nursery.start_soon(call)
            await wait_all_tasks_blocked()
            reservation.settle(status=429, headers=headers, body=body)
    assert trio.current_time() == 0
    assert errors == 1
    with pytest.raises(QuotaExhaustedError, match="retrying can't help"):
        async with limiter.reserve():
            pass
    with pytest.raises(trio.WouldBlock):
        limiter.reserve_nowait()
    assert not isinstance(QuotaExhaustedError("x"), RateLimitedError)
    await trio.sleep(7_200)
    async with limiter.reserve():
        pass


async def test_the_error_of_a_client_library_is_read_on_the_way_out(
    autojump_clock: MockClock,
) -> None:
    """A function that only raises what its client raised still begins the shared pause."""

    class Response:
        headers = {"retry-after": "7"}  # noqa: RUF012
        status_code = 429

    class ClientError(Exception):
        response = Response()

    limiter = Limiter("model", requests_per_minute=6_000)
    with pytest.raises(ClientError):
        async with limiter.reserve():
            raise ClientError
    assert 7 < limiter.statistics().paused_seconds < 9
    with pytest.raises(ZeroDivisionError):
        async with limiter.reserve():
            raise ZeroDivisionError
    assert limiter.statistics().pauses == 1


# What responses say of the provider's count -----------------------------------------------------


def openai_headers(*, limit: int, remaining: int, reset: str = "30s") -> dict[str, str]:
    return {
        "x-ratelimit-limit-requests": str(limit),
        "x-ratelimit-remaining-requests": str(remaining),
        "x-ratelimit-reset-requests": reset,
    }


def grantable_now(limiter: Limiter) -> int:
    count = 0
    while True:
        try:
            limiter.reserve_nowait()
        except trio.WouldBlock:
            return count
        count += 1


async def test_available_is_what_remains_less_what_is_unsettled(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("openai", requests=Rate(100, 60), burst_seconds=60)
    for _ in range(4):
        limiter.reserve_nowait()
    async with limiter.reserve() as reservation:
        reservation.settle(status=200, headers=openai_headers(limit=100, remaining=94))
    assert grantable_now(limiter) == 90


async def test_a_providers_remaining_bounds_the_window_and_not_only_the_burst(
    autojump_clock: MockClock,
) -> None:
    """Others use the same key: 5 of 100 are left, and more come back at the rate of the limit."""
    limiter = Limiter("openai", requests=Rate(100, 60), burst_seconds=60)
    limiter.observe(status=200, headers=openai_headers(limit=100, remaining=5, reset="57s"))
    times: list[float] = []
    with trio.move_on_after(30):
        times = []

        async def call() -> None:
            async with limiter.reserve():
                times.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(call)
    assert len(times) <= 5 + 30 * 100 / 60
    assert len(times) >= 10


async def test_a_reset_on_a_success_is_not_a_wait(autojump_clock: MockClock) -> None:
    limiter = Limiter("openai", requests_per_minute=600)
    limiter.observe(status=200, headers=openai_headers(limit=600, remaining=599, reset="59s"))
    async with limiter.reserve():
        assert trio.current_time() == 0


async def test_it_slows_down_above_four_fifths_before_the_first_refusal(
    autojump_clock: MockClock,
) -> None:
    def limiter_with(remaining: int) -> Limiter:
        limiter = Limiter("openai", requests_per_minute=600)
        limiter.observe(
            status=200, headers=openai_headers(limit=600, remaining=remaining, reset="55s")
        )
        return limiter

    async def in_two_seconds(limiter: Limiter) -> int:
        granted = 0
        with trio.move_on_after(2):
            while True:
                async with limiter.reserve():
                    granted += 1
        return granted

    assert await in_two_seconds(limiter_with(500)) >= 25, "the burst of 10, and 10 a second"
    assert await in_two_seconds(limiter_with(60)) <= 12
    assert await in_two_seconds(limiter_with(30)) <= 7
    few, many = limiter_with(60).statistics(), limiter_with(500).statistics()
    assert few.dimensions["requests"].slowing
    assert "requests 0%, slowing at 80 %;" in str(few)
    assert not many.dimensions["requests"].slowing
    assert "slowing" not in str(many)


async def test_a_lower_limit_is_taken_over_and_given_back(autojump_clock: MockClock) -> None:
    limiter = Limiter("openai", requests_per_minute=1_000)
    limiter.observe(status=200, headers=openai_headers(limit=500, remaining=499))
    assert limiter.statistics().dimensions["requests"].limit == 500
    limiter.observe(status=200, headers=openai_headers(limit=5_000, remaining=4_999))
    assert limiter.statistics().dimensions["requests"].limit == 1_000, "never above the stated"


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "", "many"])
async def test_senseless_counts_are_absent_and_counted(
    value: str, autojump_clock: MockClock
) -> None:
    limiter = Limiter("openai", requests_per_minute=600)
    before = limiter.statistics().dimensions
    limiter.observe(
        status=200,
        headers={
            "x-ratelimit-limit-requests": value,
            "x-ratelimit-remaining-requests": value,
            "x-ratelimit-reset-requests": value,
        },
    )
    assert limiter.statistics().dimensions == before
    assert limiter.statistics().unreadable == 3


async def test_a_remaining_of_zero_never_stops_for_good(autojump_clock: MockClock) -> None:
    """A reset of years, or none at all, must not hold the line: the limit comes back anyway."""
    for reset in ("900000s", "", "-1"):
        limiter = Limiter("openai", requests_per_minute=60)
        limiter.observe(status=200, headers=openai_headers(limit=60, remaining=0, reset=reset))
        started = trio.current_time()
        async with limiter.reserve():
            assert trio.current_time() - started <= 61


@pytest.mark.parametrize("status", ["429", None, object(), 10**30, -1, True])
async def test_settling_never_raises_for_a_status(
    status: object, autojump_clock: MockClock
) -> None:
    limiter = Limiter("model", requests_per_minute=60, concurrent=AdaptiveCapacity())
    async with limiter.reserve() as reservation:
        reservation.settle(status=status)  # type: ignore[arg-type]
    limiter.observe(status=status)  # type: ignore[arg-type]
    assert limiter.statistics().in_flight == 0


@pytest.mark.slow
async def test_a_storm_of_thirty_seconds(autojump_clock: MockClock) -> None:
    """A thousand tasks, an outage of 30 s without Retry-After: all succeed, few are refused."""
    limiter = Limiter("model", requests_per_minute=30_000)
    succeeded = refused = 0

    async def call() -> None:
        nonlocal succeeded, refused
        while True:
            async with limiter.reserve() as reservation:
                await trio.sleep(0.2)
                if trio.current_time() < 30:
                    refused += 1
                    reservation.settle(status=429)
                    continue
                succeeded += 1
                reservation.settle(status=200)
                return

    async with trio.open_nursery() as nursery:
        for _ in range(1_000):
            nursery.start_soon(call)
    assert succeeded == 1_000
    assert trio.current_time() < 100
    assert limiter.statistics().pauses <= 7
