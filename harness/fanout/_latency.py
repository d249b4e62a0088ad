"""Learn from attempts that succeeded when another one is late."""

from __future__ import annotations

import bisect
import math
from collections import deque

SAMPLES_AT_LEAST = 20
"""Fewer say too little about a tail to act on."""

SAMPLES_AT_MOST = 1_000
"""The latest so many count: bounded, and a provider that slows down is noticed."""


class Latencies:
    """The durations of the latest successful attempts, ready for a percentile."""

    __slots__ = ("_latest", "_sorted")

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> bool:
        """Note a duration; return whether with this one enough are known."""
        if len(self._latest) == SAMPLES_AT_MOST:
            oldest = self._latest.popleft()
            del self._sorted[bisect.bisect_left(self._sorted, oldest)]
        self._latest.append(seconds)
        bisect.insort(self._sorted, seconds)
        return len(self._latest) == SAMPLES_AT_LEAST

    def percentile(self, share: float) -> float | None:
        """Return the duration that ``share`` of them don't exceed; None if too few are known.

        The nearest-rank method: always a duration that was seen.
        """
        if len(self._sorted) < SAMPLES_AT_LEAST:
            return None
        rank = max(1, math.ceil(share * len(self._sorted)))
        return self._sorted[rank - 1]
