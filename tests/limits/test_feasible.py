"""What `feasible` says is what a limiter then does."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from harness.limits import Feasible, Limiter, Rate


@pytest.mark.parametrize(
    ("limits", "request_", "expected"),
    [
        (
            {"requests_per_minute": 500, "tokens_per_minute": 100_000},
            {"tokens": 1_200, "seconds": 7.9},
            Feasible(83, 11, "tokens"),
        ),
        ({"requests_per_minute": 60}, {"seconds": 0.5}, Feasible(60, 1, "requests")),
        ({"requests_per_minute": 60}, {}, Feasible(60, None, "requests")),
        ({"concurrent": 5}, {}, Feasible(None, 5, "places")),
        (
            {"concurrent": 5, "requests_per_minute": 600},
            {"seconds": 2},
            Feasible(150, 5, "places"),
        ),
        ({"tokens_per_minute": 1_000}, {"tokens": 600}, Feasible(1, None, "tokens")),
        ({"tokens_per_minute": 1_000}, {"tokens": 4_000}, Feasible(0.25, None, "tokens")),
        (
            {"input_tokens_per_minute": 30_000, "output_tokens_per_minute": 8_000},
            {"tokens": 125, "output_tokens": 25},
            Feasible(300, None, "input_tokens"),
        ),
        (
            {"input_tokens_per_minute": 50_000, "output_tokens_per_minute": 8_000},
            {"tokens": 125, "output_tokens": 25},
            Feasible(320, None, "output_tokens"),
        ),
        (
            {"requests_per_minute": 100, "requests": Rate(1, 1)},
            {},
            Feasible(60, None, "requests per 1 s"),
        ),
    ],
)
@pytest.mark.slow
async def test_what_the_limits_come_to_is_what_gets_through(
    limits: dict[str, object],
    request_: dict[str, float],
    expected: Feasible,
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter(**limits)  # type: ignore[arg-type]
    found = limiter.feasible(**request_)
    assert found == expected
    if found.per_minute is None:
        return
    seconds, served, minutes = request_.get("seconds", 0.0), 0, 120
    tokens = request_.get("tokens")
    output = request_.get("output_tokens")
    given = tokens if output is None or tokens is None else tokens - output

    async def call() -> None:
        nonlocal served
        while True:
            async with limiter.reserve(tokens=tokens, input_tokens=given, output_tokens=output):
                await trio.sleep(seconds)
                served += 1

    with trio.move_on_after(60 * minutes):
        async with trio.open_nursery() as nursery:
            # One more waits in line, so that a place is taken as soon as it is free.
            for _ in range((found.in_flight or 1) + 1):
                nursery.start_soon(call)
    assert served == pytest.approx(found.per_minute * minutes, rel=0.02, abs=1)


async def test_what_was_used_counts_if_nobody_says(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", tokens_per_minute=10_000)
    with pytest.raises(ValueError, match=r"say how many a request uses: feasible\(tokens="):
        limiter.feasible()
    for used in (300, 500):
        async with limiter.reserve(tokens=1_000, model=f"m{used}") as reservation:
            reservation.settle(tokens=used)
    assert limiter.feasible() == Feasible(25, None, "tokens")
    with pytest.raises(ValueError, match="negative"):
        limiter.feasible(tokens=-1)


async def test_it_follows_headroom_and_changes(autojump_clock: MockClock) -> None:
    limiter = Limiter(requests_per_minute=124, headroom=60 / 62)
    assert limiter.feasible() == Feasible(120, None, "requests")
    limiter.change(requests_per_minute=62)
    assert limiter.feasible() == Feasible(60, None, "requests")


@pytest.mark.parametrize(
    ("feasible", "words"),
    [
        (Feasible(83.0, 11, "tokens"), "tokens bind: 83 a minute, 11 in flight are enough"),
        (Feasible(0.25, 1, "tokens"), "tokens bind: 0.25 a minute, 1 in flight is enough"),
        (Feasible(6_000.0, None, "requests"), "requests bind: 6,000 a minute"),
        (Feasible(None, 5, "places"), "places bind: 5 in flight are enough"),
    ],
)
def test_it_says_it_in_words(feasible: Feasible, words: str) -> None:
    assert str(feasible) == words
