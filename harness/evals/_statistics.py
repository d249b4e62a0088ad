"""The statistics of an evaluation: intervals of means, paired tests, pass@k.

Distributions are scipy's: of its parts the one with the bare functions, which is loaded in a
fraction of the time that ``scipy.stats`` takes. The tests hold the figures against ``scipy.stats``.

Samples that belong together are no independent evidence. So the unit is the cluster: the variance
of a mean comes from the sums over clusters (E. Miller, "Adding Error Bars to Evals", 2024,
arXiv:2411.00640, with the correction for few clusters). A sample without a cluster is its own, and
then this is the ordinary standard error.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

_special: Any = import_module("scipy.special")


class Interval(NamedTuple):
    """Where a mean lies, with a given confidence."""

    low: float
    high: float


def mean_of(values: Sequence[float]) -> float:
    """Return the mean, the same in whatever order the values come."""
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float], clusters: Sequence[Hashable]) -> tuple[float, int]:
    """Return the variance of the mean, and the number of clusters."""
    mean = mean_of(values)
    sums: dict[Hashable, float] = {}
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + value - mean
    count = len(sums)
    if count < 2:
        return math.inf, count
    squares = math.fsum(one * one for one in sums.values())
    return squares * count / (count - 1) / len(values) ** 2, count


def number_interval(
    values: Sequence[float], clusters: Sequence[Hashable], level: float
) -> Interval:
    """Return the interval of a mean of numbers, by Student's t; endless for a single cluster."""
    variance, count = _variance(values, clusters)
    if math.isinf(variance):
        return Interval(-math.inf, math.inf)
    mean = mean_of(values)
    half = float(_special.stdtrit(count - 1, (1 + level) / 2)) * math.sqrt(variance)
    return Interval(mean - half, mean + half)


def share_interval(
    values: Sequence[float], clusters: Sequence[Hashable], level: float, *, most: int
) -> Interval:
    """Return the interval of a mean of values from 0 to 1, by Wilson's method.

    Of plain bools it is Wilson's interval. Of others, and of clusters, it is Wilson's for as many
    independent bools as would be worth the same: a mean of p that varies by v is worth p(1-p)/v.
    A single cluster tells nothing of others: it has all from 0 to 1.

    Args:
      values: A value per sample.
      clusters: The cluster of each.
      level: The confidence, such as 0.95.
      most: How many bools they are made of; they can't be worth more.
    """
    share = mean_of(values)
    z = float(_special.ndtri((1 + level) / 2))
    variance, count = _variance(values, clusters)
    worth = float(most)
    if count < 2 <= most:
        return Interval(0.0, 1.0)
    if count < most:
        # If all are right, or all wrong, nothing tells how much a cluster has in common: all of it.
        worth = share * (1 - share) / variance if variance and 0 < share < 1 else float(count)
        worth = min(float(most), worth)
        worth *= (z / float(_special.stdtrit(count - 1, (1 + level) / 2))) ** 2
    # Not scipy.stats', which takes whole numbers only.
    centre = (share + z * z / (2 * worth)) / (1 + z * z / worth)
    half = z / (1 + z * z / worth)
    half *= math.sqrt(share * (1 - share) / worth + z * z / (4 * worth * worth))
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def pass_at(right: int, of: int, k: int) -> float:
    """Return the chance that at least one of ``k`` attempts is right, of ``of`` made.

    The unbiased estimator of M. Chen et al., "Evaluating Large Language Models Trained on Code",
    2021, arXiv:2107.03374: 1 - C(of - right, k) / C(of, k).
    """
    return 1 - math.comb(of - right, k) / math.comb(of, k)


def mcnemar(gained: int, lost: int) -> float:
    """Return the p-value of McNemar's exact test, two-sided.

    Args:
      gained, lost: Among the pairs that differ, how many are right only there, and only here.
    """
    if not gained + lost:
        return 1.0
    return min(1.0, 2 * float(_special.bdtr(min(gained, lost), gained + lost, 0.5)))


def pair_interval(gained: int, lost: int, pairs: int, level: float) -> Interval:
    """Return the interval of the difference of two paired shares.

    Wald's, with half a pair added to each of the four cells, which makes it cover what it says (A.
    Agresti and Y. Min, "Simple improved confidence intervals for comparing matched proportions",
    2005).
    """
    many = pairs + 2
    difference = (gained - lost) / many
    variance = (gained + lost + 1 - many * difference**2) / many**2
    half = float(_special.ndtri((1 + level) / 2)) * math.sqrt(variance)
    return Interval(max(-1.0, difference - half), min(1.0, difference + half))


def paired_t(differences: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """Return the p-value of the paired t-test, two-sided; nan for a single cluster."""
    variance, count = _variance(differences, clusters)
    mean = mean_of(differences)
    if math.isinf(variance):
        return math.nan
    if not variance:
        return 0.0 if mean else 1.0
    return 2 * float(_special.stdtr(count - 1, -abs(mean) / math.sqrt(variance)))
