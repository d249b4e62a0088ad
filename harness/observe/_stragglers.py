"""Find the items that took far longer than others, and what they cost the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heapreplace

import attrs

from harness.observe._runs import TracedRun

ITEMS_AT_LEAST = 5
"""Of fewer items, none is called slower than usual."""

TIMES = 3
"""How many times the median an item takes to be called a straggler."""


@attrs.frozen
class Stragglers:
    """The items of one fan-out that took more than three times as long as the middle one."""

    path: str
    """The fan-out's."""

    items: int
    """How many items it had."""

    run_ids: tuple[str, ...]
    """The runs of the stragglers, the slowest first."""

    cost_seconds: float
    """How much sooner the fan-out would have ended if each had taken as long as the middle one."""

    hedge_after_seconds: float
    """When a second attempt would have begun: at the time that 95 % of the items took at most, or
    at three times the middle one's if that is sooner."""

    hedge_saves_seconds: float
    """How much sooner it would have ended with that, if each second attempt took the median."""


def stragglers_of(run: TracedRun) -> Stragglers | None:
    """Return the stragglers among the items of a fan-out; None if there are none."""
    ended = [one for one in run.children if one.index is not None and one.status == "ok"]
    if len(ended) < ITEMS_AT_LEAST:
        return None
    seconds = {one: one.ended - one.started for one in ended}
    in_order = sorted(seconds.values())
    median = in_order[len(in_order) // 2]
    after = min(in_order[int(len(in_order) * 0.95)], TIMES * median)
    slow = sorted((one for one in ended if seconds[one] > TIMES * median), key=seconds.__getitem__)
    if not slow:
        return None
    workers = most_at_once(ended)

    def ends(change: Callable[[int], int]) -> int:
        return _makespan((change(seconds[one]) for one in ended), workers)

    actual = ends(lambda took: took)
    as_usual = ends(lambda took: median if took > TIMES * median else took)
    hedged = ends(lambda took: min(took, after + median))
    return Stragglers(
        run.path,
        len(ended),
        tuple(one.id for one in reversed(slow)),
        (actual - as_usual) / 1e9,
        after / 1e9,
        (actual - hedged) / 1e9,
    )


def most_at_once(runs: Iterable[TracedRun]) -> int:
    """Return how many of these runs were there at once, at most."""
    events = sorted((at, change) for one in runs for at, change in _there(one))
    most = now = 0
    for _, change in events:
        now += change
        most = max(most, now)
    return max(most, 1)


def _there(run: TracedRun) -> tuple[tuple[int, int], tuple[int, int]]:
    return (run.started, 1), (max(run.ended, run.started + 1), -1)


def _makespan(took: Iterable[int], workers: int) -> int:
    """Return when all are done if each worker takes the next item as soon as it is free."""
    free = [0] * workers
    heapify(free)
    for one in took:
        heapreplace(free, free[0] + one)
    return max(free)
