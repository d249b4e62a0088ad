"""Intervals of counted shares are right as often as they say."""

import math
from random import Random

import pytest

from harness.testing._shares import Share, wilson


@pytest.mark.parametrize(
    ("found", "of", "low", "high"),
    # From Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_intervals(found: int, of: int, low: float, high: float) -> None:
    share = Share.counted(found, of)
    assert (round(share.low, 4), round(share.high, 4)) == (low, high)


@pytest.mark.parametrize("of", [50, 200, 1_000])
def test_the_interval_is_right_for_93_to_98_percent_of_all_samples(of: int) -> None:
    """Summed over all samples, not drawn; on average over shares from 2 % to 98 %."""
    shares = [percent / 100 for percent in range(2, 99, 4)]
    intervals = [Share.counted(found, of) for found in range(of + 1)]

    def likelihood(found: int, share: float) -> float:
        ways = math.lgamma(of + 1) - math.lgamma(found + 1) - math.lgamma(of - found + 1)
        return math.exp(ways + found * math.log(share) + (of - found) * math.log(1 - share))

    right = sum(
        likelihood(found, share)
        for share in shares
        for found, interval in enumerate(intervals)
        if interval.low <= share <= interval.high
    )
    assert 0.93 <= right / len(shares) <= 0.98


def test_members_of_a_group_that_are_always_alike_count_as_one() -> None:
    random = Random(0)
    groups = [3 * (random.random() < 0.3) for _ in range(500)]
    alike = Share.of_groups(groups, [3] * 500)
    one_each = Share.counted(sum(map(bool, groups)), 500)
    assert (alike.found, alike.of) == (sum(groups), 1_500)
    assert alike.low == pytest.approx(one_each.low, abs=0.001)
    assert alike.high == pytest.approx(one_each.high, abs=0.001)


def test_members_that_have_nothing_to_do_with_each_other_count_each() -> None:
    random = Random(0)
    groups = [sum(random.random() < 0.3 for _ in range(3)) for _ in range(500)]
    each = Share.counted(sum(groups), 1_500)
    assert Share.of_groups(groups, [3] * 500).low == pytest.approx(each.low, abs=0.003)


def test_none_and_all_of_a_sample_are_never_certain() -> None:
    assert Share.of_groups([0] * 100, [4] * 100) == Share(0, 400, 0.0, wilson(0, 100)[1])
    assert wilson(0, 100)[1] == pytest.approx(0.037, abs=0.001)
    assert wilson(1, 100)[0] == pytest.approx(0.963, abs=0.001)
    assert Share.counted(0, 0) == Share(0, 0, 0.0, 1.0)
    assert str(Share.counted(1, 8)) == "12.5 % (2.24 to 47.1 %)"
