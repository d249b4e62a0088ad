"""Count how often what was expected was answered as what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from harness.evals._score import SampleScore
from harness.evals._scorers import as_text
from harness.evals._table import aligned

FAILED = "(failed)"
"""What a call that failed is counted as."""

_LABELS_AT_MOST = 12
"""So many labels make a square that fits on a terminal."""


@attrs.frozen
class Confusion:
    """How often each label was answered as which. Readable as text."""

    counts: Mapping[tuple[str, str], int]
    """By the expected label and the one that was answered."""

    labels: tuple[str, ...]
    """All labels, sorted."""

    def recall(self, label: str) -> float:
        """Return which share of what should have this label has it.

        Raises:
          ZeroDivisionError: if nothing should have it.
        """
        of = sum(count for (expected, _), count in self.counts.items() if expected == label)
        return self.counts.get((label, label), 0) / of

    def precision(self, label: str) -> float:
        """Return which share of what has this label should have it.

        Raises:
          ZeroDivisionError: if nothing has it.
        """
        of = sum(count for (_, given), count in self.counts.items() if given == label)
        return self.counts.get((label, label), 0) / of

    def mistakes(self) -> list[tuple[str, str, int]]:
        """Return the expected label, the one that was answered instead, and how often.

        The most frequent mistakes come first.
        """
        wrong = [(*pair, count) for pair, count in self.counts.items() if pair[0] != pair[1]]
        return sorted(wrong, key=lambda one: (-one[2], *one[:2]))

    def __str__(self) -> str:
        if len(self.labels) > _LABELS_AT_MOST:
            ahead = self.mistakes()[:_LABELS_AT_MOST]
            most = [(one, other, f"{count:,}") for one, other, count in ahead]
            return aligned(("expected", "answered", "times"), most)
        expected, answered = (
            [label for label in self.labels if any(pair[side] == label for pair in self.counts)]
            for side in (0, 1)
        )
        rows = [
            (one, *(f"{self.counts.get((one, other), 0):,}" for other in answered))
            for one in expected
        ]
        return aligned(("expected", *answered), rows)


def confusion(scores: Iterable[SampleScore], label: Callable[[Any], Any]) -> Confusion:
    """Return the table of an evaluation; see `Evaluation.confusion`."""
    counts = Counter(
        (
            as_text(one.sample.expected),
            FAILED if one.failed else as_text(label(one.output)),
        )
        for one in scores
        if one.failed or one.status == "ok"
    )
    return Confusion(dict(counts), tuple(sorted({one for pair in counts for one in pair})))
