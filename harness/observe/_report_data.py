"""Gather from a trace what a report shows, as plain data for JSON.

Of everything long there is a part, and how much there was in all; so a page stays below two
megabytes, whatever was recorded. Runs are columns, because ten thousand objects with the same keys
would be twice as large. Of more runs than there is room for, those on the critical path, those that
failed and the stragglers come first, each with the runs above it; then the earliest.

Times are whole numbers of ``unit`` seconds since the start. Text is made harmless by
`harness.observe._plain`; the page inserts it only as text.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from statistics import median
from typing import Any

import attrs

from harness.observe._analysis import Analysis, RunAnalysis, Step, analyse
from harness.observe._plain import plain, plain_lines
from harness.observe._read import read_lines
from harness.observe._runs import RUNS_AT_MOST

RUNS_SHOWN = 10_000
WAITS_SHOWN = 20_000
GROUPS_SHOWN = 30
STRAGGLERS_SHOWN = 30
STEPS_SHOWN = 30
LIMITS_SHOWN = 12
POINTS_SHOWN = 240

IDS_PER_GROUP = 10
MESSAGES_PER_GROUP = 5
FRAMES_SHOWN = 40
CALLS_PER_RUN = 20
CALLS_SHOWN = 4_000
MESSAGES_PER_CALL = 50

TEXT_CHARACTERS = 500_000
"""How much of agents' messages a page holds in all."""

MESSAGE_CHARACTERS = 4_000
NAME_CHARACTERS = 80

STATUSES = ("ok", "failed", "timed_out", "cancelled", "running", "lost", "in_flight", "waiting")
_STEPS_OF_TIME = 10_000_000

PART_WORDS = {
    "queue": "waiting in a queue",
    "limiter": "waiting for a limiter",
    "model": "waiting for a model",
    "tool": "in tools",
    "retry": "waiting before a retry",
    "hedge": "late, before a second attempt",
    "own": "the program's own code, and what it waits for itself",
    "cleanup": "cleaning up",
}


@attrs.define(eq=False)
class Group:
    """Failures with the same error from the same place."""

    error: str
    traceback: list[str]
    total: int = 0
    messages: dict[str, None] = attrs.Factory(dict)
    """The first few that differ, in order."""
    run_ids: list[str] = attrs.Factory(list)
    others: set[int] = attrs.Factory(set)
    """Hashes of further messages, to count them."""

    def add(self, run_id: str, message: str) -> None:
        self.total += 1
        if len(self.run_ids) < IDS_PER_GROUP:
            self.run_ids.append(run_id)
        if message in self.messages:
            return
        if len(self.messages) < MESSAGES_PER_GROUP:
            self.messages[message] = None
        elif len(self.others) < RUNS_SHOWN:
            self.others.add(hash(message))


class Failures:
    """Failures, grouped."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, tuple[str, ...]], Group] = {}
        self.of_run: dict[str, tuple[str, str]] = {}

    def add(self, run_id: str, error: str, message: str, traceback: Iterable[str]) -> None:
        """Count one more."""
        frames = [plain(frame) for frame in traceback][-FRAMES_SHOWN:]
        error, message = plain(error), plain(message)
        group = self.groups.setdefault((error, tuple(frames)), Group(error, frames))
        group.add(run_id, message)
        if len(self.of_run) < RUNS_AT_MOST:
            self.of_run[run_id] = error, message

    def data(self, numbers: dict[str, int], names: dict[str, str]) -> dict[str, Any]:
        """Return the groups, the largest first, and the error of each run that is shown."""
        groups = sorted(self.groups.values(), key=lambda group: -group.total)
        return {
            "total": sum(group.total for group in groups),
            "total_groups": len(groups),
            "groups": [
                {
                    "error": group.error,
                    "messages": list(group.messages),
                    "total_messages": len(group.messages) + len(group.others),
                    "traceback": group.traceback,
                    "total": group.total,
                    "runs": [
                        [numbers.get(one, -1), names.get(one) or plain(one)]
                        for one in group.run_ids
                    ],
                }
                for group in groups[:GROUPS_SHOWN]
            ],
            "of_run": {
                numbers[run_id]: {"error": error, "message": message}
                for run_id, (error, message) in self.of_run.items()
                if run_id in numbers
            },
        }


class Columns:
    """The runs that are shown, as columns."""

    def __init__(self, duration: float) -> None:
        self.duration = duration
        self._unit = max(1e-6, duration / _STEPS_OF_TIME)
        self.numbers: dict[str, int] = {}
        """The number of each run by its id."""
        self.names: dict[str, str] = {}
        self._columns: dict[str, list[Any]] = {
            name: [] for name in ("id", "name", "parent", "at", "for", "status")
        }

    def units(self, seconds: float) -> int:
        """Return a time as a whole number."""
        return round(seconds / self._unit)

    def add(
        self, run_id: str, parent: str | None, name: str, status: str, since: float, until: float
    ) -> None:
        """Add a run, after its parent; times are seconds since the start."""
        name = plain(name, at_most=NAME_CHARACTERS)
        self.numbers[run_id] = len(self.numbers)
        self.names[run_id] = name
        at = self.units(since)
        row = {
            "id": plain(run_id, at_most=40),
            "name": name,
            "parent": -1 if parent is None else self.numbers.get(parent, -1),
            "at": at,
            "for": max(0, self.units(until) - at),
            "status": STATUSES.index(status) if status in STATUSES else STATUSES.index("lost"),
        }
        for column, value in row.items():
            self._columns[column].append(value)

    def data(self) -> dict[str, Any]:
        """Return the columns, with a lane of the timeline for each run, and what they mean."""
        lanes = _lanes(self._columns["at"], self._columns["for"])
        return {
            "runs": {**self._columns, "lane": lanes},
            "unit": self._unit,
            "whole": self.units(self.duration),
            "statuses": STATUSES,
        }


def _lanes(starts: list[int], lengths: list[int]) -> list[int]:
    """Give each run the first lane that is free, so that no two overlap."""
    lanes = [0] * len(starts)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    used = 0
    # The longer first, so that a parent is above the runs below it.
    for run in sorted(range(len(starts)), key=lambda one: (starts[one], -lengths[one], one)):
        while busy and busy[0][0] <= starts[run]:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lane, used = used, used + 1
        lanes[run] = lane
        heappush(busy, (starts[run] + max(1, lengths[run]), lane))
    return lanes


def data_of_trace(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a report of a trace shows.

    Raises:
      OSError: if the file can't be read.
      ValueError: if it is no trace, or an empty one.
    """
    analysis = analyse(path)
    runs = analysis.runs
    seen = _Seen(runs)
    for line in read_lines(path, seen.wants):
        seen.take(line)
    start = min((run.started for run in runs.values()), default=0.0)
    columns = Columns(analysis.duration)
    for run in _chosen(analysis, seen.failures):
        since, until = run.started - start, run.ended - start
        columns.add(run.run_id, run.parent, _name(run, runs), run.status, since, until)
    total = analysis.total_runs
    count = Counter(run.status for run in runs.values())
    if total > len(runs):
        count = seen.statuses
        count["running"] = total - sum(count.values())
    how = ", ".join(f"{count[status]:,} {status}" for status in STATUSES if count[status])
    facts = f"{total:,} runs ({how or 'none'}) in {seen.last - start:.3f} s"
    if total > len(runs):
        facts += (
            f"; failures are those of all, and everything else is of the {len(runs):,} that began "
            f"first, in {analysis.duration:.3f} s"
        )
    parts = analysis.parts.items()
    return data(
        columns,
        seen.failures,
        title=plain(os.path.basename(os.fspath(path))),
        facts=facts,
        constraint=plain(analysis.constraint, at_most=1000),
        total_runs=total,
        parts=[(PART_WORDS.get(part, part), spent) for part, spent in parts if spent],
        parts_words="Of the time from start to end, by what everything else waited for.",
        part_names=list(PART_WORDS),
        parts_of_run=[_parts(runs[run_id], columns) for run_id in columns.numbers],
        path=_path(analysis, columns, start),
        waits=seen.waits(columns, start),
        stragglers=_stragglers(analysis, columns),
        calls=seen.calls_data(columns.numbers),
        limits=seen.limits_data(columns, start),
        ceiling=_ceiling(analysis),
    )


_NOTHING: dict[str, Any] = {
    "part_names": [],
    "parts_of_run": [],
    "path": {"total": 0, "shown": []},
    "waits": {"total": 0, "reasons": [], "run": [], "at": [], "for": [], "reason": []},
    "stragglers": {"total": 0, "shown": [], "words": "Nothing is known of them."},
    "calls": {},
    "limits": {"total": 0, "shown": [], "words": "", "what": "limits"},
    "ceiling": {"rows": [], "words": "Nothing is known of it."},
}


def data(columns: Columns, failures: Failures, **others: Any) -> dict[str, Any]:
    """Return all that a page shows; what isn't given is shown as not known.

    Args:
      columns: The runs.
      failures: What failed.
      others: ``title facts constraint total_runs parts parts_words``, and what `_NOTHING` has.
    """
    failed = failures.data(columns.numbers, columns.names)
    return {**_NOTHING, **columns.data(), "failures": failed, **others}


def _name(run: RunAnalysis, runs: Any) -> str:
    parent = runs.get(run.parent)
    if parent is not None and run.path.startswith(f"{parent.path}/"):
        return run.path[len(parent.path) + 1 :]
    # The paths of deep runs are cut.
    return run.path if parent is None else run.path.rpartition("/")[2]


def _parts(run: RunAnalysis, columns: Columns) -> list[int]:
    """Return the numbers of the parts, each followed by its time."""
    found: list[int] = []
    for number, part in enumerate(PART_WORDS):
        spent = columns.units(run.nanoseconds.get(part, 0) / 1e9)
        if spent:
            found += (number, spent)
    return found


def _chosen(analysis: Analysis, failures: Failures) -> Iterator[RunAnalysis]:
    """Yield the runs that there is room for, each after its parent."""
    runs = analysis.runs
    wanted = (
        *(step.run_id for step in _longest_steps(analysis)),
        *(run_id for group in failures.groups.values() for run_id in group.run_ids),
        *(run_id for one in analysis.stragglers for run_id in one.run_ids[:STRAGGLERS_SHOWN]),
        *runs,
    )
    chosen: set[str] = set()
    for run_id in wanted:
        above: list[str] = []
        one = runs.get(run_id)
        while one is not None and one.run_id not in chosen:
            above.append(one.run_id)
            one = runs.get(one.parent) if one.parent is not None else None
        if len(chosen) + len(above) <= RUNS_SHOWN:
            chosen.update(above)
        elif len(chosen) >= RUNS_SHOWN:
            break
    return (run for run_id, run in runs.items() if run_id in chosen)


def _longest_steps(analysis: Analysis) -> list[Step]:
    return sorted(analysis.steps, key=lambda step: step.started - step.ended)[:STEPS_SHOWN]


def _path(analysis: Analysis, columns: Columns, start: float) -> dict[str, Any]:
    return {
        "total": len(analysis.steps),
        "shown": [
            [
                columns.numbers.get(step.run_id, -1),
                columns.names.get(step.run_id, plain(step.path.rpartition("/")[2]) or "no run"),
                PART_WORDS.get(step.part, step.part),
                columns.units(step.started - start),
                columns.units(step.ended - step.started),
            ]
            for step in sorted(_longest_steps(analysis), key=lambda step: step.started)
        ],
    }


def _stragglers(analysis: Analysis, columns: Columns) -> dict[str, Any]:
    rows: list[tuple[int, str, float, float]] = []
    for one in analysis.stragglers:
        slow = [analysis.runs[run_id] for run_id in one.run_ids[:STRAGGLERS_SHOWN]]
        usual = median(
            run.duration
            for run in analysis.runs.values()
            if run.parent == slow[0].parent and run.status == "ok"
        )
        for run in slow:
            number = columns.numbers.get(run.run_id, -1)
            rows.append((number, plain(run.path[-NAME_CHARACTERS:]), run.duration, usual))
    rows.sort(key=lambda row: -row[2])
    total = sum(len(one.run_ids) for one in analysis.stragglers)
    words = "No item took more than three times as long as the middle one of its fan-out."
    if analysis.stragglers:
        worst = analysis.stragglers[0]
        words = (
            f"Items that took more than three times as long as the middle one. "
            f"{plain(worst.path)!r} would have ended {worst.cost_seconds:.3g} s sooner without "
            f"them; a second attempt after {worst.hedge_after_seconds:.3g} s (hedge=) would have "
            f"saved {max(0.0, worst.hedge_saves_seconds):.3g} s."
        )
    return {"total": total, "shown": rows[:STRAGGLERS_SHOWN], "words": words}


def _ceiling(analysis: Analysis) -> dict[str, Any]:
    ceiling = analysis.ceiling()
    most = "any number" if ceiling == float("inf") else f"{ceiling:,.1f}"
    return {
        "words": (
            f"{analysis.parallel_share:.1%} of the work went on side by side. If nothing else "
            f"binds, workers make it at most {most} times as fast as one; for "
            f"{analysis.waiting_share:.1%} of the runs' time their own code had nothing to do."
        ),
        "rows": [
            (workers, analysis.ceiling(workers)) for workers in (1, 2, 5, 10, 20, 50, 100, 1000)
        ],
    }


class _Seen:
    """What the lines of a trace say beyond their analysis."""

    def __init__(self, runs: Any) -> None:
        self._runs = runs
        self._begun = 0
        self.last = 0.0
        """The time of the last line."""
        self.statuses: Counter[str] = Counter()
        """How many runs ended how."""
        self._above: dict[str, str] = {}
        """In which run each open one is that the analysis doesn't have."""
        self.failures = Failures()
        self._failed_below: dict[str, Any] = {}
        """What failed last in each run, one level below it."""
        self._open: dict[int, tuple[str, str, float]] = {}
        self._waits: list[tuple[str, str, float, float]] = []
        self._total_waits = 0
        self._calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._calls_of: Counter[str] = Counter()
        self._calls_kept = 0
        self._room = TEXT_CHARACTERS
        self._grants: dict[tuple[str, str], list[tuple[float, float, float, float]]] = defaultdict(
            list
        )

    def wants(self, line: bytes) -> bool:
        """Return whether to look at a line: of runs that aren't analysed, at their ends alone."""
        begins = b'"run_started"' in line
        self._begun += begins
        return begins or b'"run_ended"' in line or bool(self._begun <= len(self._runs))

    def take(self, line: dict[str, Any]) -> None:
        """Look at one line."""
        run_id = line["run_id"]
        self.last = max(self.last, line["time"])
        match line["type"]:
            case "run_started" if run_id not in self._runs:
                self._above[run_id] = line.get("parent", "")
            case "run_ended":
                self.statuses[line["status"]] += 1
                if "error" in line and self._is_leaf(line):
                    self.failures.add(
                        run_id, line["error"], line.get("message", ""), line.get("traceback", ())
                    )
                self._above.pop(run_id, None)
            case "wait":
                reason: str = line.get("reason", "")
                on, words = line.get("on", ""), PART_WORDS.get(reason, reason)
                self._open[line["wait"]] = (run_id, f"{words}: {on}" if on else words, line["time"])
            case "wake":
                self._wake(line)
            case "model_call" | "tool_call" as kind:
                self._call(run_id, kind, line)

    def _is_leaf(self, line: dict[str, Any]) -> bool:
        """Tell whether an error came up in this run, not in one below it that failed with it."""
        key = line["error"], line.get("message"), tuple(line.get("traceback", ()))
        run = self._runs.get(line["run_id"])
        above = self._above.get(line["run_id"]) if run is None else run.parent
        is_new: bool = self._failed_below.pop(line["run_id"], None) != key
        if above is not None:
            self._failed_below[above] = key
        return is_new

    def _wake(self, line: dict[str, Any]) -> None:
        begun = self._open.pop(line["wait"], None)
        if begun is None:
            return
        run_id, words, since = begun
        self._total_waits += 1
        if line["time"] > since and len(self._waits) < 20 * WAITS_SHOWN:
            self._waits.append((run_id, words, since, line["time"]))
        limiter = line.get("limiter", "")
        for name, (amount, limit, period) in line.get("granted", {}).items():
            self._grants[limiter, name].append((line["time"], amount, limit, period))
        if line.get("places"):
            self._grants[limiter, "places"].append(
                (line["time"], line["in_flight"], line["places"], 0)
            )

    def _call(self, run_id: str, kind: str, line: dict[str, Any]) -> None:
        self._calls_of[run_id] += 1
        calls = self._calls[run_id]
        if len(calls) >= CALLS_PER_RUN or self._calls_kept >= CALLS_SHOWN:
            return
        self._calls_kept += 1
        what = line.get("model" if kind == "model_call" else "tool", "")
        words = f"{'model' if kind == 'model_call' else 'tool'} {what}: {line.get('status', '')}"
        words += f" in {line.get('seconds', 0):.3f} s"
        if "input_tokens" in line:
            words += f", {line['input_tokens']:,} + {line.get('output_tokens', 0):,} tokens"
        if "error" in line:
            words += f", {line['error']}: {line.get('message', '')}"
        messages = [(one["role"], one["text"]) for one in line.get("request", ())]
        if "response" in line:
            messages.append(("answer", line["response"]))
        if "arguments" in line:
            messages.append(("arguments", line["arguments"]))
        calls.append({"words": plain(words), "messages": self._messages(messages)})

    def _messages(self, messages: list[tuple[str, str]]) -> dict[str, Any] | None:
        if not messages:
            return None
        shown: list[tuple[str, str]] = []
        for role, text in messages[-MESSAGES_PER_CALL:]:
            text = plain_lines(text, at_most=MESSAGE_CHARACTERS)
            if len(text) > self._room:
                break
            self._room -= len(text)
            shown.append((plain(role), text))
        return {"total": len(messages), "shown": shown}

    def waits(self, columns: Columns, start: float) -> dict[str, Any]:
        """Return the waits of the runs that are shown, the longest first if there are too many."""
        numbers = columns.numbers
        waits = [one for one in self._waits if one[0] in numbers]
        if len(waits) > WAITS_SHOWN:
            waits.sort(key=lambda one: one[2] - one[3])
            del waits[WAITS_SHOWN:]
        waits.sort(key=lambda one: one[2])
        reasons: dict[str, int] = {}
        rows = [
            (
                numbers[run_id],
                columns.units(since - start),
                columns.units(until - since),
                reasons.setdefault(plain(words), len(reasons)),
            )
            for run_id, words, since, until in waits
        ]
        named = zip(("run", "at", "for", "reason"), zip(*rows, strict=True), strict=False)
        return {
            **_NOTHING["waits"],
            **dict(named),
            "reasons": list(reasons),
            "total": self._total_waits,
        }

    def calls_data(self, numbers: dict[str, int]) -> dict[int, Any]:
        """Return the calls of models and tools, by the number of their run."""
        return {
            numbers[run_id]: {"total": self._calls_of[run_id], "shown": calls}
            for run_id, calls in self._calls.items()
            if run_id in numbers
        }

    def limits_data(self, columns: Columns, start: float) -> dict[str, Any]:
        """Return how much of each limit was used in the period before each of some moments."""
        shown = []
        for (limiter, name), grants in sorted(self._grants.items()):
            _, _, limit, period = grants[-1]
            points = _usage(grants, start, columns.duration)
            peak = max(use for _, use in points)
            every = f" in {period:g} s" if period else " at once"
            words = f"At most {peak:.0%} of {limit:,.0f}{every}, in {len(grants):,} grants."
            shown.append(
                {
                    "name": plain(limiter),
                    "of": plain(name),
                    "words": words,
                    "points": [(columns.units(at - start), round(use, 4)) for at, use in points],
                }
            )
        words = "" if shown else "No limiter granted anything."
        found = {"total": len(shown), "shown": shown[:LIMITS_SHOWN], "words": words}
        return {**_NOTHING["limits"], **found}


def _usage(
    grants: list[tuple[float, float, float, float]], start: float, duration: float
) -> list[tuple[float, float]]:
    """Return the share of a limit that is used, at moments spread evenly."""
    points: list[tuple[float, float]] = []
    window: deque[tuple[float, float]] = deque()
    used = 0.0
    pending = deque(grants)
    for number in range(1, POINTS_SHOWN + 1):
        until = start + duration * number / POINTS_SHOWN
        most = used / grants[0][2]
        while pending and (pending[0][0] <= until or number == POINTS_SHOWN):
            at, amount, limit, period = pending.popleft()
            if not period:  # Places: how many are taken now.
                used = amount
            else:
                window.append((at, amount))
                used += amount
                while window[0][0] <= at - period:
                    used -= window.popleft()[1]
            most = max(most, used / limit)
        points.append((until, most))
    return points
