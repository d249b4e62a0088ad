"""The delays of a `Retry` are plain arithmetic: bounded, and never less than what was asked."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import Retry
from harness.policies import is_rate_limit, retry_after_seconds

seconds = st.floats(0, 1e6)


def test_without_jitter_the_delays_are_exact() -> None:
    retry = Retry(9, first_delay=1, factor=2, max_delay=10, jitter=0)
    assert [retry.delay_seconds(n, draw=0.7) for n in range(1, 7)] == [1, 2, 4, 8, 10, 10]


def test_a_delay_of_the_thousandth_retry_does_not_overflow() -> None:
    retry = Retry(10_000, first_delay=1, factor=2, max_delay=30, jitter=0)
    assert retry.delay_seconds(9_999, draw=0) == 30


@given(
    first=seconds,
    factor=st.floats(1, 100),
    most=seconds,
    jitter=st.floats(0, 1),
    draw=st.floats(0, 1),
    number=st.integers(1, 3_000),
    asked=st.none() | seconds,
)
def test_a_delay_is_finite_bounded_and_at_least_what_was_asked(
    first: float,
    factor: float,
    most: float,
    jitter: float,
    draw: float,
    number: int,
    asked: float | None,
) -> None:
    retry = Retry(3, first_delay=first, factor=factor, max_delay=most, jitter=jitter)
    delay = retry.delay_seconds(number, draw=draw, at_least=asked)
    assert math.isfinite(delay)
    if asked is None:
        assert 0 <= delay <= most
    else:
        assert asked <= delay <= max(asked, most) + most


class Carrying(Exception):
    """An error with any attributes."""

    def __init__(self, **attributes: Any) -> None:
        """Carry the attributes."""
        super().__init__()
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Carrying(), None),
        (Carrying(retry_after=2), 2),
        (Carrying(retry_after="2.5"), 2.5),
        (Carrying(retry_after=0), 0),
        (Carrying(headers={"Retry-After": "7"}), 7),
        (Carrying(headers=[("RETRY-AFTER", "7")]), 7),
        (Carrying(headers={b"retry-after": b"7"}), 7),
        (Carrying(headers={"retry-after-ms": "250", "retry-after": "9"}), 0.25),
        (Carrying(headers={"retry-after-ms": "0", "retry-after": "5"}), 0),
        (Carrying(response=SimpleNamespace(headers={"retry-after": "7"})), 7),
        (Carrying(retry_after=-1), None),
        (Carrying(retry_after=math.nan), None),
        (Carrying(retry_after=math.inf), None),
        (Carrying(retry_after=True), None),
        (Carrying(headers={"retry-after": "-1"}), None),
        (Carrying(headers={"retry-after": "soon"}), None),
        (Carrying(headers=None, response=None), None),
        (Carrying(headers=7, response="text"), None),
        (
            Carrying(
                headers={
                    "retry-after": "Wed, 21 Oct 2015 07:28:30 GMT",
                    "date": "Wed, 21 Oct 2015 07:28:00 GMT",
                }
            ),
            30,
        ),
    ],
)
def test_what_an_error_asks_for(error: Exception, expected: float | None) -> None:
    assert retry_after_seconds(error, now=0.0) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Carrying(), False),
        (Carrying(status_code=429), True),
        (Carrying(status_code=529), True),
        (Carrying(status=429), True),
        (Carrying(response=SimpleNamespace(status_code=429)), True),
        (Carrying(status_code=500), False),
        (Carrying(status_code=503, retry_after=3), False),
        (Carrying(status_code="429"), False),
        (Carrying(status_code=None, status=None, response=None), False),
        (Carrying(status="failed", response=SimpleNamespace(status_code=429)), True),
    ],
)
def test_what_is_a_rate_limit(error: Exception, expected: bool) -> None:
    assert is_rate_limit(error) is expected
