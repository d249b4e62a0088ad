"""Make runs of the lines of a trace: when each was there, what it waited for, who let it begin.

All times are whole nanoseconds since the recording began, so that what is added up adds up exactly.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from harness.observe._files import is_being_written
from harness.observe._read import read_trace

RUNS_AT_MOST = 200_000
"""Of more runs, only those that began first are read, until the next one begins: they take half a
gigabyte of memory."""

PARTS = ("queue", "limiter", "model", "tool", "retry", "hedge", "own", "cleanup")
"""What time is spent on: waiting for one's turn, for a limiter, a model, a tool, the next attempt,
the moment to hedge a late one; the program's own code; cleaning up."""


class Granted(NamedTuple):
    """How much of one limit was granted."""

    name: str
    amount: float
    limit: float
    """Of how much."""
    period: float
    """In how many seconds."""


class Used(NamedTuple):
    """What a request used; of tokens None if that isn't known."""

    requests: float = 1
    total: float | None = None
    read: float | None = None
    written: float | None = None


def used_in(line: dict[str, Any]) -> Used:
    """Return what a line says that a request used."""
    read, written = line.get("input_tokens"), line.get("output_tokens")
    total = line.get("tokens")
    if total is None and read is not None and written is not None:
        total = read + written
    return Used(line.get("requests", 1), total, read, written)


class TracedWait:
    """One wait of a run."""

    __slots__ = (
        "by",
        "ended",
        "granted",
        "held_by",
        "number",
        "on",
        "reason",
        "released",
        "run",
        "settled",
        "started",
        "stated_input",
        "used",
    )

    def __init__(self, run: TracedRun, line: dict[str, Any], at: int) -> None:
        self.run = run
        self.number: int = line["wait"]
        self.reason: str = line["reason"]
        self.on: str = line.get("on", "")
        self.held_by: tuple[str, ...] = tuple(line.get("held_by", ()))
        self.started = at
        self.ended: int | None = None
        """None while it is open."""
        self.by: TracedRun | None = None
        """The run whose code ended it."""
        self.granted: tuple[Granted, ...] | None = None
        """What a limiter granted at its end; empty if it has nothing but places, None if it granted
        nothing."""
        self.stated_input: float | None = None
        """The tokens of input that a limiter was told, if it guessed the output."""
        self.released: int | None = None
        """When what a limiter granted was given back."""
        self.settled: int | None = None
        """When that was settled, to what was used."""
        self.used: Used | None = None
        """What a request came to: of a limiter's grant as settled, of a model's call as it said."""


class TracedRun:
    """One run, as the trace tells it."""

    __slots__ = (
        "_changes",
        "by",
        "children",
        "ended",
        "error",
        "id",
        "index",
        "late",
        "order",
        "parent",
        "path",
        "past",
        "started",
        "status",
        "waits",
    )

    def __init__(self, run_id: str, path: str, parent: TracedRun | None, started: int) -> None:
        self.id = run_id
        self.path = path
        self.parent = parent
        self.started = started
        self.ended: int = started
        """The trace's end while it is open."""
        self.status = "running"
        self.error: str | None = None
        self.by: TracedRun | None = None
        """The run whose end let it begin, or that it runs beside."""
        self.index: int | None = None
        self.late: TracedRun | None = None
        """The late run that this one is the hedge of."""
        self.children: list[TracedRun] = []
        self.waits: list[TracedWait] = []
        self.order = 0
        """Its place in a walk over the tree, and past: that of the last run below it, plus one."""
        self.past = 0
        self._changes: tuple[list[int], list[str]] | None = None

    def is_below(self, other: TracedRun) -> bool:
        """Return whether it is ``other``, or below it."""
        return other.order <= self.order < other.past

    def parts(self, since: int, until: int) -> Iterator[tuple[int, int, str]]:
        """Yield what its own code does in that time, the latest first: start, end, part."""
        times, parts = self._all_changes()
        place = bisect_right(times, until) - 1
        while until > since:
            while place >= 0 and times[place] >= until:
                place -= 1
            start = since if place < 0 else max(since, times[place])
            yield start, until, parts[place] if place >= 0 else "own"
            until = start

    def _all_changes(self) -> tuple[list[int], list[str]]:
        """Return when what it does changes, and to what.

        Of several waits at once, the one that began last counts, because it is the innermost;
        during cleanup, everything is cleanup.
        """
        if self._changes is None:
            events = sorted(
                [(wait.started, 1, number) for number, wait in enumerate(self.waits)]
                + [
                    (self.ended if wait.ended is None else wait.ended, 0, number)
                    for number, wait in enumerate(self.waits)
                ]
            )
            times: list[int] = []
            parts: list[str] = []
            open_waits: dict[int, str] = {}
            cleanups = 0
            done: set[int] = set()
            for at, begins, number in events:
                part = part_of(self.waits[number].reason)
                if begins and number not in done:
                    open_waits[number] = part
                    cleanups += part == "cleanup"
                elif not begins:
                    done.add(number)  # Of a wait of no length, the end may come first.
                    cleanups -= open_waits.pop(number, "") == "cleanup"
                now = "own"
                if open_waits:
                    now = "cleanup" if cleanups else open_waits[next(reversed(open_waits))]
                if times and times[-1] == at:
                    times.pop()
                    parts.pop()
                if now != (parts[-1] if parts else "own"):
                    times.append(at)
                    parts.append(now)
            self._changes = times, parts
        return self._changes


class Traced:
    """Everything that a trace tells."""

    def __init__(self) -> None:
        self.runs: dict[str, TracedRun] = {}
        self.everything = TracedRun("", "", None, 0)
        """A run around all others, from the first line to the last."""
        self.grants: list[tuple[TracedWait, int, int | None]] = []
        """The waits that a limiter's grant ended, how much it had in flight then, and how much it
        could have at most."""
        self.limiters: dict[str, dict[str, Any]] = {}
        """The line of the latest grant of each limiter, which says what its limits are."""
        self.costs: list[tuple[TracedRun, float]] = []
        """What calls to models cost, and in which run they were made."""
        self.known_grants: dict[Granted, Granted] = {}
        """One of each, as most are alike."""
        self.hedged: dict[str, str] = {}
        """Which late run each hedge runs beside."""
        self.is_live = False
        """Whether somebody is still writing it."""
        self.total_runs = 0
        """How many runs there are in the file."""

    @property
    def is_cut(self) -> bool:
        """Whether there are more runs than were read, so that all this is about the first ones."""
        return self.total_runs > len(self.runs)

    @property
    def started(self) -> int:
        """The time of the first line."""
        return self.everything.started

    @property
    def ended(self) -> int:
        """The time of the last line that was read."""
        return self.everything.ended


def part_of(reason: str) -> str:
    """Return which part a wait belongs to."""
    return reason if reason in PARTS else "queue"


def nanoseconds(seconds: float) -> int:
    """Return a time of a trace in whole nanoseconds."""
    return round(seconds * 1e9)


def load(path: str | os.PathLike[str]) -> Traced:
    """Read a trace, as far as `RUNS_AT_MOST` lets it.

    Raises:
      OSError, ValueError: as `read_trace`; ValueError also if there is nothing in it.
    """
    traced = Traced()
    traced.is_live = is_being_written(path)
    waits: dict[int, TracedWait] = {}
    """Those that are open, and those whose grants are held."""
    first: int | None = None
    last = 0
    for line in read_trace(path):
        if line["type"] == "run_started" and len(traced.runs) >= RUNS_AT_MOST:
            traced.total_runs = _runs_in(path)
            break
        at = nanoseconds(line["time"])
        if first is None or at < first:
            first = at
        last = max(last, at)
        _take(traced, waits, line, at)
    if first is None:
        raise ValueError(f"there is nothing in the trace {os.fspath(path)!r}; record some runs")
    traced.total_runs = max(traced.total_runs, len(traced.runs))
    everything = traced.everything
    everything.started, everything.ended = first, last
    for run in traced.runs.values():
        if run.status == "running":
            run.ended = last
        parent = run.parent or everything
        if parent is everything:
            run.parent = everything
        parent.children.append(run)
    _number(everything)
    return traced


def _runs_in(path: str | os.PathLike[str]) -> int:
    """Count runs without reading more than needed; no text has quotes without a stroke before."""
    with open(path, "rb") as file:
        return sum(b'"run_started"' in line for line in file)


def _take(traced: Traced, waits: dict[int, TracedWait], line: dict[str, Any], at: int) -> None:
    runs, kind = traced.runs, line["type"]
    if kind == "run_started":
        if line["run_id"] in runs:
            raise ValueError(
                f"run {line['run_id']!r} begins twice in this trace; give the file of one "
                "recording, as harness.observe.record() wrote it"
            )
        parent = runs.get(line.get("parent", ""))
        run = runs[line["run_id"]] = TracedRun(line["run_id"], line["path"], parent, at)
        run.index = line.get("index")
        run.by = runs.get(line.get("by", ""))
        run.late = runs.get(traced.hedged.get(run.id, ""))
        return
    found = runs.get(line["run_id"])
    if found is None:
        return  # It began before the recording did.
    if kind == "run_ended":
        found.ended, found.status, found.error = at, line["status"], line.get("error")
    elif kind == "wait":
        wait = waits[line["wait"]] = TracedWait(found, line, at)
        found.waits.append(wait)
    elif kind == "wake":
        over = waits.pop(line["wait"], None)
        if over is not None:
            over.ended, over.by = at, runs.get(line.get("by", ""))
            if "granted" in line:
                over.on = line.get("limiter", over.on)  # Which one of a pool.
                traced.limiters[over.on] = line
                traced.grants.append((over, line.get("in_flight", 0), line.get("places")))
                known = traced.known_grants
                granted = (Granted(name, *of) for name, of in line["granted"].items())
                over.granted = tuple([known.setdefault(one, one) for one in granted])
                over.stated_input = line.get("input_tokens")
                waits[line["wait"]] = over
    elif kind == "release":
        held = waits.pop(line["wait"], None)
        if held is not None:
            held.released = at
            if "settled" in line:
                held.settled, held.used = nanoseconds(line["settled"]), used_in(line)
    elif kind == "model_call":
        if "cost_usd" in line:
            traced.costs.append((found, line["cost_usd"]))
        call = next((one for one in reversed(found.waits) if one.reason == "model"), None)
        if call is not None and "input_tokens" in line:
            call.used = used_in(line)
    elif kind == "hedge":
        # The line comes before its run begins.
        traced.hedged[line["attempt"]] = line["beside"]


def _number(top: TracedRun) -> None:
    """Number all runs so that those below one are next to it; a tree may be very deep."""
    count = 0
    pending: list[tuple[TracedRun, bool]] = [(top, False)]
    while pending:
        run, left = pending.pop()
        if left:
            run.past = count
            continue
        run.order = count
        count += 1
        pending.append((run, True))
        pending.extend((child, False) for child in run.children)
