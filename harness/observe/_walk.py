"""Walk from the end of a run back to its start, along what let each thing happen.

At any moment exactly one thing is on the way: the run that everybody else was waiting for. Going
back in time, the walk leaves a run where

- a run below it ended: whoever opened that waits for it, so what ended last is what held it up;
- a wait was ended by another run's code: that run is what it was waiting for;
- it began: because its parent came to that point, or because another run made room for it.

Each piece begins where the one before it, going back, ended. So the pieces add up to the time of
the whole run, whatever the trace is like.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from harness.observe._runs import PARTS, TracedRun

NONE_KNOWN: Mapping[TracedRun, dict[str, int]] = MappingProxyType({})


class Piece(NamedTuple):
    """A stretch of time in which one run is on the way."""

    run: TracedRun
    started: int
    ended: int
    part: str
    """What that run did."""


Ledger = dict[str, int]
"""How many nanoseconds went to each part."""

_WHOLE = ""
"""The part of a piece that is the whole of a run below, and divided as that run's own ledger is."""


def ledger_of(pieces: Iterable[Piece], known: Mapping[TracedRun, Ledger] = NONE_KNOWN) -> Ledger:
    """Add up pieces by part."""
    spent: Counter[str] = Counter(dict.fromkeys(PARTS, 0))
    for piece in pieces:
        if piece.part == _WHOLE:
            spent.update(known[piece.run])
        else:
            spent[piece.part] += piece.ended - piece.started
    return dict(spent)


def ledgers(runs: Iterable[TracedRun]) -> dict[TracedRun, Ledger]:
    """Return the ledger of each run.

    That of a run below is used again, unless code outside of that ended a wait in it, or let
    something in it begin: seen from further above, the walk then goes another way.
    """
    found: dict[TracedRun, Ledger] = {}
    known: dict[TracedRun, Ledger] = {}
    for run in sorted(runs, key=lambda one: -one.order):  # Those below first.
        found[run] = ledger_of(walk_back(run, known), known)
        if not any(wait.by for wait in run.waits) and all(
            child in known and (child.by is None or child.by.is_below(run))
            for child in run.children
        ):
            known[run] = found[run]
    return found


def walk_back(top: TracedRun, known: Container[TracedRun] = NONE_KNOWN) -> Iterator[Piece]:
    """Yield the pieces of a run's time, the latest first.

    A run that the walk passes through yields a piece of no length if it took no time there.

    Args:
      top: The run.
      known: Runs that needn't be divided.
    """
    edges: dict[TracedRun, list[tuple[int, TracedRun]]] = {}
    run, now = top, top.ended
    late: TracedRun | None = None
    """A late run, on the way only because nobody had hedged it yet."""
    while True:  # Ends: each round uses up an edge, or leaves a run for an earlier one.
        if run not in edges:
            edges[run] = _edges_into(run, top)
        left = edges[run]
        while left and left[-1][0] > now:
            left.pop()
        since, target = left.pop() if left else (run.started, None)
        since = min(max(since, run.started, top.started), now)
        if late is run:
            yield Piece(run, since, now, "hedge")
        elif since < now:
            for start, end, part in run.parts(since, now):
                yield Piece(run, start, end, part)
        elif target is None:
            yield Piece(run, now, now, "own")
        now = since
        if target is not None:
            run = target
            if target not in known or target.ended != now or target.started < top.started:
                continue
            yield Piece(target, target.started, now, _WHOLE)
            now = target.started
        if run is top:
            return
        run, now, late = _cause(run, now, top), now, run.late
        if run.parent is not None and run.ended < now:
            # Between the end of what made room for it and its start, its parent was on the way.
            ended = max(run.ended, top.started)
            for start, end, part in run.parent.parts(ended, now):
                yield Piece(run.parent, start, end, part)
            now = ended


def _edges_into(run: TracedRun, top: TracedRun) -> list[tuple[int, TracedRun]]:
    """Return what held it up, by time: the runs below it that ended, the waits others ended."""
    edges = [(child.ended, child) for child in run.children]
    edges += [
        (wait.ended, wait.by)
        for wait in run.waits
        if wait.ended is not None
        and wait.by is not None
        and wait.by is not run
        and wait.by.is_below(top)
        and not run.is_below(wait.by)
    ]
    edges.sort(key=_time_of)
    return edges


def _time_of(edge: tuple[int, TracedRun]) -> int:
    return edge[0]


def _cause(run: TracedRun, now: int, top: TracedRun) -> TracedRun:
    """Return the run that let one begin at ``now``."""
    by = run.by
    if by is not None and by.is_below(top) and by.started <= now and by is not top:
        return by
    assert run.parent is not None
    return run.parent
