"""A provider that allows 600 requests in any minute and answers in a second, later in half of one.

`MINUTES` minutes are looked at. It refuses nothing, and says afterwards what it would have refused.
"""

from bisect import bisect_right
from collections.abc import Callable

LIMIT = 600
MINUTES = 2
END = MINUTES * 60.0


class Provider:
    """The requests that have arrived, by a clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.began_at = clock()
        self.arrived: list[float] = []

    def over(self) -> bool:
        """Return whether the minutes are over."""
        return self.clock() - self.began_at >= END

    def arrive(self) -> float:
        """Note a request, and return how long its answer takes."""
        now = self.clock() - self.began_at
        self.arrived.append(now)
        return 1.0 if now < END / 2 else 0.5

    def show(self) -> None:
        """Print how much of the limit was used, and how much too much."""
        counted = [time for time in self.arrived if time < END]
        most = max(
            index + 1 - bisect_right(counted, time - 60 + 1e-9)
            for index, time in enumerate(counted)
        )
        print(f"share of the limit used: {len(counted) / (LIMIT * MINUTES):.0%}")
        print(f"most in any minute: {most:,} of {LIMIT}")
