"""Refuse bad arguments in one voice: what was given, what is allowed, what to do."""

from __future__ import annotations

import math
from typing import Any


def check_seconds(name: str, value: Any, *, advice: str, least: float = 0.0) -> float:
    """Return ``value`` as seconds, or refuse it.

    Args:
      name: The argument as the caller wrote it, such as ``open_run(timeout=...)``.
      value: What was given.
      advice: What to do instead, as the end of a sentence.
      least: The smallest value allowed.

    Raises:
      TypeError: if ``value`` isn't a number.
      ValueError: if it is nan, or smaller than ``least``.
    """
    if type(value) is float and value >= least:  # As most are: the rest would slow `open_run`.
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} takes a number of seconds, not {value!r}; {advice}")
    if not value >= least:  # Written so that nan fails too.
        raise ValueError(f"{name} takes seconds from {least:g} upwards, not {value!r}; {advice}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} takes seconds, and 10 ** 308 are too many; {advice}") from None


def check_count(name: str, value: Any, *, advice: str, least: int = 1) -> int:
    """Return ``value`` as a whole number, or refuse it.

    Raises:
      TypeError: if ``value`` is not an ``int``.
      ValueError: if it is smaller than ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"{name} takes a whole number from {least} upwards, not {value!r}; {advice}"
        )
    if value < least:
        raise ValueError(f"{name} takes a whole number from {least} upwards, not {value}; {advice}")
    return value


def check_whole(name: str, value: Any, *, advice: str) -> int:
    """Return ``value`` as a whole number of any size, negative too, or refuse it.

    Raises:
      TypeError: if ``value`` is not an ``int``.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} takes a whole number, not {value!r}; {advice}")
    return value


def check_dollars(name: str, value: Any, *, advice: str) -> float:
    """Return ``value`` as dollars from 0 upwards, or refuse it.

    Raises:
      TypeError: if ``value`` is not a number.
      ValueError: if it is nan, negative or infinite.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} takes a number of dollars, not {value!r}; {advice}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} takes dollars from 0 upwards, not {value!r}; {advice}")
    return value


def check_key(call: str, key: Any) -> None:
    """Refuse what can't be used as a key.

    Raises:
      TypeError: if ``key`` isn't hashable.
    """
    try:
        hash(key)
    except TypeError as error:
        raise TypeError(
            f"{call} takes a key that can be hashed, such as a string or a tuple of them, not "
            f"{key!r} ({error})"
        ) from None


def check_fraction(name: str, value: Any, *, advice: str) -> float:
    """Return ``value`` as a number from 0 to 1, or refuse it.

    Raises:
      TypeError: if ``value`` is not a number.
      ValueError: if it is nan, negative or above 1.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} takes a number from 0 to 1, not {value!r}; {advice}")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} takes a number from 0 to 1, not {value!r}; {advice}")
    return float(value)
