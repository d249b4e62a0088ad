"""What an evaluation came to: the scores of all calls, and what they say together."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from harness.evals._comparison import Comparison, compare
from harness.evals._confusion import Confusion, confusion
from harness.evals._sample import Sample
from harness.evals._score import Counted, MeanScore, SampleScore
from harness.evals._scorers import as_text
from harness.evals._statistics import (
    Interval,
    mean_of,
    number_interval,
    pass_at,
    share_interval,
)
from harness.evals._table import aligned
from harness.journal._export import written_whole

LEVEL = 0.95
"""The confidence of intervals, unless another is asked for."""


@attrs.frozen(repr=False)
class Evaluation:
    """The scores of a function on samples. Readable as text: ``print(evaluation)``."""

    name: str
    """What was evaluated."""

    scores: tuple[SampleScore, ...]
    """What each call came to: in the order of the samples, and the calls for one side by side."""

    scorers: tuple[str, ...]
    """The names of the scorers."""

    failed_as: float | None = 0.0
    """What a failed call counts as; None: it is left out."""

    def __repr__(self) -> str:
        return f"<Evaluation of {self.name!r}: {len(self.scores):,} calls>"

    def __str__(self) -> str:
        return mean_table("group", {"all": self, **(self._groups() if self._has_groups else {})})

    @property
    def _has_groups(self) -> bool:
        return any(one.sample.group is not None for one in self.scores)

    def _groups(self) -> dict[str, Evaluation]:
        groups = self.by_group()
        return {"(none)" if one is None else as_text(one): part for one, part in groups.items()}

    # Means -----------------------------------------------------------------------------------

    def mean(self, scorer: str | None = None) -> float:
        """Return the mean of a scorer's scores, failed calls counted as `failed_as`.

        Args:
          scorer: Its name; None: the only one's.

        Raises:
          ValueError: if there is no such scorer, or it scored nothing.
        """
        counted = self.counted(scorer)
        return mean_of(list(counted.of_samples.values()))

    def interval(self, scorer: str | None = None, *, level: float = LEVEL) -> tuple[float, float]:
        """Return where the mean of a scorer's scores lies, with that confidence.

        For bools, and for numbers that are all 0 or 1, it is Wilson's interval, for other numbers
        Student's; both take clusters and repeated calls into account. If all numbers are the same,
        or from one cluster, nothing is known of their spread, and it has no ends.

        Args:
          scorer: Its name; None: the only one's.
          level: The confidence, such as 0.95.

        Raises:
          ValueError: as for `mean`; or if the level isn't between 0 and 1.
        """
        low, high = self._interval(self.counted(scorer), level)
        return low, high

    def mean_score(self, scorer: str | None = None, *, level: float = LEVEL) -> MeanScore:
        """Return the mean with its interval, and with what isn't in it.

        Args:
          scorer: Its name; None: the only one's.
          level: The confidence of the interval.

        Raises:
          ValueError: as for `interval`.
        """
        counted = self.counted(scorer)
        low, high = self._interval(counted, level)
        without_failed = list(self._given(counted.scorer, None))
        return MeanScore(
            scorer=counted.scorer,
            mean=mean_of(list(counted.of_samples.values())),
            low=low,
            high=high,
            level=level,
            samples=len(counted.of_samples),
            clusters=len(set(counted.clusters.values())),
            calls=counted.calls,
            failed=sum(one.failed for one in self.scores),
            failed_as=self.failed_as,
            mean_without_failed=_mean_of_samples(without_failed),
            unscored=sum(counted.scorer in one.unscored for one in self.scores),
            not_run=sum(one.status in ("cancelled", "skipped") for one in self.scores),
        )

    def pass_at(self, k: int, scorer: str | None = None, *, level: float = LEVEL) -> MeanScore:
        """Return how likely at least one of ``k`` calls is right, as a mean over samples.

        Each sample is estimated from all of its calls, without bias: see M. Chen et al.,
        "Evaluating Large Language Models Trained on Code", 2021, arXiv:2107.03374.

        Args:
          k: How many calls. An evaluation with more repeats than that says more.
          scorer: The name of a scorer that gives bools; None: the only one's.
          level: The confidence of the interval.

        Raises:
          ValueError: if the scorer gives numbers, or no sample has ``k`` calls that count.
        """
        mean = self.mean_score(scorer, level=level)
        if not self.counted(mean.scorer).are_bools:
            raise ValueError(
                f"pass_at() counts what is right, and {mean.scorer!r} gives numbers; write a "
                "scorer that gives bools, such as one that says which numbers are good enough"
            )
        calls: dict[str, list[float]] = {}
        for one, given in self._given(mean.scorer, self.failed_as):
            calls.setdefault(str(one.sample.id), []).append(given)
        enough = {key: given for key, given in calls.items() if len(given) >= k >= 1}
        if not enough:
            raise ValueError(
                f"pass_at({k}) needs samples with {k} calls or more, and there is none; evaluate "
                f"with repeats={k} or more, and ask for 1 or more"
            )
        clusters = self.counted(mean.scorer).clusters
        values = [pass_at(round(sum(given)), len(given), k) for given in enough.values()]
        groups = [clusters[key] for key in enough]
        most = sum(map(len, enough.values()))
        low, high = share_interval(values, groups, level, most=most)
        return attrs.evolve(
            mean,
            scorer=f"{mean.scorer}, pass@{k}",
            mean=mean_of(values),
            low=low,
            high=high,
            samples=len(enough),
            clusters=len(set(groups)),
            calls=most,
            mean_without_failed=math.nan,
        )

    def _interval(self, counted: Counted, level: float) -> Interval:
        if not 0 < level < 1:
            raise ValueError(f"level= is a confidence between 0 and 1, such as 0.95, not {level!r}")
        values, clusters = list(counted.of_samples.values()), list(counted.clusters.values())
        if counted.are_bools:
            return share_interval(values, clusters, level, most=counted.calls)
        if min(values) == max(values):
            return Interval(-math.inf, math.inf)  # Nothing is known of the spread.
        return number_interval(values, clusters, level)

    def counted(self, scorer: str | None = None) -> Counted:
        """Return what counts for a scorer, sample by sample. For comparisons and pictures.

        Raises:
          ValueError: if there is no such scorer, or it scored nothing.
        """
        name = self._named(scorer)
        given = list(self._given(name, self.failed_as))
        # If all have failed, that is their score; else somebody has to have scored something.
        is_silent = any(name in one.unscored for one in self.scores)
        if not given or (is_silent and not any(name in one.scores for one in self.scores)):
            reasons = [one.unscored[name] for one in self.scores if name in one.unscored]
            reasons += [f"{one.status}: {one.error}" for one in self.scores if one.error]
            raise ValueError(
                f"the scorer {name!r} gave no score for any of the {len(self.scores):,} calls"
                f"{f'; the first reason: {reasons[0]}' if reasons else ''}"
            )
        of_samples: dict[str, list[float]] = {}
        clusters: dict[str, Hashable] = {}
        for one, value in given:
            sample = one.sample
            of_samples.setdefault(str(sample.id), []).append(value)
            alone = sample.cluster is None
            clusters[str(sample.id)] = (alone, str(sample.id if alone else sample.cluster))
        return Counted(
            scorer=name,
            of_samples={key: mean_of(values) for key, values in of_samples.items()},
            clusters=clusters,
            calls=len(given),
            are_bools=self.failed_as in (None, 0, 1)
            and all(one.scores.get(name, True) in (0, 1) for one in self.scores),
        )

    def _given(self, scorer: str, failed_as: float | None) -> Iterator[tuple[SampleScore, float]]:
        """Yield each call that counts, and its score."""
        for one in self.scores:
            if one.failed and failed_as is not None:
                yield one, failed_as
            elif scorer in one.scores:
                yield one, float(one.scores[scorer])

    def _named(self, scorer: str | None) -> str:
        if scorer is None and len(self.scorers) == 1:
            return self.scorers[0]
        if scorer not in self.scorers or scorer is None:
            raise ValueError(
                f"the scorers of this evaluation are {', '.join(map(repr, self.scorers))}; name "
                f"one of them, not {scorer!r}"
            )
        return scorer

    # Parts, and others -----------------------------------------------------------------------

    def by_group(self) -> dict[Any, Evaluation]:
        """Return an evaluation of the samples of each group, in the order of the samples."""
        groups: dict[Any, list[SampleScore]] = {}
        for one in self.scores:
            groups.setdefault(one.sample.group, []).append(one)
        return {group: attrs.evolve(self, scores=tuple(scores)) for group, scores in groups.items()}

    def compare(
        self, other: Evaluation, scorer: str | None = None, *, level: float = LEVEL
    ) -> Comparison:
        """Compare with another evaluation of the same samples, pair by pair.

        Bools of single, independent samples are compared by McNemar's exact test, everything else
        by the paired t-test, over clusters.

        Args:
          other: What comes second: its mean minus this one's is the difference.
          scorer: The name of the scorer; None: the only one's.
          level: The confidence of the difference's interval.

        Raises:
          ValueError: if there is no such scorer in both, or they have no sample in common.
        """
        name = self._named(scorer)
        pair = (self.counted(name), other.counted(name))
        return compare(pair, (self.name, other.name), level=level)

    def confusion(self, label: Callable[[Any], Any] = as_text) -> Confusion:
        """Return how often what was expected was answered as what.

        Args:
          label: Returns what an output says; by default, all of its text.
        """
        return confusion(self.scores, label)

    # Files -----------------------------------------------------------------------------------

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the scores to a file, a JSON object per line; `read_evaluation` reads them.

        Outputs that JSON can't hold are written as text. A file that is there is replaced once the
        new one is complete.

        Raises:
          OSError: if it can't be written; then what was there still is.
        """
        with written_whole(os.fspath(path), overwrite=True) as file:
            file.writelines(f"{line}\n".encode() for line in self.lines())

    def lines(self) -> Iterator[str]:
        """Yield what `write` writes, a JSON object for each call."""
        for one in self.scores:
            sample = attrs.asdict(one.sample, recurse=False)
            fields = attrs.asdict(one, recurse=False)
            del fields["sample"]
            head = {"key": sample.pop("id"), "evaluation": self.name, "failed_as": self.failed_as}
            line = {**head, **fields, **sample}
            try:
                yield json.dumps(line, default=str)
            except (TypeError, ValueError):  # A key of a dict is no text, or it contains itself.
                texts = {name: str(line[name]) for name in ("input", "expected", "output")}
                yield json.dumps(line | texts, default=str)


def _mean_of_samples(given: Iterable[tuple[SampleScore, float]]) -> float:
    of_samples: dict[str, list[float]] = {}
    for one, value in given:
        of_samples.setdefault(str(one.sample.id), []).append(value)
    return mean_of([mean_of(values) for values in of_samples.values()]) if of_samples else math.nan


def read_evaluation(path: str | os.PathLike[str]) -> Evaluation:
    """Read what `Evaluation.write` wrote, or ``harness eval --output``.

    Raises:
      OSError: if it can't be read.
      ValueError: if the file has anything else in it.
    """
    scores: list[SampleScore] = []
    scorers: dict[str, None] = {}
    head: tuple[str, float | None] = ("", 0.0)
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                told = json.loads(line)
                head = told.pop("evaluation"), told.pop("failed_as")
                names = ("input", "expected", "group", "cluster")
                sample = Sample(told.pop("key"), *(told.pop(name) for name in names))
                scores.append(SampleScore(sample=sample, **told))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ValueError(
                    f"{path}, line {number}: this is no score that an evaluation wrote ({error!r})"
                ) from error
            scorers |= dict.fromkeys([*scores[-1].scores, *scores[-1].unscored])
    if not scores:
        raise ValueError(f"{path} has no scores; give what Evaluation.write() wrote")
    return Evaluation(head[0], tuple(scores), tuple(scorers), head[1])


def mean_table(what: str, evaluations: Mapping[str, Evaluation]) -> str:
    """Return a table of evaluations as text: a row for each and scorer.

    Args:
      what: What the evaluations are, as the head of their column.
      evaluations: By name.
    """
    rows = []
    for name, evaluation in evaluations.items():
        for scorer in evaluation.scorers:
            try:
                mean = evaluation.mean_score(scorer)
            except ValueError as error:
                rows.append((name, scorer, "", "", f"{len(evaluation.scores):,}", str(error)))
                continue
            known = math.isfinite(mean.low)
            interval = f"{mean.low:.3f} to {mean.high:.3f}" if known else ""
            notes = "; ".join(mean.notes())
            rows.append((name, scorer, f"{mean.mean:.3f}", interval, f"{mean.calls:,}", notes))
    return aligned((what, "scorer", "mean", f"{100 * LEVEL:g} %", "calls", ""), rows)
