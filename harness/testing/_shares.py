"""State a share that was counted in a sample, with the interval that the true one is in.

The interval is Wilson's: all shares under which a count like this one isn't too unlikely by the
normal approximation (E. B. Wilson, "Probable inference, the law of succession, and statistical
inference", Journal of the American Statistical Association 22 (1927), 209-212). It stays within 0
and 1, and is right about as often as it says down to small samples and rare events (L. D. Brown,
T. T. Cai and A. DasGupta, "Interval estimation for a binomial proportion", Statistical Science 16
(2001), 101-133).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import attrs


@attrs.frozen
class Share:
    """How many of those looked at, and between which shares of all that is, at 95 %."""

    found: int
    """How many it was true of."""

    of: int
    """How many were looked at."""

    low: float
    """The least that the share of all may be, from 0 to 1."""

    high: float
    """The most that it may be."""

    @classmethod
    def counted(cls, found: int, of: int, *, confidence: float = 0.95) -> Share:
        """Return the share of a sample whose members are independent of each other.

        Args:
          found: How many of the sample have it.
          of: How many the sample has.
          confidence: How often the interval has the true share in it, from 0 to 1.
        """
        return cls(found, of, *wilson(found / of if of else 0.0, of, confidence))

    @classmethod
    def of_groups(
        cls, found: Sequence[int], sizes: Sequence[int], *, confidence: float = 0.95
    ) -> Share:
        """Return the share of all members of groups that were drawn as a whole.

        Members of a group are alike, so they say less than as many independent ones: the sample
        counts as one of the size that has the variance seen between groups, as surveys do it (E. L.
        Korn and B. I. Graubard, Survey Methodology 24 (1998), 193-201).

        Args:
          found: Of how many it was true, for each group.
          sizes: The size of each group.
          confidence: How often the interval has to be right.
        """
        total, groups = sum(sizes), len(sizes)
        share = sum(found) / total if total else 0.0
        size: float = groups
        if groups > 1 and 0 < share < 1:
            spread = (
                sum((one - share * of) ** 2 for one, of in zip(found, sizes, strict=True))
                * groups
                / (groups - 1)
            )
            size = total if not spread else min(total, share * (1 - share) * total**2 / spread)
        return cls(sum(found), total, *wilson(share, size, confidence))

    @property
    def share(self) -> float:
        """The share of the sample, from 0 to 1; 0 of an empty one."""
        return self.found / self.of if self.of else 0.0

    def __str__(self) -> str:
        low, high = (f"{100 * bound:.3g}" for bound in (self.low, self.high))
        return f"{100 * self.share:.3g} % ({low} to {high} %)"


def wilson(share: float, size: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval for a share seen in a sample of this size."""
    if not size:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle = share + z * z / (2 * size)
    reach = z * math.sqrt(share * (1 - share) / size + z * z / (4 * size * size))
    whole = 1 + z * z / size
    low, high = (middle - reach) / whole, (middle + reach) / whole
    # Rounding may keep it from the end that it reaches exactly.
    return (0.0 if share == 0 else max(low, 0.0)), (1.0 if share == 1 else min(high, 1.0))
