"""Check numbers that callers give, and say clearly what is wrong with them."""

from __future__ import annotations

import math
from typing import SupportsFloat


def checked_positive(name: str, value: object) -> float:
    """Return ``value`` if it is a finite number above zero.

    Args:
      name: What the number is, for the message.
      value: What the caller gave.

    Raises:
      TypeError: if ``value`` is not a real number.
      ValueError: if it is zero, negative, nan or infinite.
    """
    number = _checked_number(name, value)
    if number <= 0:
        raise ValueError(f"{name} is {value!r}, but must be above zero; leave it out for no limit")
    return number


def checked_amount(name: str, value: object) -> float:
    """Return ``value`` if it is a finite number that isn't negative; zero is an amount.

    Args:
      name: What the number is, for the message.
      value: What the caller gave.

    Raises:
      TypeError: if ``value`` is not a real number.
      ValueError: if it is negative, nan or infinite.
    """
    # Nearly every amount is a small int, and every request comes through here.
    if type(value) is int and value >= 0:
        return value
    number = _checked_number(name, value)
    if number < 0:
        raise ValueError(f"{name} is {value!r}, but an amount can't be negative; give 0 or more")
    return number


def checked_count(name: str, value: object) -> int:
    """Return ``value`` if it is a whole number of at least 1.

    Args:
      name: What the number is, for the message.
      value: What the caller gave.

    Raises:
      TypeError: if ``value`` is not an int.
      ValueError: if it is less than 1.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, but must be a whole number of at least 1")
    if value < 1:
        raise ValueError(f"{name} is {value}, but must be at least 1")
    return value


def _checked_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | SupportsFloat):
        raise TypeError(f"{name} is {value!r}, but must be a number")
    if isinstance(value, int):
        return value  # Not converted to float, so that amounts add up exactly.
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value!r}, but must be a finite number")
    return number
