"""Say how long a recorded fan-out would take with other items, limits and workers."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import attrs

from harness._arguments import check_count
from harness.observe._recorded import Recorded, limiters_for, recorded
from harness.observe._runs import load
from harness.observe._simulate import Simulated, Steps, simulate

TRUSTED_WITHIN = 0.02
"""How far a replay of what was recorded may be from what really happened."""

SEARCHED_ITEMS = 1_000
"""How many items the search for the best limit looks at."""

GOOD_ENOUGH = 0.02
"""A larger limit that gains no more than this isn't worth it."""


@attrs.frozen
class Plan:
    """What a plan comes to."""

    seconds: float
    """When it will be finished."""

    p99: float
    """How many seconds 99 % of the items take at most, waits in line included."""

    cost: float | None
    """What it costs in dollars; None if no recorded call had a price."""

    best_limit: int
    """The smallest limit with which it takes at most 2 % longer than with any larger one; of more
    than 1,000, none is tried, and this is 1,000."""

    replayed_seconds: float
    """How long the recorded fan-out takes when it is simulated with nothing changed."""

    recorded_seconds: float
    """How long it really took."""

    runs: int
    """How many of the recorded runs it goes by: those that began first, 200,000 at most."""

    total_runs: int
    """How many were recorded."""

    doubts: tuple[str, ...]
    """Why the plan can't be trusted, in sentences; empty if it can be."""

    @property
    def is_trusted(self) -> bool:
        """Whether a simulation with nothing changed gives what was recorded, within 2 %."""
        return not self.doubts


def plan(
    path: str | os.PathLike[str],
    *,
    items: int,
    limit: int,
    rpm: float | None = None,
    tpm: float | None = None,
) -> Plan:
    """Say how long a recorded fan-out would take with other numbers.

    The largest fan-out in the trace is simulated on a virtual clock: its items as they were
    recorded, again and again in a random order that is always the same, under the limiters that it
    had. What the rest of the program took is added as it was.

    Args:
      path: A trace that `record` has written.
      items: How many items there will be.
      limit: How many of them will be in flight at once.
      rpm: How many requests a minute there may be; None for what was recorded.
      tpm: How many tokens.

    Raises:
      OSError: if the file can't be read.
      TypeError: if a number isn't one.
      ValueError: if it is no trace, has no fan-out, or doesn't tell what requests use of a limit.
    """
    check_count("plan(items=...)", items, advice="how many items there will be")
    check_count("plan(limit=...)", limit, advice="a fan-out's default is 100")
    traced = load(path)
    base = recorded(traced)
    if tpm is not None and not base.counts_tokens:
        raise ValueError(
            "the trace doesn't tell how many tokens a request uses, so plan(tpm=...) has nothing "
            "to go by; record with a limiter on tokens, or with calls to models"
        )

    def simulated(count: int, at_once: int) -> Simulated:
        return simulate(_drawn(base, count), at_once, limiters_for(base, rpm, tpm))

    def search(at_once: int) -> float:
        return simulated(min(items, SEARCHED_ITEMS), at_once).seconds

    replayed = simulate(iter(base.items), base.limit, limiters_for(base, None, None)).seconds
    found = simulated(items, limit)
    around = (traced.ended - traced.started) / 1e9 - base.seconds
    took = sorted(found.item_seconds)
    cost = None if base.cost_usd is None else base.cost_usd * items / len(base.items)
    return Plan(
        seconds=found.seconds + around,
        p99=took[min(len(took) - 1, int(len(took) * 0.99))],
        cost=cost,
        best_limit=_best_limit(search, items),
        replayed_seconds=replayed,
        recorded_seconds=base.seconds,
        runs=len(traced.runs),
        total_runs=traced.total_runs,
        doubts=tuple(_doubts(base, replayed, is_cut=traced.is_cut)),
    )


def _drawn(base: Recorded, count: int) -> Iterator[Steps]:
    """Yield the steps of ``count`` items: as recorded if it is as many, otherwise shuffled.

    Each recorded item comes equally often, so that chance alone makes none of them rare. Items that
    were cut off say nothing of how long one takes.
    """
    if count == len(base.whole):
        yield from base.whole
        return
    draw = random.Random(len(base.whole))
    left = count
    while left > 0:
        again = list(base.whole)
        draw.shuffle(again)
        yield from again[:left]
        left -= len(again)


def _best_limit(seconds: Callable[[int], float], items: int) -> int:
    """Return the smallest limit that is as good as any; the time never grows with the limit."""
    low, high = 1, min(items, SEARCHED_ITEMS)
    enough = seconds(high) * (1 + GOOD_ENOUGH)
    while low < high:
        middle = (low + high) // 2
        if seconds(middle) <= enough:
            high = middle
        else:
            low = middle + 1
    return low


def _doubts(base: Recorded, replayed: float, *, is_cut: bool) -> Iterator[str]:
    if base.run.status == "running" and not is_cut:
        yield f"the recording ends before the fan-out {base.run.path!r} does"
    if abs(replayed - base.seconds) > TRUSTED_WITHIN * base.seconds:
        yield (
            f"simulated with nothing changed, {base.run.path!r} takes {replayed:.4g} s, and in "
            f"fact it took {base.seconds:.4g} s: something else than its items and limiters held "
            "it up, such as its source, its reader, the processor or pauses that a provider "
            "asked for"
        )
    if base.stages_waited > TRUSTED_WITHIN:
        yield (
            "its items waited for slots of stages, which are taken as if they always took as long"
        )
