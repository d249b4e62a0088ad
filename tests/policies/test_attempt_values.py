"""`Attempt`, `Retry` and `Hedge` are frozen values that refuse what makes no sense."""

import copy
import math
import pickle
from typing import Any

import pytest

from harness import Attempt, Hedge, Retry

NOT_SECONDS = [(-1, ValueError), (-0.001, ValueError), (math.nan, ValueError), ("3", TypeError)]

VALUES = [
    Attempt(),
    Attempt(timeout=30, retry=Retry(3), hedge=Hedge(after=2.0), fallback=max, tokens=5),
    Retry(3),
    Retry(5, first_delay=1, factor=3, max_delay=60, jitter=0, on=(KeyError, OSError)),
    Hedge(after=2.0),
    Hedge(percentile=0.95),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_it_is_a_value(value: Any) -> None:
    for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert again == value
        assert hash(again) == hash(value)
    assert type(value).__name__ in repr(value)


def test_values_with_other_fields_differ() -> None:
    assert len(set(VALUES)) == len(VALUES)
    assert Retry(3) == Retry(attempts=3)
    assert Attempt(timeout=1) != Attempt(timeout=2)


@pytest.mark.parametrize("value", [Attempt(), Retry(3), Hedge(after=1)], ids=repr)
def test_it_cannot_be_changed(value: Any) -> None:
    for name in ("timeout", "attempts", "after", "anything"):
        with pytest.raises(AttributeError):
            setattr(value, name, 1)


def refuse(error: type[Exception], make: Any, *arguments: Any, **named: Any) -> None:
    """Assert that making the value raises, and that the message says what was given."""
    with pytest.raises(error) as caught:
        make(*arguments, **named)
    assert make.__name__ in str(caught.value)
    for given in (*arguments, *named.values()):
        assert repr(given) in str(caught.value)
    for name in named:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("attempts", "error"),
    [
        (0, ValueError),
        (-3, ValueError),
        (None, TypeError),
        (True, TypeError),
        (2.5, TypeError),
        (math.inf, TypeError),
        ("3", TypeError),
    ],
)
def test_attempts_must_be_a_positive_int(attempts: Any, error: type[Exception]) -> None:
    refuse(error, Retry, attempts)


@pytest.mark.parametrize("name", ["first_delay", "max_delay"])
@pytest.mark.parametrize(("value", "error"), NOT_SECONDS)
def test_delays_must_be_seconds(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        Retry(3, **{name: value})
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("factor", "error"),
    [
        (0, ValueError),
        (0.5, ValueError),
        (-2, ValueError),
        (math.nan, ValueError),
        ("2", TypeError),
        (None, TypeError),
        (True, TypeError),
    ],
)
def test_a_factor_must_not_shrink_the_delays(factor: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="factor"):
        Retry(3, factor=factor)


@pytest.mark.parametrize(
    ("jitter", "error"),
    [(-0.1, ValueError), (math.nan, ValueError), ("x", TypeError), (None, TypeError)],
)
def test_jitter_must_be_a_share(jitter: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="jitter"):
        Retry(3, jitter=jitter)


@pytest.mark.parametrize("on", [3, "KeyError", (KeyError, 3), int, KeyError("instance"), None])
def test_on_must_name_exceptions(on: Any) -> None:
    with pytest.raises(TypeError, match="on"):
        Retry(3, on=on)


@pytest.mark.parametrize("on", [KeyboardInterrupt, BaseException, (KeyError, SystemExit)])
def test_exits_cannot_be_retried(on: Any) -> None:
    with pytest.raises(TypeError, match="on"):
        Retry(3, on=on)


@pytest.mark.parametrize(("timeout", "error"), NOT_SECONDS)
def test_a_timeout_must_be_seconds(timeout: Any, error: type[Exception]) -> None:
    refuse(error, Attempt, timeout=timeout)


@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_an_attempt_without_time_is_refused(zero: float) -> None:
    """As ``--timeout 0`` is: it could only fail."""
    with pytest.raises(ValueError, match=r"above 0, not -?0(\.0)?; None is for no limit"):
        Attempt(timeout=zero)
    with pytest.raises(ValueError, match="takes seconds above 0, not -1"):
        Attempt(timeout=-1)


def test_no_timeout_may_be_said_in_two_ways() -> None:
    Attempt(timeout=None)
    Attempt(timeout=math.inf)


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("retry", 3, "Retry(3)"),
        ("retry", Retry, "Retry"),
        ("hedge", 2.0, "Hedge"),
        ("hedge", Hedge, "Hedge"),
        ("fallback", "guess", "fallback"),
        ("fallback", 0, "fallback"),
        ("limiter", 50, "limit"),
        ("limiter", object(), "reserve"),
        ("tokens", -5, "tokens"),
        ("tokens", 1.5, "tokens"),
        ("tokens", True, "tokens"),
        ("tokens", "many", "tokens"),
    ],
)
def test_every_field_says_what_belongs_there(field: str, value: Any, word: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        Attempt(**{field: value})
    assert field in str(caught.value)
    assert word in str(caught.value)
    assert repr(value) in str(caught.value)


def test_attempt_takes_its_fields_by_name_only() -> None:
    make: Any = Attempt
    with pytest.raises(TypeError):
        make(30)


def test_a_hedge_is_given_by_seconds_or_by_percentile_not_both_and_not_neither() -> None:
    for arguments in ({}, {"after": 1.0, "percentile": 0.9}):
        with pytest.raises((TypeError, ValueError)) as caught:
            Hedge(**arguments)
        assert "after" in str(caught.value)
        assert "percentile" in str(caught.value)


@pytest.mark.parametrize(("after", "error"), NOT_SECONDS)
def test_a_hedges_after_must_be_seconds(after: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="after"):
        Hedge(after=after)


@pytest.mark.parametrize(
    ("percentile", "error"),
    [
        (1.5, ValueError),
        (95, ValueError),
        (-0.1, ValueError),
        (math.nan, ValueError),
        ("0.9", TypeError),
        (True, TypeError),
    ],
)
def test_a_percentile_must_be_a_share(percentile: Any, error: type[Exception]) -> None:
    """Above all, 95 instead of 0.95."""
    with pytest.raises(error, match="percentile"):
        Hedge(percentile=percentile)


def test_an_async_on_is_refused() -> None:
    """The coroutine that it returned was true: every error was tried again."""

    async def on(error: Exception) -> bool:
        return False

    with pytest.raises(TypeError, match="plain function"):
        Retry(3, on=on)


@pytest.mark.parametrize(
    "make",
    [
        lambda value: Attempt(timeout=value),
        lambda value: Hedge(after=value),
        lambda value: Retry(3, first_delay=value),
    ],
)
def test_seconds_beyond_any_float_are_refused(make: Any) -> None:
    """An int has no end, and became an `OverflowError` at the first sum with a time."""
    with pytest.raises(ValueError, match="too many"):
        make(10**400)
