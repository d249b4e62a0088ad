"""Learn from attempts how long one takes: when it is late, and how much longer a late one takes.

Only first attempts are learned from. A second one is started beside a slow one, so its time is no
fair sample. A first attempt cut because the second had answered counts too: it would have taken
longer than it had by then. Without these the slow ones would be missing from the sample, and
attempts would count as late sooner and sooner.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from itertools import islice

SAMPLES_AT_LEAST = 20
"""Fewer say too little about a tail to act on."""

SAMPLES_AT_MOST = 1_000
"""Only this many of the latest count: memory is bounded, and a slowing provider is noticed."""

_Sample = tuple[float, bool]
"""Seconds, and whether the attempt was cut at that point."""


class Latencies:
    """The durations of the latest first attempts, ready for a percentile."""

    __slots__ = ("_latest", "_sorted")

    def __init__(self) -> None:
        self._latest: deque[_Sample] = deque()
        self._sorted: list[_Sample] = []

    def add(self, seconds: float, *, cut: bool = False) -> bool:
        """Note a duration; return whether enough are now known.

        Args:
          seconds: How long the attempt took.
          cut: Whether it had no answer by then and was cut because another one had.
        """
        if len(self._latest) == SAMPLES_AT_MOST:
            del self._sorted[bisect.bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append((seconds, cut))
        bisect.insort(self._sorted, (seconds, cut))
        return len(self._latest) == SAMPLES_AT_LEAST

    def percentile(self, share: float) -> float | None:
        """Return the duration that ``share`` of them don't exceed; None if too few are known.

        The nearest-rank method: always a duration that was seen.
        """
        if len(self._sorted) < SAMPLES_AT_LEAST:
            return None
        rank = max(1, math.ceil(share * len(self._sorted)))
        return self._sorted[rank - 1][0]

    def seconds_left(self, seconds: float) -> float:
        """Return how much longer an attempt takes on average, once it has taken ``seconds``.

        The area under the Kaplan-Meier curve, up to the longest duration seen. Anything longer is
        left out, so this tends to be too low; it is 0 if nothing was seen to take longer.
        """
        first = bisect.bisect_right(self._sorted, (seconds, True))
        still_going = len(self._sorted) - first
        share, area, last = 1.0, 0.0, seconds
        for ended_after, cut in islice(self._sorted, first, None):
            area += share * (ended_after - last)
            last = ended_after
            if not cut:
                share -= share / still_going
            still_going -= 1
        return area
