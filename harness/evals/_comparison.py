"""Compare two evaluations of the same samples, pair by pair.

Paired, since two agents mostly agree on which samples are hard: what both have right or wrong says
nothing about which is better, and is noise if their means are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import attrs

from harness.evals._score import Counted
from harness.evals._statistics import (
    Interval,
    mcnemar,
    mean_of,
    number_interval,
    pair_interval,
    paired_t,
)


@attrs.frozen(kw_only=True)
class Comparison:
    """How the scores of two evaluations differ. Readable as text: ``print(comparison)``."""

    scorer: str
    """The scorer."""

    names: tuple[str, str]
    """The names of the two."""

    means: tuple[float, float]
    """The mean of each, over the samples of both."""

    difference: float
    """The second mean minus the first."""

    low: float
    """The lower end of the difference's interval."""

    high: float
    """The upper end of it."""

    level: float
    """The confidence of the interval."""

    test: Literal["McNemar, exact", "paired t"]
    """Which test the p-value is of."""

    p_value: float
    """How likely a difference as large is if there is none; nan if there is a single cluster."""

    pairs: int
    """How many samples both have scores for."""

    better: tuple[str, ...]
    """The ids of the samples that the second has the higher score for."""

    worse: tuple[str, ...]
    """The ids of those that it has the lower score for."""

    only_first: int
    """How many samples the first alone has a score for. They are left out."""

    only_second: int
    """How many the second alone has a score for. They are left out."""

    def __str__(self) -> str:
        first, second = self.means
        parts = [
            f"{self.scorer}: {first:.3f} -> {second:.3f}",
            f"{self.difference:+.3f} ({self.low:+.3f} to {self.high:+.3f}, "
            f"{100 * self.level:g} %), p = {self.p_value:.3g} ({self.test})",
            f"{self.pairs:,} pairs: {len(self.better):,} better, {len(self.worse):,} worse",
        ]
        return "; ".join((*parts, *self._left_out()))

    def _left_out(self) -> Iterator[str]:
        counts = zip((self.only_first, self.only_second), ("first", "second"), strict=True)
        for count, which in counts:
            if count:
                yield f"{count:,} scored in the {which} only, left out"


def compare(pair: tuple[Counted, Counted], names: tuple[str, str], *, level: float) -> Comparison:
    """Return how the second differs from the first; see `Evaluation.compare`."""
    one, other = pair
    keys = [key for key in one.of_samples if key in other.of_samples]
    if not keys:
        raise ValueError(
            "the two evaluations have no sample in common, so nothing can be paired; evaluate the "
            "same samples, with the same ids"
        )
    before = [one.of_samples[key] for key in keys]
    after = [other.of_samples[key] for key in keys]
    differences = [now - then for then, now in zip(before, after, strict=True)]
    clusters = [one.clusters[key] for key in keys]
    gained, lost = (sum(sign * value > 0 for value in differences) for sign in (1, -1))
    single = one.calls == len(one.of_samples) and other.calls == len(other.of_samples)
    if one.are_bools and other.are_bools and single and len(set(clusters)) == len(keys):
        test, p_value = "McNemar, exact", mcnemar(gained, lost)
        interval: Interval = pair_interval(gained, lost, len(keys), level)
    else:
        test, p_value = "paired t", paired_t(differences, clusters)
        interval = number_interval(differences, clusters, level)
    return Comparison(
        scorer=one.scorer,
        names=names,
        means=(mean_of(before), mean_of(after)),
        difference=mean_of(differences),
        low=interval.low,
        high=interval.high,
        level=level,
        test=test,  # type: ignore[arg-type]
        p_value=p_value,
        pairs=len(keys),
        better=tuple(key for key, value in zip(keys, differences, strict=True) if value > 0),
        worse=tuple(key for key, value in zip(keys, differences, strict=True) if value < 0),
        only_first=len(one.of_samples) - len(keys),
        only_second=len(other.of_samples) - len(keys),
    )
