"""The arithmetic of limits: exact values, and what holds for any arrivals."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.testing.provider._enforcement import Bucket, FixedWindow, Paced
from harness.testing.provider._limits import Judged, Limits, build_limits

ARRIVALS = st.lists(st.floats(min_value=0, max_value=30), max_size=60)


def admitted_at(limits: Limits, gaps: list[float]) -> list[float]:
    """Return when requests got through that came with ``gaps`` of seconds between them."""
    now, admitted = 0.0, list[float]()
    for gap in gaps:
        now += gap
        if limits.admit({"requests": 1}, now) is None:
            admitted.append(now)
    return admitted


def test_bucket_spends_a_whole_minute_at_once_and_refills_continuously() -> None:
    bucket = Bucket(60)
    bucket.charge(60, 0.0)
    assert bucket.remaining(0.0) == 0
    assert bucket.wait_seconds(1, 0.0) == 1.0
    assert bucket.remaining(15.0) == 15
    assert bucket.wait_seconds(15, 15.0) == 0
    assert bucket.wait_seconds(16, 15.0) == 1.0
    assert bucket.reset_seconds(15.0) == 45.0
    assert bucket.remaining(10_000.0) == 60


def test_bucket_repays_an_overrun_before_it_gives_again() -> None:
    bucket = Bucket(60)
    bucket.charge(90, 0.0)
    assert bucket.remaining(0.0) == -30
    assert bucket.wait_seconds(1, 0.0) == 31.0


def test_fixed_window_counts_anew_at_the_next_multiple() -> None:
    window = FixedWindow(2, 60)
    window.charge(2, 59.0)
    assert window.wait_seconds(1, 59.5) == 0.5
    assert window.remaining(60.0) == 2
    window.charge(2, 60.0)
    assert window.wait_seconds(1, 60.0) == 60.0
    assert window.reset_seconds(61.0) == 59.0


def test_more_than_the_whole_limit_is_never_accepted() -> None:
    for allowance in (Bucket(5), FixedWindow(5, 60), Paced(5)):
        assert allowance.wait_seconds(6, 0.0) == math.inf


def test_paced_spreads_a_minute_over_its_seconds() -> None:
    paced = Paced(120)
    paced.charge(2, 0.25)
    assert paced.wait_seconds(1, 0.25) == 0.75
    assert paced.wait_seconds(1, 1.0) == 0
    # What it announces is the minute's, as such providers do.
    assert paced.remaining(0.5) == 118
    assert paced.reset_seconds(0.5) == 59.5


def test_paced_below_sixty_a_minute_allows_one_request_per_interval() -> None:
    paced = Paced(20)
    paced.charge(1, 0.0)
    assert paced.wait_seconds(1, 1.0) == 2.0
    assert paced.wait_seconds(1, 3.0) == 0


@given(limit=st.integers(1, 700), offset=st.floats(0, 200))
def test_paced_never_refuses_an_even_flow_at_the_limit(limit: int, offset: float) -> None:
    """A provider that did would count violations of clients that are exactly right."""
    limits = build_limits(requests_per_minute=limit, judged="second")
    for index in range(300):
        # A touch slower than the limit: an exact flow falls into a window by a float's last bit.
        assert limits.admit({"requests": 1}, offset + index * 60 / limit * (1 + 1e-9)) is None


@given(limit=st.integers(1, 20), gaps=ARRIVALS, judged=st.sampled_from(["bucket", "minute"]))
def test_no_window_holds_more_than_twice_the_limit(
    limit: int, gaps: list[float], judged: Judged
) -> None:
    """Twice, as a bucket starts full and two fixed windows meet: that is what providers allow."""
    admitted = admitted_at(build_limits(requests_per_minute=limit, judged=judged), gaps)
    for start in admitted:
        assert sum(start <= moment < start + 60 - 1e-6 for moment in admitted) <= 2 * limit


@given(limit=st.integers(1, 300), gaps=st.lists(st.floats(0, 2), max_size=80))
def test_paced_holds_in_each_interval_and_each_minute(limit: int, gaps: list[float]) -> None:
    """The interval is a second, or longer if a second's share is less than one request."""
    admitted = admitted_at(build_limits(requests_per_minute=limit, judged="second"), gaps)
    for length, most in ((60, limit), (max(1.0, 60 / limit), math.ceil(limit / 60))):
        windows = [math.floor(moment / length + 1e-9) for moment in admitted]
        assert all(windows.count(window) <= most for window in windows)


@given(
    limit=st.integers(1, 30),
    gaps=ARRIVALS,
    judged=st.sampled_from(["bucket", "second", "minute"]),
)
def test_waiting_as_long_as_announced_is_enough(
    limit: int, gaps: list[float], judged: Judged
) -> None:
    limits = build_limits(requests_per_minute=limit, requests_per_day=40, judged=judged)
    now = 0.0
    for gap in gaps:
        now += gap
        refused = limits.admit({"requests": 1, "requests_day": 1}, now)
        if refused is not None:
            now += refused.wait_seconds
            assert limits.admit({"requests": 1, "requests_day": 1}, now) is None


def test_a_request_is_charged_to_all_limits_or_to_none() -> None:
    limits = build_limits(requests_per_minute=10, tokens_per_minute=100)
    refused = limits.admit({"requests": 1, "tokens": 101}, 0.0)
    assert refused is not None
    assert (refused.name, refused.wait_seconds) == ("tokens", math.inf)
    assert limits.states(0.0)["requests"].remaining == 10

    assert limits.admit({"requests": 1, "tokens": 80}, 0.0) is None
    assert limits.states(0.0)["requests"].remaining == 9
    assert limits.states(0.0)["tokens"].remaining == 20


def test_the_longest_wait_is_the_one_that_is_told() -> None:
    limits = build_limits(requests_per_minute=60, requests_per_day=60)
    for _ in range(60):
        assert limits.admit({"requests": 1, "requests_day": 1}, 0.0) is None
    refused = limits.admit({"requests": 1, "requests_day": 1}, 100.0)
    assert refused is not None
    assert (refused.name, refused.wait_seconds) == ("requests_day", 86_300.0)


@pytest.mark.parametrize("limit", [0, -1, math.nan, math.inf])
def test_limits_that_make_no_sense_are_refused(limit: float) -> None:
    with pytest.raises(ValueError, match="requests_per_minute must be finite and greater than 0"):
        build_limits(requests_per_minute=limit)


@pytest.mark.parametrize("limit", ["600", True, [1]])
def test_limits_that_are_not_numbers_are_refused(limit: Any) -> None:
    with pytest.raises(TypeError, match="tokens_per_minute must be a number"):
        build_limits(tokens_per_minute=limit)


def test_an_unknown_way_of_judging_names_those_there_are() -> None:
    judged: Any = "hour"
    with pytest.raises(ValueError, match="'bucket', 'second', 'minute', not 'hour'"):
        build_limits(requests_per_minute=1, judged=judged)
