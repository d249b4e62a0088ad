"""Answer where the time went, and what would make it faster, from a trace."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import attrs

from harness.flow import speedup
from harness.observe._constraint import LimitUse, constraint_of, limits_used
from harness.observe._runs import Traced, TracedRun, TracedWait, load
from harness.observe._stragglers import Stragglers, stragglers_of
from harness.observe._walk import Piece, ledger_of, ledgers, walk_back
from harness.observe._work import work_of


@attrs.frozen
class Step:
    """A stretch of the critical path: one run, doing one thing."""

    run_id: str
    """The run; empty where there was none."""

    path: str
    """Its path."""

    part: str
    """What it did; one of the parts of the ledger."""

    started: float
    """When this stretch began, in seconds since the recording began."""

    ended: float
    """When it ended: where the next one begins."""


@attrs.frozen
class RunAnalysis:
    """Where the time of one run went, and of what it waited for below it."""

    run_id: str
    path: str
    parent: str | None
    """The id of the run it was opened in."""

    status: str
    """How it ended; ``"running"`` if it is still going on, ``"lost"`` if whoever ran it is gone."""

    started: float
    """In seconds since the recording began."""

    ended: float
    """The same; of a run without an end, when the trace ends."""

    nanoseconds: Mapping[str, int]
    """Its time by part; they add up to it exactly."""

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    @property
    def duration(self) -> float:
        """How long it took, in seconds."""
        return sum(self.nanoseconds.values()) / 1e9

    @property
    def parts(self) -> dict[str, float]:
        """The same as `nanoseconds`, in seconds."""
        return {part: spent / 1e9 for part, spent in self.nanoseconds.items()}


@attrs.frozen
class OpenWait:
    """A wait that had not ended when the trace did."""

    run_id: str
    path: str
    reason: str
    on: str
    """What it waits for."""

    since: float
    """When it began, in seconds since the recording began."""

    held_by: tuple[str, ...]
    """The ids of the runs that have what it waits for, as far as they are known."""

    state: str
    """``"pending"``, or ``"lost"`` if nobody is left who could end it."""


@attrs.frozen
class Analysis:
    """Where the time of a recorded program went."""

    nanoseconds: Mapping[str, int]
    """The time from the first line of the trace to the last, by what was on the way: ``queue
    limiter model tool retry hedge own cleanup``. They add up to it exactly."""

    runs: Mapping[str, RunAnalysis]
    """Every run by its id, in the order in which they began. Of more than 200,000, only those that
    began first; then all of this is about the time until the next one began."""

    total_runs: int
    """How many runs there are in the trace."""

    critical_path: tuple[RunAnalysis, ...]
    """The runs that everything else was waiting for, from the root to the run that ended last."""

    steps: tuple[Step, ...]
    """The same in detail: each step begins where the one before it ends."""

    work: Mapping[str, float]
    """What all runs together spent their time on, in seconds, by part."""

    parallel_share: float
    """The share of the work that went on side by side."""

    waiting_share: float
    """The share of the runs' time in which their own code didn't run: what a program that does one
    thing after the other could gain by doing several at once."""

    limits: tuple[LimitUse, ...]
    """How much of each limit was used, the fullest first."""

    stragglers: tuple[Stragglers, ...]
    """Items that took far longer than others, by what they cost."""

    open_waits: tuple[OpenWait, ...]
    """The waits that had not ended, the oldest first; none if not all runs are in `runs`."""

    deadlocks: tuple[tuple[str, ...], ...]
    """Circles of runs that wait for each other: their paths, the first one again at the end."""

    constraint: str
    """What keeps it from being faster, in one sentence."""

    @property
    def duration(self) -> float:
        """The time from the first line of the trace to the last, in seconds."""
        return sum(self.nanoseconds.values()) / 1e9

    @property
    def parts(self) -> dict[str, float]:
        """The same as `nanoseconds`, in seconds."""
        return {part: spent / 1e9 for part, spent in self.nanoseconds.items()}

    @property
    def sequential_share(self) -> float:
        """The share of the work during which at most one run was at work."""
        return 1 - self.parallel_share

    def ceiling(self, workers: float = math.inf) -> float:
        """Return how many times as fast as one worker this many can be; see `speedup`."""
        return speedup(self.parallel_share, workers)


def analyse(path: str | os.PathLike[str]) -> Analysis:
    """Say where the time of a recorded program went, and what binds it.

    The trace may be of a program that is still running, or was killed.

    Args:
      path: A trace that `record` has written.

    Raises:
      OSError: if the file can't be read.
      ValueError: if it is no trace, or an empty one.
    """
    traced = load(path)
    whole = [one for one in walk_back(traced.everything) if one.run.id or one.started < one.ended]
    whole.reverse()
    own = ledgers(traced.runs.values())
    runs = {run.id: _analysed(run, traced, own[run]) for run in traced.runs.values()}
    parts = ledger_of(whole)
    work = work_of(traced)
    limits = limits_used(traced)
    found = [one for run in traced.runs.values() if (one := stragglers_of(run)) is not None]
    found.sort(key=lambda one: -one.cost_seconds)
    open_waits = () if traced.is_cut else _open_waits(traced)
    deadlocks = () if traced.is_cut else _circles(traced)
    on_path = dict.fromkeys(piece.run.id for piece in whole if piece.run.id)
    return Analysis(
        parts,
        runs,
        traced.total_runs,
        tuple(runs[run_id] for run_id in on_path),
        tuple(_step(piece) for piece in whole),
        {part: spent / 1e9 for part, spent in work.parts.items() if part != "idle"},
        work.parallel_share,
        work.waiting_share,
        tuple(limits),
        tuple(found),
        open_waits,
        deadlocks,
        constraint_of(traced, parts, work.parts, limits, found, deadlocks),
    )


def _analysed(run: TracedRun, traced: Traced, ledger: Mapping[str, int]) -> RunAnalysis:
    parent = run.parent
    return RunAnalysis(
        run.id,
        run.path,
        parent.id if parent is not None and parent.id else None,
        _status(run, traced),
        run.started / 1e9,
        run.ended / 1e9,
        ledger,
    )


def _status(run: TracedRun, traced: Traced) -> str:
    # Where the trace was cut, what goes on there came to its end later.
    gone = run.status == "running" and not traced.is_live and not traced.is_cut
    return "lost" if gone else run.status


def _step(piece: Piece) -> Step:
    started, ended = piece.started / 1e9, piece.ended / 1e9
    return Step(piece.run.id, piece.run.path, piece.part, started, ended)


# What never ended -----------------------------------------------------------------------------


def _still_open(traced: Traced) -> list[TracedWait]:
    waits = [wait for run in traced.runs.values() for wait in run.waits if wait.ended is None]
    return sorted(waits, key=lambda wait: wait.started)


def _open_waits(traced: Traced) -> tuple[OpenWait, ...]:
    def state(wait: TracedWait) -> str:
        holders = [traced.runs[held] for held in wait.held_by if held in traced.runs]
        gone = holders and all(_status(one, traced) != "running" for one in holders)
        return "lost" if gone or _status(wait.run, traced) != "running" else "pending"

    return tuple(
        OpenWait(
            wait.run.id,
            wait.run.path,
            wait.reason,
            wait.on,
            wait.started / 1e9,
            wait.held_by,
            state(wait),
        )
        for wait in _still_open(traced)
    )


def _circles(traced: Traced) -> tuple[tuple[str, ...], ...]:
    """Return the circles of runs that wait for each other, each once, by path.

    A run waits for who holds what it waits for, and for the runs below it, which it can't outlive.
    """
    waits_for: dict[TracedRun, list[TracedRun]] = {}
    for wait in _still_open(traced):
        holders = [traced.runs[held] for held in wait.held_by if held in traced.runs]
        waits_for.setdefault(wait.run, []).extend(one for one in holders if one.status == "running")
    if not waits_for:
        return ()
    for run in traced.runs.values():
        if run.status == "running":
            below = [child for child in run.children if child.status == "running"]
            waits_for.setdefault(run, []).extend(below)
    circles: list[tuple[str, ...]] = []
    done: set[TracedRun] = set()
    for start in waits_for:
        trail: dict[TracedRun, int] = {}
        stack: list[tuple[TracedRun, int]] = [(start, 0)]
        while stack:
            run, number = stack.pop()
            if not number:
                if run in done:
                    continue
                trail[run] = len(trail)
            following = waits_for.get(run, [])
            if number < len(following):
                stack.append((run, number + 1))
                onto = following[number]
                if onto in trail:
                    members = [one.path for one, place in trail.items() if place >= trail[onto]]
                    circles.append((*members, members[0]))
                elif onto not in done:
                    stack.append((onto, 0))
            else:
                done.add(run)
                del trail[run]
    return tuple(circles)
