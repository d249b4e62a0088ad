"""Say in one sentence what keeps a program from being faster."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping

import attrs

from harness.observe._runs import Traced, TracedRun, nanoseconds
from harness.observe._stragglers import Stragglers, most_at_once

FULL = 0.9
"""From which share on a limit counts as used up."""

LARGE = 0.2
"""From which share of the time on something is worth a sentence."""


@attrs.frozen
class LimitUse:
    """How much of a limit was used."""

    limiter: str
    """The limiter's name."""

    dimension: str
    """What it limits, such as ``tokens``."""

    amount: float
    """How much it allows in a period; of places, how many there are."""

    period: float
    """That period, in seconds; 0 for places."""

    used: float
    """The share of it that was used: of places on average, otherwise in the fullest period."""

    def __str__(self) -> str:
        if not self.period:
            places = "only place" if self.amount == 1 else f"{self.amount:g} places"
            return f"the {places} of limiter {self.limiter!r}"
        what = self.dimension.partition(" per ")[0].replace("_", " ")
        every = "minute" if self.period == 60 else f"{self.period:g} s"
        return f"{what} per {every} of limiter {self.limiter!r}"


def limits_used(traced: Traced) -> list[LimitUse]:
    """Return how much of each limit was used, the fullest first."""
    grants: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    stated: dict[tuple[str, str], tuple[float, float]] = {}
    places: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for wait, in_flight, most in traced.grants:
        for dimension, amount, limit, period in wait.granted or ():
            grants[wait.on, dimension].append((wait.ended or 0, amount))
            stated[wait.on, dimension] = limit, period
        if most is not None:
            places[wait.on].append((most, in_flight))
    found = [
        LimitUse(limiter, dimension, *stated[limiter, dimension], _fullest(of, *stated[key]))
        for key, of in grants.items()
        for limiter, dimension in [key]
    ]
    for limiter, seen in places.items():
        most = max(number for number, _ in seen)
        mean = sum(in_flight for _, in_flight in seen) / len(seen)
        found.append(LimitUse(limiter, "places", most, 0, min(1.0, mean / most)))
    return sorted(found, key=lambda one: -one.used)


def _fullest(grants: list[tuple[int, float]], limit: float, period: float) -> float:
    """Return the largest share of a limit that was granted within one period."""
    window: deque[tuple[int, float]] = deque()
    total = most = 0.0
    length = nanoseconds(period)
    for at, amount in grants:
        window.append((at, amount))
        total += amount
        while window[0][0] <= at - length:
            total -= window.popleft()[1]
        most = max(most, total)
    span = grants[-1][0] - grants[0][0]
    if 0 < span < length:
        # In less than a period only so much is allowed: the pace, and a second's worth at once.
        return min(1.0, most / (limit * (span + 1e9) / length))
    return min(1.0, most / limit)


def constraint_of(
    traced: Traced,
    parts: Mapping[str, int],
    work: Mapping[str, int],
    limits: list[LimitUse],
    stragglers: list[Stragglers],
    deadlocks: tuple[tuple[str, ...], ...],
) -> str:
    """Return what binds, in one sentence, and of how many runs that is said if not of all."""
    found = _binds(traced, parts, work, limits, stragglers, deadlocks)
    if traced.is_cut:
        return f"in the first {len(traced.runs):,} of {traced.total_runs:,} runs, {found}"
    return found


def _binds(
    traced: Traced,
    parts: Mapping[str, int],
    work: Mapping[str, int],
    limits: list[LimitUse],
    stragglers: list[Stragglers],
    deadlocks: tuple[tuple[str, ...], ...],
) -> str:
    """Return what binds.

    Args:
      traced: The trace.
      parts: The whole's ledger.
      work: What all runs together spent their time on.
      limits: How much of each limit was used, the fullest first.
      stragglers: The items that took much longer than others, by what they cost.
      deadlocks: The circles of runs that wait for each other.
    """
    whole = sum(parts.values())
    if deadlocks:
        return f"a deadlock binds: {' waits for '.join(deadlocks[0])}; nothing will go on"
    if not whole:
        return "nothing binds: all this took no time"
    in_line = work.get("limiter", 0)
    if limits and in_line >= LARGE * sum(part for name, part in work.items() if name != "idle"):
        # Of the limiter whose line took longest: another may be as full, and hold up nobody.
        waited = _waited(traced)
        fullest = max(limits, key=lambda one: (waited[one.limiter], one.used))
        taken = "is taken" if fullest.amount == 1 else "are taken"
        return (
            f"{fullest} {'bind' if fullest.period else taken}: {fullest.used:.0%} used; "
            f"{_workers(traced)} more workers change nothing"
        )
    if stragglers and stragglers[0].cost_seconds * 1e9 >= LARGE * whole:
        worst = stragglers[0]
        slow = traced.runs[worst.run_ids[0]]
        saves = worst.hedge_saves_seconds
        return (
            f"a straggler binds: {slow.path!r} took {(slow.ended - slow.started) / 1e9:.3g} s, "
            f"and {worst.path!r} would have ended {worst.cost_seconds:.3g} s sooner without such "
            f"items; a hedge after {worst.hedge_after_seconds:.3g} s would have saved {saves:.3g} s"
        )
    largest = max(parts, key=lambda part: parts[part])
    share = f"{parts[largest] / whole:.0%} of the time is {_WORDS[largest]}"
    full = _full_fan_out(traced)
    if full is not None:
        run, limit, items = full
        return (
            f"the limit of {limit} items at once in {run.path!r} binds: it was full, with "
            f"{items:,} items to do, and {share}; a larger limit= makes it faster"
        )
    return f"{_BINDS[largest]}: {share}"


_WORDS = {
    "queue": "waiting for a turn",
    "limiter": "waiting in line at a limiter",
    "model": "waiting for a model",
    "tool": "in tools",
    "retry": "waiting for the next attempt",
    "hedge": "waiting until a late attempt was hedged",
    "own": "the program's own code, or what it waits for itself",
    "cleanup": "cleaning up",
}

_BINDS = {
    "queue": "what comes before a full stage binds",
    "limiter": "a limiter binds",
    "model": "the model's answers, one after the other, bind",
    "tool": "the tools, one after the other, bind",
    "retry": "failures bind",
    "hedge": "late attempts bind",
    "own": "the program's own code, step by step, binds",
    "cleanup": "cleaning up binds",
}


def _waited(traced: Traced) -> Counter[str]:
    """Return how long runs waited in the line of each limiter."""
    waited: Counter[str] = Counter()
    for run in traced.runs.values():
        for wait in run.waits:
            if wait.reason == "limiter":
                waited[wait.on] += (run.ended if wait.ended is None else wait.ended) - wait.started
    return waited


def _workers(traced: Traced) -> int:
    """Return how many items were in flight at once, at most: as many again is a fair question."""
    return max(
        (most_at_once(_items(run)) for run in traced.runs.values() if _items(run)), default=1
    )


def _full_fan_out(traced: Traced) -> tuple[TracedRun, int, int] | None:
    """Return the longest fan-out that had all its slots taken most of the time, if it matters."""
    longest: tuple[int, TracedRun, int, int] | None = None
    for run in traced.runs.values():
        items = _items(run)
        took = run.ended - run.started
        if len(items) < 2 or took < LARGE * (traced.ended - traced.started):
            continue
        limit = most_at_once(items)
        busy = sum(one.ended - one.started for one in items)
        if (
            len(items) > limit
            and busy >= FULL * limit * took
            and (not longest or took > longest[0])
        ):
            longest = took, run, limit, len(items)
    return None if longest is None else longest[1:]


def _items(run: TracedRun) -> list[TracedRun]:
    return [child for child in run.children if child.index is not None]
