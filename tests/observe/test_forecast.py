"""Forecasts of what is left of a batch; `tests/cli/test_forecast.py` holds them against batches."""

from __future__ import annotations

import heapq
import random
import statistics
from functools import partial

import pytest

from harness.limits import Limiter
from harness.observe._forecast import LIMIT, Forecast, Rest, Seen, from_items, from_limits


def forecast(seen: list[Seen], rest: Rest, seed: int = 0) -> Forecast:
    *_, found = from_items(seen, rest, seed=seed)
    assert found is not None
    return found


def at_a_share(
    share: float, took: list[float], limit: int
) -> tuple[list[Seen], list[float], float, float]:
    """Return what has ended by the time that a share has, what is in flight, and both times."""
    running: list[tuple[float, int]] = []
    began: dict[int, float] = {}
    seen: list[Seen] = []
    ages: list[float] = []
    now = at = 0.0
    for number in [*range(len(took)), *[-1] * limit]:
        if len(running) == limit or number < 0:
            now, ended = heapq.heappop(running)
            if not at:
                seen.append(Seen(took[ended]))
                del began[ended]
                if len(seen) >= share * len(took):
                    at, ages = now, [now - since for since in began.values()]
        if number >= 0:
            began[number] = now
            heapq.heappush(running, (now + took[number], number))
    return seen, ages, at, now


@pytest.mark.slow
def test_after_five_percent_the_range_holds_in_18_of_20_seeds() -> None:
    """The short items end first: a mean of those that have ended would be a third too low."""
    held = 0
    errors: list[float] = []
    naive: list[float] = []
    for seed in range(20):
        draw = random.Random(seed)
        took = [draw.lognormvariate(3, 0.8) for _ in range(1_000)]
        seen, ages, at, real = at_a_share(0.05, took, 25)
        found = forecast(seen, Rest(items=950, limit=25, in_flight=ages, elapsed=at, busy=at * 25))
        held += found.low <= real <= found.high
        errors.append(found.seconds / real - 1)
        naive.append(statistics.fmean(one.seconds for one in seen) / statistics.fmean(took) - 1)
    off = statistics.median(map(abs, errors))
    print(f"held {held} of 20; the middle is off by {off:.1%}, on average {_mean(errors):+.1%}")
    assert held >= 18
    assert off < 0.15
    assert abs(_mean(errors)) < 0.1
    assert _mean(naive) < -0.3


def _mean(errors: list[float]) -> float:
    return statistics.fmean(errors)


def test_items_that_all_take_the_same_are_forecast_exactly() -> None:
    found = forecast([Seen(2.0)] * 30, Rest(items=60, limit=10, elapsed=6.0, busy=60.0))
    assert found.low == pytest.approx(found.high) == pytest.approx(6 + 12, rel=0.01)
    assert (found.binding, found.per_second) == (LIMIT, pytest.approx(5.0))


def test_what_is_in_flight_has_only_its_rest_to_do() -> None:
    rest = Rest(items=10, limit=10, in_flight=[1.5] * 10, elapsed=6.0, busy=60.0)
    assert forecast([Seen(2.0)] * 30, rest).seconds == pytest.approx(6.5)


@pytest.mark.parametrize(
    ("limits", "binding", "seconds"),
    [
        ({"requests_per_minute": 60}, "requests", 600),
        ({"tokens_per_minute": 6_000}, "tokens", 1_200),
        ({"concurrent": 1}, "places", 1_200),
        ({"requests_per_minute": 60_000}, LIMIT, 120),
    ],
)
def test_what_binds_is_named_and_sets_the_time(
    limits: dict[str, float], binding: str, seconds: float
) -> None:
    rest = Rest(items=600, limit=10, limiter=partial(Limiter, **limits))  # type: ignore[arg-type]
    found = forecast([Seen(2.0, 1, 200.0)] * 30, rest)
    assert found.binding == binding
    assert found.seconds == pytest.approx(seconds, rel=0.02)
    assert found.tokens_each == pytest.approx(200)


def test_items_that_make_several_calls_wait_for_each() -> None:
    rest = Rest(items=100, limit=50, limiter=partial(Limiter, requests_per_minute=60))
    found = forecast([Seen(2.0, 3)] * 30, rest)
    assert found.seconds == pytest.approx(300, rel=0.02)
    assert found.calls_each == pytest.approx(3)


def test_what_held_the_batch_up_so_far_will_do_so_again() -> None:
    """A source or a provider's pauses: what binds by the numbers was used by half."""
    rest = Rest(items=50, limit=10, elapsed=20.0, busy=100.0)
    assert forecast([Seen(2.0)] * 50, rest).seconds == pytest.approx(20 + 20, rel=0.02)
    limited = Rest(
        items=60,
        limit=50,
        limiter=partial(Limiter, requests_per_minute=60),
        elapsed=60.0,
        requests=30,
    )
    assert forecast([Seen(2.0)] * 30, limited).seconds == pytest.approx(60 + 120, rel=0.05)


@pytest.mark.slow
def test_a_timeout_bounds_the_last_straggler() -> None:
    draw = random.Random(1)
    seen = [Seen(min(draw.lognormvariate(3, 1.2), 60.0)) for _ in range(100)]
    rest = Rest(items=2_000, limit=100, elapsed=60.0, busy=6_000.0)
    free = forecast(seen, rest)
    bound = forecast(seen, Rest(items=2_000, limit=100, elapsed=60.0, busy=6_000.0, most=60.0))
    assert bound.high < free.high


@pytest.mark.slow
def test_more_items_say_more() -> None:
    draw = random.Random(1)
    seen = [Seen(draw.lognormvariate(3, 0.8)) for _ in range(400)]

    def width(count: int) -> float:
        found = forecast(seen[:count], Rest(items=20_000, limit=50))
        return (found.high - found.low) / found.seconds

    assert width(400) < 0.6 * width(40)


def test_items_that_use_no_tokens_are_forecast_too() -> None:
    rest = Rest(items=100, limit=10, limiter=partial(Limiter, tokens_per_minute=600))
    assert forecast([Seen(2.0)] * 30, rest).seconds == pytest.approx(20, rel=0.01)


def test_without_a_record_the_limits_say_how_long_it_takes_at_least() -> None:
    rest = Rest(items=600, limit=10, limiter=partial(Limiter, tokens_per_minute=6_000))
    found = from_limits(rest, 200)
    assert found is not None
    assert found.is_least
    assert found.seconds == found.low == found.high == pytest.approx(1_200)
    assert from_limits(rest, None) is None, "nobody knows how many tokens"
    assert from_limits(Rest(items=600, limit=10), 200) is None, "nothing is limited"
    places = Rest(items=600, limit=10, limiter=partial(Limiter, concurrent=5))
    assert from_limits(places, 200) is None, "nobody knows how long an item takes"
