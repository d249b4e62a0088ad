"""Quantiles are exact for a few values, and within 1 % for any number, in bounded memory."""

import math
import random
import sys

import pytest

from harness.observe import Distribution


def filled(values: list[float]) -> Distribution:
    distribution = Distribution()
    for value in values:
        distribution.add(value)
    return distribution


def nearest_rank(values: list[float], share: float) -> float:
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


def test_a_few_values_have_exact_quantiles() -> None:
    few = filled([4.0, 1.0, 3.0, 2.0])
    assert (few.p50, few.p95, few.p99, few.mean, few.count, few.total) == (2, 4, 4, 2.5, 4, 10)


def test_no_values_have_no_quantiles() -> None:
    none = Distribution()
    assert none.count == 0
    assert all(math.isnan(number) for number in (none.p50, none.p95, none.p99, none.mean))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("draw", ["lognormvariate", "paretovariate", "expovariate"])
def test_many_values_have_quantiles_within_one_percent(draw: str, seed: int) -> None:
    """The tail is what matters, and these have long ones."""
    rng = random.Random(seed)
    arguments = (0, 3) if draw == "lognormvariate" else (0.5,)
    values = [getattr(rng, draw)(*arguments) for _ in range(5_000)]
    many = filled(values)
    assert many.count == 5_000
    for share in (0, 0.01, 0.5, 0.95, 0.99, 1):
        assert many.quantile(share) == pytest.approx(nearest_rank(values, share), rel=0.0101)


def test_memory_is_bounded_whatever_comes() -> None:
    """Subnormal, infinite and negative durations included."""
    many = filled([10.0**power for power in range(-320, 308)] * 20)
    many.add(math.inf)
    many.add(-1.0)
    assert len(many._buckets) <= 2_100
    assert sys.getsizeof(many._buckets) < 200_000
    assert many.quantile(0) == 0


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_refuses_a_share_out_of_range(share: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        Distribution().quantile(share)
