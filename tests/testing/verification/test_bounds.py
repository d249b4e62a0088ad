"""What a sample says of the whole is right as often as it says."""

from __future__ import annotations

import math

import pytest

from harness.testing.verification import bounds


def chance(found: int, sample: int, count: int, population: int) -> float:
    """Return how likely a sample has exactly ``found``, in whole numbers."""
    ways = math.comb(count, found) * math.comb(population - count, sample - found)
    return ways / math.comb(population, sample)


@pytest.mark.parametrize(("population", "sample"), [(12, 5), (40, 10), (60, 25)])
def test_bounds_are_right_in_95_of_100_samples_whatever_the_truth(
    population: int, sample: int
) -> None:
    """By counting all samples: for each truth, those whose bounds have it."""
    for truth in range(population + 1):
        below = above = 0.0
        for found in range(max(0, sample - population + truth), min(sample, truth) + 1):
            said = bounds(found, sample, population)
            likely = chance(found, sample, truth, population)
            below += likely * (truth < said.least)
            above += likely * (truth > said.most)
        assert below <= 0.025 + 1e-9
        assert above <= 0.05 + 1e-9


def test_none_of_300_says_what_the_rule_of_three_says() -> None:
    endless = bounds(0, 300, 10_000_000)
    assert endless.least == 0
    assert endless.most / 10_000_000 == pytest.approx(1 - 0.05 ** (1 / 300), rel=1e-3)
    assert endless.most / 10_000_000 == pytest.approx(3 / 300, rel=0.01)


def test_the_population_is_taken_into_account() -> None:
    """Of 5,000, 300 are known: 48 may differ, not the 49.7 of an endless population."""
    assert bounds(0, 300, 5000).most == 48
    assert chance(0, 300, 48, 5000) > 0.05 >= chance(0, 300, 49, 5000)


def test_who_looked_at_all_knows_it() -> None:
    assert (bounds(3, 40, 40).least, bounds(3, 40, 40).most) == (3, 3)
    assert (bounds(0, 40, 40).least, bounds(0, 40, 40).most) == (0, 0)
    assert (bounds(40, 40, 40).least, bounds(40, 40, 40).most) == (40, 40)


def test_bounds_are_as_narrow_as_they_can_be() -> None:
    """Each number within them makes a sample like this one likely enough; the next ones don't."""
    said = bounds(3, 10, 50)

    def tails(count: int) -> tuple[float, float]:
        likely = [chance(found, 10, count, 50) for found in range(min(count, 10) + 1)]
        return sum(likely[:4]), sum(likely[3:])

    within = [count for count in range(3, 44) if min(tails(count)) > 0.025]
    assert (said.least, said.most) == (within[0], within[-1])
    assert 2 < said.least < 15 < said.most < 35
