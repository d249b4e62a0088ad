"""Add up what runs did: how much work there was, and how much of it went on side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs

from harness.observe._runs import Traced, TracedRun

WORKING = frozenset({"own", "model", "tool", "cleanup"})
"""The parts in which something gets done; more workers do more of it at once."""


@attrs.frozen
class Work:
    """What all runs together did, in nanoseconds."""

    parts: dict[str, int]
    """How long their own code spent on each part, while nothing below them was going on."""

    sequential: int
    """For how long at most one of them was at work."""

    @property
    def done(self) -> int:
        """How long it would have taken them one after the other, without lines to wait in."""
        return sum(self.parts.get(part, 0) for part in WORKING)

    @property
    def parallel_share(self) -> float:
        """The share of that which went on side by side."""
        whole = self.done + self.parts.get("idle", 0)
        return 1 - min(1.0, self.sequential / whole) if whole else 0.0

    @property
    def waiting_share(self) -> float:
        """The share of their time in which the runs' own code didn't run."""
        whole = sum(self.parts.values()) - self.parts.get("idle", 0)
        return 1 - (self.parts.get("own", 0) + self.parts.get("cleanup", 0)) / whole if whole else 0


def work_of(traced: Traced) -> Work:
    """Return what the runs of a trace did together."""
    parts: Counter[str] = Counter()
    changes: Counter[int] = Counter({traced.started: 0, traced.ended: 0})
    for run in traced.runs.values():
        for start, end in _alone(run):
            for since, until, part in run.parts(start, end):
                parts[part] += until - since
                if part in WORKING:
                    changes[since] += 1
                    changes[until] -= 1
    sequential = at_work = 0
    before = traced.started
    for at in sorted(changes):
        if at_work <= 1:
            sequential += at - before
            if not at_work:
                parts["idle"] += at - before
        at_work += changes[at]
        before = at
    return Work(dict(parts), sequential)


def _alone(run: TracedRun) -> Iterator[tuple[int, int]]:
    """Yield when a run was going on and nothing below it was."""
    now = run.started
    for child in sorted(run.children, key=lambda one: one.started):
        if child.started > now:
            yield now, child.started
        now = max(now, child.ended)
    if now < run.ended:
        yield now, run.ended
