"""Say what a sample drawn without replacement says of the whole it was drawn from.

The bounds are exact: the hypergeometric test, inverted. A number of differing items in the whole is
within them unless it makes a sample like this one, or one further away, too unlikely. They are what
Clopper and Pearson's are for endless populations, and narrower, since what was looked at is known.
See J. P. Buonaccorsi, "A note on confidence intervals for proportions in finite populations", The
American Statistician 41 (1987), 215-218.

If nothing differs, only the upper bound is asked for, so it gets all of what may go wrong. For a
large population that is the rule of three: 0 of n means fewer than about 3 / n, with 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs


@attrs.frozen(kw_only=True)
class Bounds:
    """Between how many items of a population differ."""

    least: int
    most: int


def bounds(differ: int, sample: int, population: int, *, confidence: float = 0.95) -> Bounds:
    """Return between how many items of the population differ, with at least ``confidence``.

    Args:
      differ: How many of the sample do.
      sample: How many were drawn, without replacement.
      population: How many they were drawn from.
      confidence: How often such bounds have to be right, at least; between 0 and 1. If none
        differs, it is that of the upper bound alone, else that of both together.
    """
    same = sample - differ
    risk = 1 - confidence if differ == 0 else (1 - confidence) / 2
    highest = population - same
    most = _last(lambda count: _at_most(differ, sample, count, population) > risk, differ, highest)
    if differ == 0:
        return Bounds(least=0, most=most)
    # At least so many differ is the same as at most so many don't.
    alike = _last(
        lambda count: _at_most(same, sample, count, population) > risk, same, population - differ
    )
    return Bounds(least=population - alike, most=most)


def _last(holds: Callable[[int], bool], first: int, last: int) -> int:
    """Return the last number for which this holds; it holds for the first, and then ends."""
    while first < last:
        middle = (first + last + 1) // 2
        first, last = (middle, last) if holds(middle) else (first, middle - 1)
    return first


def _at_most(found: int, sample: int, count: int, population: int) -> float:
    """Return how likely a sample has at most ``found`` of the ``count`` in the population."""
    least = max(0, sample - (population - count))
    most = min(found, sample, count)
    all_samples = _log_choices(population, sample)
    return math.fsum(
        math.exp(
            _log_choices(count, one) + _log_choices(population - count, sample - one) - all_samples
        )
        for one in range(least, most + 1)
    )


def _log_choices(total: int, chosen: int) -> float:
    """Return the logarithm of the number of ways to choose some of all."""
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
