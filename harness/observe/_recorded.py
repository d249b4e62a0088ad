"""Find in a trace what a plan starts from: a fan-out, its items as steps, and its limiters."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from harness.limits import Limiter, Rate
from harness.observe._runs import Traced, TracedRun, TracedWait, Used
from harness.observe._simulate import Grant, Release, Settle, Step, Steps, Tokens

ADDED = "planned"
"""The name of the limiter that a plan adds where the recorded program had none."""

_MINUTE = 60.0


@attrs.frozen
class Recorded:
    """A recorded fan-out, ready to be simulated."""

    run: TracedRun
    items: tuple[Steps, ...]
    """The steps of its items, in the order in which they began."""

    whole: tuple[Steps, ...]
    """Those of them that came to their end; all, if none did."""

    limit: int
    """How many were in flight at once, at most."""

    limits: Mapping[str, Mapping[str, Any]]
    """The latest grant of each limiter, which says what its limits are."""

    cost_usd: float | None
    """What its calls to models cost in all; None if none had a price."""

    counts_tokens: bool
    """Whether it is known how many tokens the requests used."""

    stages_waited: float
    """The share of the items' time that they waited for slots of stages."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.run.ended - self.run.started) / 1e9


def recorded(traced: Traced) -> Recorded:
    """Return the fan-out with the most items.

    Raises:
      ValueError: if there is none.
    """
    run = max(traced.runs.values(), key=_items_in, default=None)
    if run is None or not _items_in(run):
        raise ValueError(
            "there is no fan-out in the trace, so there are no items to plan with; record a "
            "harness.fan_out() or a `harness batch`"
        )
    by_item: dict[int, list[TracedRun]] = {}
    for child in run.children:
        if child.index is not None:
            by_item.setdefault(child.index, []).append(child)
    waits = _waits_below(run)

    def place(of: list[TracedRun]) -> tuple[int, float]:
        """Of those that began at one moment, the first to ask for something was served first."""
        numbers = [wait.number for one in of for wait in waits[one]]
        return min(one.started for one in of), min(numbers, default=math.inf)

    attempts = sorted(by_item.values(), key=place)
    spans = [_span(of) for of in attempts]
    has_limiters = bool(traced.limiters)
    items = tuple(
        tuple(_steps(span, [wait for one in of for wait in waits[one]], has_limiters))
        for of, span in zip(attempts, spans, strict=True)
    )
    whole_items = tuple(
        steps
        for of, steps in zip(attempts, items, strict=True)
        if any(one.status not in ("cancelled", "running") for one in of)
    )
    costs = [cost for one, cost in traced.costs if one.is_below(run)]
    whole = sum(end - start for start, end in spans) or 1
    queued = sum(
        (wait.ended or run.ended) - wait.started
        for of in waits.values()
        for wait in of
        if wait.reason == "queue"
    )
    return Recorded(
        run,
        items,
        whole_items or items,
        _most_at_once(spans),
        traced.limiters,
        sum(costs) if costs else None,
        any(_granted(one) != Tokens() or one.used for of in waits.values() for one in of),
        queued / whole,
    )


def limiters_for(recorded: Recorded, rpm: float | None, tpm: float | None) -> dict[str, Limiter]:
    """Return fresh limiters as they were recorded, with other limits per minute."""
    changes = {"requests": rpm, "tokens": tpm}
    if not recorded.limits:
        if rpm is None and tpm is None:
            return {}
        return {ADDED: Limiter(requests_per_minute=rpm, tokens_per_minute=tpm)}
    return {name: _limiter(line, changes) for name, line in recorded.limits.items()}


def _limiter(line: Mapping[str, Any], changes: Mapping[str, float | None]) -> Limiter:
    stated: dict[str, Any] = {}
    for name, (_, amount, period) in line["granted"].items():
        kind = name.partition(" per ")[0]
        key = f"{kind}_per_minute" if period == _MINUTE else kind
        stated[key] = amount if period == _MINUTE else Rate(amount, period)
    for kind, amount in changes.items():
        if amount is not None:
            stated[f"{kind}_per_minute"] = amount
    return Limiter(
        **stated,
        concurrent=line.get("places"),
        headroom=line.get("headroom", 1.0),
        burst_seconds=line.get("burst_seconds", 1.0),
    )


def _items_in(run: TracedRun) -> int:
    return len({child.index for child in run.children if child.index is not None})


def _span(attempts: list[TracedRun]) -> tuple[int, int]:
    """Return when an item began, and when the attempt that counts ended."""
    ended = [one.ended for one in attempts if one.status != "cancelled"]
    return min(one.started for one in attempts), max(ended or [one.ended for one in attempts])


def _most_at_once(spans: list[tuple[int, int]]) -> int:
    events = sorted([(start, 1) for start, _ in spans] + [(end, 0) for _, end in spans])
    now = most = 0
    for _, begins in events:
        now += 1 if begins else -1
        most = max(most, now)
    return max(1, most)


def _waits_below(top: TracedRun) -> dict[TracedRun, list[TracedWait]]:
    """Return the waits of each run right below, and of all runs below that."""
    found: dict[TracedRun, list[TracedWait]] = {}
    for child in top.children:
        waits = found[child] = []
        pending = [child]
        while pending:
            run = pending.pop()
            waits += run.waits
            pending += run.children
    return found


def _steps(
    span: tuple[int, int],
    waits: list[TracedWait],
    has_limiters: bool,
) -> Iterator[Step]:
    """Yield the steps of an item: the time between its requests, and the requests.

    A request is what a limiter granted; in a program without limiters a call to a model; and if
    there is neither, the item itself.
    """
    now, end = span
    reason = "limiter" if has_limiters else "model"
    asked = [
        wait
        for wait in waits
        if wait.reason == reason
        and wait.ended is not None
        and (wait.granted is not None or not has_limiters)  # Else cut off, or a pause.
    ]
    if not asked and not has_limiters:
        yield Grant(ADDED)
    calls = sorted((wait for wait in waits if wait.reason == "model"), key=_started)
    steps: list[tuple[int, int, Step]] = []
    for wait in sorted(asked, key=_started):
        used = wait.used or _used_next(calls, wait.started)
        if has_limiters:
            name, until, settled, over = wait.on, wait.ended, wait.settled, wait.released
        else:
            name, until, settled, over = ADDED, wait.started, wait.ended, wait.ended
        granted = _granted(wait)
        if granted == Tokens() and used is not None:
            granted = Tokens(*used[1:])
        steps.append((wait.started, end if until is None else until, Grant(name, granted)))
        if settled is not None and used is not None:
            steps.append((settled, settled, Settle(name, used)))
        if over is not None:
            steps.append((over, over, Release(name)))
    for at, until, step in sorted(steps, key=lambda one: (one[0], isinstance(one[2], Grant))):
        at, until = min(at, end), min(until, end)
        if at > now:
            yield (at - now) / 1e9
        yield step
        now = max(now, until)
    if end > now:
        yield (end - now) / 1e9


def _used_next(calls: list[TracedWait], since: int) -> Used | None:
    """Return what the first call to a model since then used, if there is one and it said."""
    place = bisect_left(calls, since, key=_started)
    return calls[place].used if place < len(calls) else None


def _started(wait: TracedWait) -> int:
    return wait.started


def _granted(wait: TracedWait) -> Tokens:
    """Return how many tokens a limiter granted."""
    found = {one.name.partition(" per ")[0]: one.amount for one in wait.granted or ()}
    read, written = found.get("input_tokens"), found.get("output_tokens")
    total = found.get("tokens")
    if wait.stated_input is not None:
        return Tokens(read=wait.stated_input)  # The limiter guessed the rest.
    if total is None and read is not None and written is not None:
        total = read + written
    return Tokens(total, read, written)
