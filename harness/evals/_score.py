"""The parts of an evaluation: the scores of one call, what counts of them, and a mean of them.

Three things can keep an output from being counted, and none of them is silent. The function
*failed* or timed out: that counts as a score, 0 by default, since an agent that doesn't answer
isn't right. A scorer gave no score, because it failed or wouldn't say: the output is *unscored*,
which is no fault of the function, and left out. It was *not run*, because the evaluation was ended
early: left out as well. `MeanScore` states all three, and the mean without the failed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from harness.evals._sample import Sample
from harness.fanout import ResultStatus

ScoreValue: TypeAlias = float | bool
"""What a scorer gives."""


@attrs.frozen(kw_only=True)
class SampleScore:
    """What one call for one sample came to."""

    sample: Sample
    """The sample."""

    repeat: int
    """Which call for it, from 0."""

    status: ResultStatus
    """How the call ended."""

    output: Any
    """What it returned; an agent's output, not the whole reply. None unless the status is ok."""

    error: str | None
    """Why there is no output; None if there is."""

    scores: Mapping[str, ScoreValue]
    """What each scorer gave; without those that gave none."""

    unscored: Mapping[str, str]
    """Why the others gave none."""

    seconds: float
    """How long the call took."""

    @property
    def failed(self) -> bool:
        """Whether the function failed or timed out."""
        return self.status in ("failed", "timed_out")


@attrs.frozen(kw_only=True)
class MeanScore:
    """The mean of a scorer's scores, how sure it is, and what isn't in it."""

    scorer: str
    """The scorer's name."""

    mean: float
    """The mean over samples; of a sample with several calls, over these first."""

    low: float
    """The lower end of the interval."""

    high: float
    """The upper end of the interval."""

    level: float
    """The confidence of the interval."""

    samples: int
    """How many samples are counted."""

    clusters: int
    """How many clusters these are; as many as samples if none of them belong together."""

    calls: int
    """How many calls are counted."""

    failed: int
    """How many calls failed."""

    failed_as: float | None
    """What they are counted as; None: they are left out."""

    mean_without_failed: float
    """The mean over those that didn't fail; nan if all did."""

    unscored: int
    """How many outputs the scorer gave no score for. They are left out."""

    not_run: int
    """How many calls were never made, or cut short. They are left out."""

    def __str__(self) -> str:
        interval = f" ({self.low:.3f} to {self.high:.3f}, {100 * self.level:g} %)"
        text = f"{self.mean:.3f}{interval if math.isfinite(self.low) else ''}"
        return "; ".join((text, *self.notes()))

    def notes(self) -> Iterator[str]:
        """Yield what isn't in the mean, or is in it without a score, in words."""
        if self.failed:
            how = "left out" if self.failed_as is None else f"counted as {self.failed_as:g}"
            without = (
                ""
                if math.isnan(self.mean_without_failed)
                else (f" ({self.mean_without_failed:.3f} without them)")
            )
            yield f"{self.failed:,} failed, {how}{'' if self.failed_as is None else without}"
        if self.unscored:
            yield f"{self.unscored:,} not scored, left out"
        if self.not_run:
            yield f"{self.not_run:,} not run, left out"


@attrs.frozen(kw_only=True)
class Counted:
    """What counts for one scorer, sample by sample."""

    scorer: str
    """Its name."""

    of_samples: Mapping[str, float]
    """The mean of each sample's calls, by the sample's id."""

    clusters: Mapping[str, Hashable]
    """The cluster of each, in the same order."""

    calls: int
    """How many calls they are."""

    are_bools: bool
    """Whether the scorer gives bools, or no other numbers than 0 and 1."""
