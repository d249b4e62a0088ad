"""Measure how often runs leak: in which share of schedules, of runs, and through which objects.

Finding a leak takes one schedule, and the search prefers those in which leaks are likely. A share
needs schedules that are drawn alike: whenever several runs could go on, each of them is as likely
to. Nothing is cancelled, and nothing stops at the first leak.

An object's part is seen by repeating leaking schedules with contents of its own for each run: the
runs that are then right had leaked through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random

import attrs

from harness.testing._shares import Share
from harness.testing.isolation._causes import (
    CANDIDATES_AT_MOST,
    Candidate,
    candidates_of,
    find_causes,
    other_trials,
)
from harness.testing.isolation._hunt import other_schedules
from harness.testing.isolation._trials import AtOnce, Subject, Trial, Verdict, try_at_once
from harness.testing.isolation._watch import StepWatch
from harness.testing.schedules._choosers import Uniform
from harness.testing.schedules._search import Probe

LOOKED_INTO_AT_MOST = 50
"""How many leaking schedules are repeated to see through which objects they leak."""

PROOFS_AT_MOST = 3
"""How often a leaking schedule that no known object explains is searched for others."""


@attrs.frozen
class LeakageAtOnce:
    """How often runs leak when so many are run at once."""

    at_once: int
    """How many runs are run at once."""

    schedules: Share
    """The schedules in which any run leaks."""

    runs: Share
    """The runs that give something else than alone."""


@attrs.frozen
class LeakageThrough:
    """How much of what leaks does so through an object."""

    path: str
    """The object; several that only leak together are joined by "and"."""

    schedules: Share
    """Of the leaking schedules that were looked into, those in which some run leaks through it."""

    runs: Share
    """Of the leaking runs in them, those that leak through it."""


@attrs.frozen
class Leakage:
    """How often runs leak, as ``assert_isolated(..., measure=...)`` measured it."""

    at_once: tuple[LeakageAtOnce, ...]
    """By the number of runs at once, ascending."""

    through: tuple[LeakageThrough, ...]
    """By object, most first."""

    def __str__(self) -> str:
        schedules = sum(row.schedules.of for row in self.at_once)
        lines = [
            f"measured in {schedules:,} schedules drawn at random (in brackets: 95 % confidence):",
            *_columns(
                ("at once", "schedules that leak", "runs that leak"),
                [(f"{row.at_once}", str(row.schedules), str(row.runs)) for row in self.at_once],
            ),
        ]
        if self.through:
            looked_into = self.through[0].schedules.of
            rows = [(one.path, str(one.schedules), str(one.runs)) for one in self.through]
            lines += _columns(
                (f"of {looked_into} that leak, through", "schedules", "runs that leak"), rows
            )
        return "\n".join(lines)


def _columns(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield f"  {' | '.join(cells)}".rstrip()


def measure_leakage(
    subject: Subject,
    schedules: int,
    seed: int,
    known: Sequence[Candidate],
    go_on: Callable[[], None],
) -> tuple[Leakage, tuple[AtOnce, Verdict] | None]:
    """Run schedules drawn at random, as many for each number of runs at once.

    Return also the first trial that leaked, if any did.

    Args:
      subject: What is tried.
      schedules: How many schedules to run, in all.
      seed: What they are drawn from.
      known: What is known to make runs leak.
      go_on: Called between schedules; raises if it is time to stop.
    """
    random = Random(seed)
    sizes = _sizes(len(subject.inputs))[-schedules:]
    rows: list[LeakageAtOnce] = []
    leaking: list[tuple[AtOnce, Verdict]] = []
    for index, size in enumerate(sizes):
        count = schedules * (index + 1) // len(sizes) - schedules * index // len(sizes)
        failed, wrong = 0, list[int]()
        for _ in range(count):
            go_on()
            members = tuple(sorted(random.sample(range(len(subject.inputs)), size)))
            probe = Probe(Uniform(random))
            verdict = try_at_once(subject, members, probe)
            failed += verdict.failed
            wrong.append(len(verdict.differences))
            if verdict.failed:
                assert verdict.run is not None
                leaking.append((AtOnce(members, verdict.run.schedule), verdict))
        runs = Share.of_groups(wrong, [size] * count)
        rows.append(LeakageAtOnce(size, Share.counted(failed, count), runs))
    some = leaking
    if len(leaking) > LOOKED_INTO_AT_MOST:
        some = random.sample(leaking, LOOKED_INTO_AT_MOST)
    through = _through(subject, some, seed, known, go_on)
    return Leakage(tuple(rows), through), leaking[0] if leaking else None


def _sizes(inputs: int) -> list[int]:
    """Return the numbers of runs at once to try: 2, 4, 8, ..., and all."""
    sizes = [2**power for power in range(1, inputs.bit_length()) if 2**power < inputs]
    return [*sizes, inputs]


def _through(
    subject: Subject,
    leaking: Sequence[tuple[AtOnce, Verdict]],
    seed: int,
    known: Sequence[Candidate],
    go_on: Callable[[], None],
) -> tuple[LeakageThrough, ...]:
    """Return how much of what leaks in these trials does so through which objects."""
    causes: dict[str, tuple[Candidate, ...]] = {one.path: (one,) for one in known}
    righted: dict[str, list[int]] = {path: [] for path in causes}
    """By cause, how many runs of each trial are right without it."""
    sizes: list[int] = []
    proofs = 0
    # Where one run leaks, it most likely does so through one object.
    for trial, verdict in sorted(leaking, key=lambda one: len(one[1].differences)):
        go_on()
        wrong = {difference.member for difference in verdict.differences}
        if not wrong:
            continue
        right = {path: _right_without(subject, trial, wrong, causes[path]) for path in causes}
        if wrong.difference(*right.values()) and proofs < PROOFS_AT_MOST:
            proofs += 1
            for path, cause in _more_causes(subject, trial, seed, causes.values()):
                causes[path] = cause
                righted[path] = [0] * len(sizes)
                right[path] = _right_without(subject, trial, wrong, cause)
        sizes.append(len(wrong))
        for path, counts in righted.items():
            counts.append(len(right[path]))
    through = [
        LeakageThrough(
            path,
            Share.counted(sum(map(bool, counts)), len(counts)),
            Share.of_groups(counts, sizes),
        )
        for path, counts in righted.items()
        if any(counts)
    ]
    return tuple(sorted(through, key=lambda one: -one.runs.found))


def _right_without(
    subject: Subject, trial: Trial, wrong: set[int], cause: Sequence[Candidate]
) -> set[int]:
    """Return which of the wrong runs are right if each has contents of its own there."""
    suspects = [suspect for one in cause for suspect in one.suspects]
    verdict = trial.play(subject, private=suspects)
    return wrong - {difference.member for difference in verdict.differences}


def _more_causes(
    subject: Subject, trial: AtOnce, seed: int, known: Iterable[Sequence[Candidate]]
) -> Iterator[tuple[str, tuple[Candidate, ...]]]:
    """Yield by name what else makes a trial leak, as far as it can be proven."""
    private = [suspect for cause in known for one in cause for suspect in one.suspects]
    subject = attrs.evolve(subject, meant=[*subject.meant, *private])
    watch = StepWatch(subject.state)
    subject.state.put_back()
    verdict = trial.play(subject, [watch])
    wrong = {difference.member for difference in verdict.differences}
    candidates = candidates_of(watch.steps)
    trials = [trial, *other_trials(trial, other_schedules(subject, trial, seed))]
    # Others may leak in the other schedules, through something else.
    firm = [
        one
        for one in candidates[:CANDIDATES_AT_MOST]
        if all(_right_without(subject, each, wrong, (one,)) == wrong for each in trials)
    ]
    if firm:
        yield from ((one.path, (one,)) for one in firm)
        return
    causes = find_causes(subject, trial, candidates, trials[1:])
    if causes.proven:
        yield " and ".join(one.path for one in causes.candidates), causes.candidates
