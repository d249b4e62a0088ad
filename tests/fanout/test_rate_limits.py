"""Waiting out a rate limit spends no attempt, and has an end."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import RateLimitedError
from harness.limits import Limiter
from tests.fanout.probes import Boom, StatusError, nothing_left_behind, statuses

BEST_EFFORT = harness.BestEffort()


def by_status(status: int) -> BaseException:
    """Return an error with ``.status``."""
    error: Any = Boom(status)
    error.status = status
    return error  # type: ignore[no-any-return]


def by_response(status: int) -> BaseException:
    """Return an error with ``.response.status_code``."""
    error: Any = Boom(status)
    error.response = SimpleNamespace(status_code=status, headers={})
    return error  # type: ignore[no-any-return]


def retry(attempts: int, **arguments: Any) -> harness.Attempt:
    """Return an `Attempt` that retries after one second exactly."""
    arguments = {"first_delay": 1, "factor": 1, "jitter": 0, **arguments}
    return harness.Attempt(retry=harness.Retry(attempts, **arguments))


@pytest.mark.parametrize("status", [429, 529])
@pytest.mark.parametrize(
    "make_error",
    [StatusError, by_status, by_response, lambda status: RateLimitedError("slow down")],
    ids=["status_code", "status", "response", "RateLimitedError"],
)
async def test_a_rate_limit_spends_no_attempt(
    autojump_clock: MockClock, make_error: Any, status: int
) -> None:
    calls = 0

    async def body(item: str) -> str:
        nonlocal calls
        calls += 1
        await trio.lowlevel.checkpoint()
        if calls <= 8:
            raise make_error(status)
        return item

    [result] = await harness.fan_out(body, ["x"], each=retry(2))
    assert (result.status, result.attempts) == ("ok", 1)
    assert calls == 9


async def test_other_statuses_spend_attempts(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        await trio.lowlevel.checkpoint()
        raise StatusError(item)

    results = await harness.fan_out(body, [500, 503, 400], each=retry(2), policy=BEST_EFFORT)
    assert [result.attempts for result in results] == [2, 2, 1], "a bad request stays one"


async def test_errors_and_rate_limits_are_counted_apart(autojump_clock: MockClock) -> None:
    plan = [429, 500, 429, 429, 500, 429, 200]
    steps = iter(plan)

    async def body(item: str) -> str:
        await trio.lowlevel.checkpoint()
        status = next(steps)
        if status != 200:
            raise StatusError(status)
        return item

    [result] = await harness.fan_out(body, ["x"], each=retry(3))
    assert result.status == "ok"
    steps = iter(plan)
    [result] = await harness.fan_out(body, ["x"], each=retry(2), policy=BEST_EFFORT)
    assert result.status == "failed"
    assert str(result.error) == "status 500"


async def test_no_request_is_sent_before_the_time_that_the_server_named(
    autojump_clock: MockClock,
) -> None:
    times: list[float] = []
    begin = trio.current_time()

    async def body(item: str) -> str:
        times.append(trio.current_time() - begin)
        await trio.lowlevel.checkpoint()
        if len(times) < 3:
            raise StatusError(429, retry_after=2)
        return item

    await harness.fan_out(body, ["x"], each=retry(2))
    assert times == [0, 2, 4]


@pytest.mark.slow
async def test_a_thousand_tasks_outlast_an_outage(autojump_clock: MockClock) -> None:
    """A storm after a 429 uses up a budget of three attempts within seconds."""
    begin = trio.current_time()

    async def body(item: int) -> int:
        await trio.sleep(0.1)
        if trio.current_time() - begin < 30:
            raise StatusError(429)
        return item

    with nothing_left_behind():
        results = await harness.fan_out(
            body,
            range(1_000),
            limit=200,
            each=harness.Attempt(retry=harness.Retry(3, first_delay=0.5, jitter=0.5)),
        )
    assert len(results.values()) == 1_000


async def test_the_waits_end_after_six_hundred_seconds_in_all(autojump_clock: MockClock) -> None:
    """Waits of 1 s, or 100 s as the server says: a provider that never recovers ends the item."""
    for wish in (None, 100):

        async def body(item: int, wish: float | None = wish) -> None:
            await trio.lowlevel.checkpoint()
            raise StatusError(429, retry_after=wish)

        begin = trio.current_time()
        with nothing_left_behind():
            [result] = await harness.fan_out(body, [1], each=retry(2), policy=BEST_EFFORT)
        assert 500 <= trio.current_time() - begin <= 601
        assert result.status == "failed"
        assert str(result.error) == "status 429"


async def test_a_wait_past_the_deadline_gives_up_at_once(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        await trio.sleep(1)
        raise StatusError(429, retry_after=60)

    begin = trio.current_time()
    results = await harness.fan_out(body, [1], each=retry(5), within=30, policy=BEST_EFFORT)
    assert trio.current_time() - begin == 1
    assert statuses(results) == ["failed"]
    assert str(results[0].error) == "status 429"


async def test_a_wait_of_more_than_six_hundred_seconds_gives_up_at_once(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> None:
        await trio.lowlevel.checkpoint()
        raise StatusError(429, retry_after=86_400)

    begin = trio.current_time()
    [result] = await harness.fan_out(body, [1], each=retry(5), policy=BEST_EFFORT)
    assert trio.current_time() == begin
    assert result.status == "failed"


async def test_without_a_retry_a_rate_limit_is_a_failure_like_others(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> None:
        await trio.lowlevel.checkpoint()
        raise StatusError(429, retry_after=1)

    [result] = await harness.fan_out(body, [1], policy=BEST_EFFORT)
    assert (result.status, result.attempts) == ("failed", 1)


async def test_a_rate_limit_inside_a_group_of_one_is_recognised(
    autojump_clock: MockClock,
) -> None:
    calls = 0

    async def refuses() -> None:
        await trio.lowlevel.checkpoint()
        raise StatusError(429)

    async def body(item: str) -> str:
        nonlocal calls
        calls += 1
        if calls <= 4:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(refuses)
        return item

    [result] = await harness.fan_out(body, ["x"], each=retry(2))
    assert result.status == "ok"


@pytest.mark.parametrize(
    ("options", "wish"),
    [({"first_delay": 0}, None), ({"first_delay": 0}, 0), ({"max_delay": 0}, None)],
)
async def test_waits_of_zero_are_stretched_from_the_second_on(
    autojump_clock: MockClock, options: dict[str, Any], wish: float | None
) -> None:
    """``Retry(first_delay=0)`` is meant for other errors: those spend attempts, and end.

    For a rate limit it was an endless loop that asked a struggling provider as fast as the
    machine could: 200,000 calls without a pause.
    """
    called_at: list[float] = []

    async def body(item: int) -> None:
        await trio.lowlevel.checkpoint()
        called_at.append(trio.current_time())
        if len(called_at) > 1_000:
            pytest.fail("it asks again and again, without a pause")
        raise RateLimitedError("slow down", retry_after=wish)

    results = await harness.fan_out(
        body, [1], each=retry(3, **options), within=5, policy=BEST_EFFORT
    )
    assert statuses(results) == ["failed"]
    gaps = [later - earlier for earlier, later in pairwise(called_at)]
    assert gaps[0] == 0, "one retry at once, as was asked"
    assert min(gaps[1:]) >= 0.099
    assert len(called_at) <= 52


@pytest.mark.slow
async def test_waits_of_zero_end_after_six_hundred_seconds_in_all(
    autojump_clock: MockClock,
) -> None:
    calls = 0

    async def body(item: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 10_000:
            pytest.fail("it asks again and again")
        raise RateLimitedError("slow down")

    begin = trio.current_time()
    [result] = await harness.fan_out(body, [1], each=retry(3, first_delay=0), policy=BEST_EFFORT)
    assert 599 <= trio.current_time() - begin <= 601
    assert isinstance(result.error, RateLimitedError)
    assert calls <= 6_002


async def test_a_wish_of_more_than_six_hundred_seconds_gives_up_at_once_for_any_error(
    autojump_clock: MockClock,
) -> None:
    """A ``Retry-After`` of 1e9, whatever the status: the item slept for thirty years."""

    async def body(item: int) -> None:
        await trio.lowlevel.checkpoint()
        raise StatusError(503, retry_after=1e9)

    begin = trio.current_time()
    [result] = await harness.fan_out(body, [1], each=retry(5), policy=BEST_EFFORT)
    assert trio.current_time() == begin
    assert (result.status, result.attempts) == ("failed", 1)
    assert isinstance(result.error, StatusError)


async def test_attempts_side_by_side_that_all_met_a_rate_limit_count_as_none(
    autojump_clock: MockClock,
) -> None:
    """Only the one that decided was taken back; the hedge beside it stayed in the count."""
    calls = 0

    async def body(item: str) -> str:
        nonlocal calls
        calls += 1
        if calls <= 2:
            await trio.sleep(5)
            raise RateLimitedError("slow down")
        return item

    each = harness.Attempt(
        retry=harness.Retry(2, first_delay=1, jitter=0), hedge=harness.Hedge(after=1)
    )
    results = await harness.fan_out(body, ["x"], each=each)
    assert calls == 3
    assert (results[0].status, results[0].attempts) == ("ok", 1)
    assert results.summary().attempts == 1


@pytest.mark.parametrize(("pause", "status", "attempts"), [(300, "ok", 1), (900, "failed", 0)])
async def test_an_attempt_that_the_limiter_refused_was_none(
    autojump_clock: MockClock, pause: float, status: str, attempts: int
) -> None:
    """It was taken back though it had never been counted: 0 attempts, or -1."""
    limiter = Limiter("account", concurrent=5)

    async def body(item: int) -> int:
        return item

    limiter.pause(pause)
    each = harness.Attempt(limiter=limiter, retry=harness.Retry(2))
    results = await harness.fan_out(body, [1], each=each, policy=harness.BestEffort())
    assert (results[0].status, results[0].attempts) == (status, attempts)
