"""Keep a distribution of durations in bounded memory, and answer with its quantiles.

The first values are kept as they are, so that a quantile of a few is exact. Beyond that, only
counts per bucket are kept, as in DDSketch (Masson, Rim and Lee, VLDB 2019): each bucket is wider
than the one before it by the same factor, so every quantile is off by at most 1 % of its value,
however the values are distributed. That holds for a million values as for a thousand, and costs one
logarithm for each.
"""

from __future__ import annotations

import math
from collections import Counter

EXACT_AT_MOST = 1_000
"""So many values are kept as they are."""

ACCURACY = 0.01
"""How far a quantile of more values may be off, as a share of its value."""

_FACTOR = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_FACTOR = math.log(_FACTOR)
_LEAST, _MOST = 1e-9, 1e9
"""What lies beyond counts as this, which bounds the buckets at about two thousand."""


class Distribution:
    """Durations in seconds, of which any number may be added."""

    __slots__ = ("_buckets", "_count", "_exact", "_total")

    def __init__(self) -> None:
        self._exact: list[float] = []
        self._buckets: Counter[int] = Counter()
        self._count = 0
        self._total = 0.0

    def add(self, seconds: float) -> None:
        """Count one more value; less than nothing counts as nothing."""
        seconds = max(0.0, seconds)
        self._count += 1
        self._total += seconds
        if self._buckets:
            self._buckets[_bucket_of(seconds)] += 1
            return
        self._exact.append(seconds)
        if len(self._exact) > EXACT_AT_MOST:
            self._buckets = Counter(map(_bucket_of, self._exact))
            self._exact = []

    @property
    def count(self) -> int:
        """How many values there are."""
        return self._count

    @property
    def total(self) -> float:
        """Their sum."""
        return self._total

    @property
    def mean(self) -> float:
        """Their mean; nan if there are none."""
        return self._total / self._count if self._count else math.nan

    @property
    def p50(self) -> float:
        """What half of them don't exceed; nan if there are none."""
        return self.quantile(0.5)

    @property
    def p95(self) -> float:
        """What 95 % of them don't exceed; nan if there are none."""
        return self.quantile(0.95)

    @property
    def p99(self) -> float:
        """What 99 % of them don't exceed; nan if there are none."""
        return self.quantile(0.99)

    def quantile(self, share: float) -> float:
        """Return what ``share`` of the values don't exceed, by the nearest-rank method.

        It is exact for up to 1,000 values, and within 1 % of its value for more.

        Args:
          share: From 0 to 1.

        Returns:
          nan if there are no values.

        Raises:
          ValueError: if ``share`` is out of range.
        """
        if not 0 <= share <= 1:
            raise ValueError(
                f"quantile() takes a share from 0 to 1, not {share!r}; 0.95 for the 95th percentile"
            )
        # Copies, because a scrape may ask in another thread.
        exact, buckets = sorted(self._exact), sorted(self._buckets.copy().items())
        if buckets:
            left = max(1, math.ceil(share * sum(count for _, count in buckets)))
            for bucket, count in buckets:
                left -= count
                if left <= 0:
                    return 2 * _FACTOR**bucket / (_FACTOR + 1) if bucket > _LOWEST else 0.0
        return exact[max(1, math.ceil(share * len(exact))) - 1] if exact else math.nan

    def __repr__(self) -> str:
        return (
            f"<Distribution of {self.count:,}: p50 {self.p50:.3g} s, p95 {self.p95:.3g} s, "
            f"p99 {self.p99:.3g} s, mean {self.mean:.3g} s>"
        )


def _bucket_of(seconds: float) -> int:
    return math.ceil(math.log(min(max(seconds, _LEAST), _MOST)) / _LOG_FACTOR)


_LOWEST = _bucket_of(_LEAST)
"""The bucket of what is too small to tell from nothing."""
