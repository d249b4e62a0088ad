"""The figures agree with other libraries, and intervals cover what they say."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Hashable
from importlib import import_module
from typing import Any, TypeAlias

import pytest

from harness.evals._statistics import (
    Interval,
    mcnemar,
    number_interval,
    pair_interval,
    paired_t,
    pass_at,
    share_interval,
)
from tests.scale import FULL, scaled

VALUES = [0.5, 0.75, 1.0, 0.25, 0.0, 1.0, 0.875, 0.5, 0.25, 1.0]
OTHERS = [0.75, 0.75, 1.0, 0.5, 0.25, 1.0, 0.5, 0.75, 0.25, 0.875]
CLUSTERS = [0, 0, 0, 1, 1, 2, 3, 3, 4, 4]


@pytest.mark.slow
def test_figures_are_those_of_scipy_stats() -> None:
    stats: Any = import_module("scipy.stats")
    alone = range(len(VALUES))
    expected = stats.ttest_1samp(VALUES, 0).confidence_interval(0.9)
    assert number_interval(VALUES, alone, 0.9) == pytest.approx(tuple(expected))
    differences = [b - a for a, b in zip(VALUES, OTHERS, strict=True)]
    assert paired_t(differences, alone) == pytest.approx(stats.ttest_rel(OTHERS, VALUES).pvalue)
    for right, of in ((0, 10), (3, 10), (10, 10), (812, 1_000)):
        values = [1.0] * right + [0.0] * (of - right)
        wilson = stats.binomtest(right, of).proportion_ci(0.95, "wilson")
        ours = share_interval(values, range(of), 0.95, most=of)
        assert ours == pytest.approx((wilson.low, wilson.high))
    for gained, lost in ((0, 0), (5, 5), (1, 9), (30, 12)):
        expected = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
        assert mcnemar(gained, lost) == pytest.approx(expected)


def test_clustered_figures_are_those_of_statsmodels_and_inspect_ai() -> None:
    """Their figures for the same numbers; the packages are too large to install for one test.

    Of statsmodels 0.15.0 (``OLS().fit(cov_type="cluster", use_t=True)``, and ``mcnemar()``), and of
    inspect_ai 0.3.285 (``ci(cluster=)``, and ``ci_wilson()``).
    """
    assert number_interval(VALUES, CLUSTERS, 0.95) == pytest.approx((0.25938048137, 0.96561951862))
    assert mcnemar(30, 12) == pytest.approx(0.007915897334896727)
    values = [1.0] * 812 + [0.0] * 188
    expected = (0.7866068125887822, 0.8350052901162315)
    assert share_interval(values, range(1_000), 0.95, most=1_000) == pytest.approx(expected)


def test_samples_that_are_right_together_are_worth_fewer() -> None:
    values = [float(n % 2) for n in range(40)]
    alone = share_interval(values, range(40), 0.95, most=40)
    together = share_interval(values, [n % 2 + n // 10 * 2 for n in range(40)], 0.95, most=40)
    assert alone.low > together.low
    assert alone.high < together.high


def test_nothing_is_certain_because_all_were_right() -> None:
    """And least of all if they come from few clusters."""
    alone = share_interval([1.0] * 40, range(40), 0.95, most=40)
    together = share_interval([1.0] * 40, [n // 10 for n in range(40)], 0.95, most=40)
    assert (alone.high, together.high) == (1, 1)
    assert together.low < 0.5 < alone.low < 0.92


def test_a_single_cluster_says_nothing_of_others() -> None:
    assert number_interval([1.0, 2.0], [0, 0], 0.95) == (-math.inf, math.inf)
    assert share_interval([1.0, 0.0], [0, 0], 0.95, most=2) == (0, 1)
    assert math.isnan(paired_t([1.0, 2.0], [0, 0]))


def test_pass_at_k_is_the_mean_over_all_choices_of_k_calls() -> None:
    for of, right, k in ((5, 2, 1), (5, 2, 3), (6, 1, 6), (4, 0, 2), (4, 4, 2)):
        calls = [1] * right + [0] * (of - right)
        chosen = [max(some) for some in itertools.combinations(calls, k)]
        assert pass_at(right, of, k) == pytest.approx(sum(chosen) / len(chosen))


# Coverage ----------------------------------------------------------------------------------------

Drawn: TypeAlias = tuple[Interval, float]


def plain_share(draw: random.Random) -> Drawn:
    count, truth = draw.randint(30, 150), draw.uniform(0.05, 0.95)
    values = [float(draw.random() < truth) for _ in range(count)]
    return share_interval(values, range(count), 0.95, most=count), truth


def clustered_share(draw: random.Random) -> Drawn:
    truth, alike = draw.uniform(0.05, 0.95), draw.choice([2, 5])
    values: list[float] = []
    clusters: list[Hashable] = []
    for cluster in range(draw.randint(30, 80)):
        chance = draw.betavariate(truth * alike, (1 - truth) * alike)
        for _ in range(draw.randint(2, 5)):
            values.append(draw.random() < chance)
            clusters.append(cluster)
    return share_interval(values, clusters, 0.95, most=len(values)), truth


def repeated_share(draw: random.Random) -> Drawn:
    truth, alike = draw.uniform(0.05, 0.95), draw.choice([2, 5])
    values: list[float] = []
    for _ in range(draw.randint(30, 80)):
        chance = draw.betavariate(truth * alike, (1 - truth) * alike)
        values.append(sum(draw.random() < chance for _ in range(5)) / 5)
    return share_interval(values, range(len(values)), 0.95, most=5 * len(values)), truth


def plain_number(draw: random.Random) -> Drawn:
    values = [draw.gauss(3, 2) for _ in range(draw.randint(5, 80))]
    return number_interval(values, range(len(values)), 0.95), 3


def clustered_number(draw: random.Random) -> Drawn:
    values: list[float] = []
    clusters: list[Hashable] = []
    for cluster in range(draw.randint(30, 80)):
        middle = draw.gauss(0, 1)
        for _ in range(draw.randint(2, 5)):
            values.append(draw.gauss(middle, 1))
            clusters.append(cluster)
    return number_interval(values, clusters, 0.95), 0


def pairs(draw: random.Random) -> Drawn:
    count, better, worse = draw.randint(30, 200), draw.uniform(0, 0.3), draw.uniform(0, 0.3)
    drawn = [draw.random() for _ in range(count)]
    gained = sum(one < better for one in drawn)
    lost = sum(better <= one < better + worse for one in drawn)
    return pair_interval(gained, lost, count, 0.95), better - worse


@pytest.mark.slow
@pytest.mark.parametrize(
    "simulated",
    [plain_share, clustered_share, repeated_share, plain_number, clustered_number, pairs],
)
def test_intervals_cover_what_they_say(simulated: Callable[[random.Random], Drawn]) -> None:
    """95 % of 10,000 evaluations, within 1 %; of the few that are run by default, within 3 %."""
    draw = random.Random(17)
    count = scaled(1_000, full=10_000)
    covered = 0
    for _ in range(count):
        interval, truth = simulated(draw)
        covered += interval.low <= truth <= interval.high
    assert covered / count == pytest.approx(0.95, abs=0.01 if FULL else 0.03)
