"""The most that running side by side can bring: Amdahl's law."""

from __future__ import annotations

import math

from harness._arguments import check_fraction


def speedup_ceiling(sequential_fraction: float) -> float:
    """Return how many times faster work can get by running its parts side by side.

    However many run at once, the part that can't be divided takes its time: if it is 30 % of the
    whole, the whole takes at least 30 % of the time, and 3.3 times faster is the ceiling.

    Args:
      sequential_fraction: The share of the time, from 0 to 1, that has to pass one thing after
        another, with everything running alone.

    Returns:
      The ceiling; inf for 0.

    Raises:
      TypeError: if it is not a number.
      ValueError: if it is nan, negative or above 1.
    """
    fraction = check_fraction(
        "speedup_ceiling(sequential_fraction)",
        sequential_fraction,
        advice="0.3 says that 30 % of the time can't be divided",
    )
    return math.inf if fraction == 0 else 1 / fraction
