"""List every way in which some of a few parts can fail."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from harness._arguments import check_count

PARTS_AT_MOST = 20


def all_failure_combinations(n: int, *, at_most: int | None = None) -> Iterator[frozenset[int]]:
    """Yield each set of failing parts, out of parts 0 to n - 1: none first, all of them last.

    There are 2 ** n. Run the test once for each::

        for failing in all_failure_combinations(4):
            results = await fan_out(worker_that_fails_for(failing), range(4), policy=...)

    Args:
      n: How many parts there are, up to 20.
      at_most: Yield only sets of up to this many, as in "any two of a hundred"; then n may be
        larger.

    Raises:
      TypeError: if a number is not an int.
      ValueError: if one is negative, or n is above 20 without ``at_most``.
    """
    check_count("all_failure_combinations(n)", n, advice="it is how many parts there are", least=0)
    if at_most is None:
        if n > PARTS_AT_MOST:
            raise ValueError(
                f"all_failure_combinations({n}) would be 2 ** {n} combinations; pass at_most=2 "
                "for those of up to two failures"
            )
        at_most = n
    check_count("all_failure_combinations(at_most=...)", at_most, advice="or None", least=0)
    # Checked at the call, not when the first set is asked for.
    return _combinations(n, min(at_most, n))


def _combinations(n: int, at_most: int) -> Iterator[frozenset[int]]:
    for count in range(at_most + 1):
        for failing in itertools.combinations(range(n), count):
            yield frozenset(failing)
