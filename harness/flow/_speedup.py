"""Work out what running in parallel can bring: Amdahl's law."""

from __future__ import annotations

import math

from harness._arguments import check_count, check_fraction


def speedup(parallel_share: float, workers: float) -> float:
    """Return how many times faster work gets if this many of its parts run in parallel.

    The part that can't be divided takes the same time, however many run at once: if it is 30 % of
    the whole, five workers make the whole 2.3 times faster, and 3.3 times is the ceiling.

    Args:
      parallel_share: The share of the time, from 0 to 1, that can be divided, measured with
        everything running alone.
      workers: How many parts run at once, or `math.inf` to get the ceiling.

    Returns:
      The speedup, at least 1; inf if everything can be divided among any number of workers.

    Raises:
      TypeError: if an argument isn't a number, or ``workers`` is neither whole nor `math.inf`.
      ValueError: if the share is nan, negative or above 1, or ``workers`` is smaller than 1.
    """
    share = check_fraction(
        "speedup(parallel_share)",
        parallel_share,
        advice="0.7 says that 70 % of the time can be divided",
    )
    if workers != math.inf:
        check_count("speedup(workers)", workers, advice="or math.inf for the ceiling")
    left = 1 - share + share / workers
    return 1 / left if left else math.inf
