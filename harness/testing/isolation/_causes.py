"""Find which shared things make the difference, and prove it.

Whatever a failing trial wrote is suspect. Each suspect is tried by itself: the same trial, with
contents of its own for each run. If every run is then right, that thing is a cause. Making a lock
private changes who runs when, and can hide a fault that it has nothing to do with; so a cause must
also hold under other schedules. If no single suspect suffices, the smallest set that does is
looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import attrs

from harness._words import repr_of
from harness.testing.isolation._line_watch import Access
from harness.testing.isolation._trials import AtOnce, InOrder, Subject, Trial
from harness.testing.isolation._watch import Step
from harness.testing.objects import Suspect

CANDIDATES_AT_MOST = 40
"""How many suspects to try one by one."""

OTHER_SCHEDULES = 20
"""How many schedules, besides the failing one, a cause must hold under."""


@attrs.frozen(eq=False)
class Candidate:
    """A shared thing under the name that reports print, with everything of that name."""

    path: str
    suspects: tuple[Suspect, ...]

    @property
    def kind(self) -> str:
        """What it is, in words."""
        return self.suspects[0].part.kind


@attrs.frozen(eq=False)
class Causes:
    """Which shared things make the difference."""

    candidates: tuple[Candidate, ...]
    proven: bool
    """Whether replays with private contents gave right outputs; else these are only suspects."""

    joint: bool = False
    """Whether it takes all of them together."""

    replays: int = 0
    """How many schedules gave right outputs when each run had contents of its own."""

    raced: tuple[Candidate, ...] = ()
    """What else runs changed behind each other's backs, if no cause was changed that way."""


def candidates_of(steps: Iterable[Step]) -> list[Candidate]:
    """Return what the steps wrote, most suspect first.

    A thing is more suspect the more runs wrote it, then the earlier it was written.
    """
    writes = [(suspect, step.member) for step in steps for suspect in step.writes]
    keys: dict[int, set[str]] = {}
    for suspect, _ in writes:
        keys.setdefault(id(suspect.part), set()).add(repr_of(suspect.key))
    by_path: dict[str, dict[tuple[int, str], Suspect]] = {}
    writers: dict[str, set[int]] = {}
    for suspect, member in writes:
        part = suspect.part
        if not part.names_things and len(keys[id(part)]) > 1:
            suspect = Suspect(part)  # Several elements were written: it is about all of them.
        same = by_path.setdefault(suspect.path, {})
        same.setdefault((id(part), repr_of(suspect.key)), suspect)
        writers.setdefault(suspect.path, set()).add(member)
    paths = sorted(by_path, key=lambda path: -len(writers[path]))
    return [Candidate(path, tuple(by_path[path].values())) for path in paths]


def find_causes(
    subject: Subject, trial: Trial, candidates: Sequence[Candidate], others: Sequence[Trial]
) -> Causes:
    """Return which of the candidates make the difference in ``trial``.

    Args:
      subject: What is tried.
      trial: The one that fails.
      candidates: What was written in it.
      others: More trials that a cause must hold under as well.
    """
    tried = candidates[:CANDIDATES_AT_MOST]
    sufficient = [one for one in tried if _is_right(subject, trial, [one])]
    firm = [one for one in sufficient if all(_is_right(subject, t, [one]) for t in others)]
    if firm:
        return Causes(tuple(firm), proven=True, replays=1 + len(others))
    joint = _smallest(subject, [trial, *others], tried)
    if joint:
        return Causes(tuple(joint), proven=True, joint=len(joint) > 1, replays=1 + len(others))
    if sufficient:
        return Causes(tuple(sufficient), proven=True, replays=1)
    joint = _smallest(subject, [trial], tried)
    if joint:
        return Causes(tuple(joint), proven=True, joint=len(joint) > 1, replays=1)
    return Causes(tuple(candidates), proven=False)


def raced(candidates: Iterable[Candidate], accesses: Sequence[Access]) -> list[Candidate]:
    """Return what some run wrote after another run had made its last look at it stale."""
    found: list[Candidate] = []
    for candidate in candidates:
        own = [access for access in accesses if access.suspect in candidate.suspects]
        writes = [access for access in own if access.is_write]
        if any(
            look.member == write.member != between.member and look.step < between.step < write.step
            for write in writes
            for between in writes
            for look in _looks(own)
        ):
            found.append(candidate)
    return found


def _looks(accesses: Sequence[Access]) -> Iterator[Access]:
    """Yield the reads in steps that went on without a write."""
    written_in = {access.step for access in accesses if access.is_write}
    for access in accesses:
        if not access.is_write and access.step not in written_in:
            yield access


def _smallest(
    subject: Subject, trials: Sequence[Trial], candidates: Sequence[Candidate]
) -> list[Candidate]:
    """Return a set from which nothing can be left out; empty if not even all suffice."""
    if not candidates or not all(_is_right(subject, t, candidates) for t in trials):
        return []
    kept = list(candidates)
    for one in reversed(candidates):
        without = [other for other in kept if other is not one]
        if without and all(_is_right(subject, t, without) for t in trials):
            kept = without
    return kept


def _is_right(subject: Subject, trial: Trial, candidates: Sequence[Candidate]) -> bool:
    suspects = [suspect for one in candidates for suspect in one.suspects]
    verdict = trial.play(subject, private=suspects)
    # What is declared as shared may well be out of order once it is no longer shared.
    return not verdict.differences and verdict.error is None


def other_trials(trial: Trial, schedules: Iterable[AtOnce]) -> list[Trial]:
    """Return trials of the same members that a cause must hold under as well."""
    if isinstance(trial, InOrder):
        return []
    return [other for other, _ in zip(schedules, range(OTHER_SCHEDULES), strict=False)]
