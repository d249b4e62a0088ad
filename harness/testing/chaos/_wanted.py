"""Read from a `Chaos`'s arguments how long it delays calls, and what it raises in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from harness._arguments import check_seconds
from harness._error_copies import own_copy
from harness.errors import ChaosError

Delay: TypeAlias = float | tuple[float, float]
"""Seconds: always the same, or evenly between two bounds."""

ErrorMaker: TypeAlias = (
    type[Exception] | Exception | Callable[[], Exception] | Sequence[type[Exception]]
)
"""What is raised: a class, an error to copy, a function that makes one, or several classes."""

_WORDS = "chaos made this call fail"


def delay_bounds(delay: Delay | None) -> tuple[float, float]:
    """Return the least and the most seconds of a delay.

    Raises:
      TypeError: if it is neither a number nor two.
      ValueError: if one is negative or nan, or they are the wrong way round.
    """
    if delay is None:
        return 0.0, 0.0
    advice = "a number, or two: (0, 30)"
    if isinstance(delay, tuple) and len(delay) != 2:
        raise ValueError(f"Chaos(delay=...) takes {advice}; not {delay!r}")
    low, high = delay if isinstance(delay, tuple) else (delay, delay)
    check_seconds("Chaos(delay=...)", low, advice=advice)
    check_seconds("Chaos(delay=...)", high, advice=advice)
    if low > high:
        raise ValueError(f"Chaos(delay={delay!r}) has its bounds the wrong way round")
    return float(low), float(high)


def error_makers(fail: Any) -> list[Callable[[], Exception]]:
    """Return, for each error named, a function that makes a new one.

    Raises:
      TypeError: if one isn't an error, a class of errors or a function.
      ValueError: if none is named.
    """
    several = fail if isinstance(fail, Sequence) and not isinstance(fail, str) else [fail]
    if not several:
        raise ValueError("Chaos(fail=[]) names no error to raise; name one, or leave it out")
    return [_error_maker(one) for one in several]


def _error_maker(fail: Any) -> Callable[[], Exception]:
    if fail is None or isinstance(fail, bool):
        return lambda: ChaosError(_WORDS)
    if isinstance(fail, Exception):
        return lambda: own_copy(fail).with_traceback(None)
    if isinstance(fail, type) and issubclass(fail, Exception):
        return lambda: _of_class(fail)
    if callable(fail) and not isinstance(fail, type):
        return fail  # type: ignore[no-any-return]
    raise TypeError(
        f"Chaos(fail=...) takes a share from 0 to 1, an exception class or an error, not {fail!r}"
    )


def _of_class(cls: type[Exception]) -> Exception:
    try:
        return cls(_WORDS)
    except TypeError:
        return cls()
