"""Ways to search that a test can ask for, other than the usual mixture."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal, Protocol, get_args

import attrs

from harness._arguments import check_count
from harness.testing.schedules._choosers import Chooser, Priorities, Uniform
from harness.testing.schedules._controlled import ScheduleRun
from harness.testing.schedules._happened import Happened
from harness.testing.schedules._orders_seen import OrdersSeen, Seen
from harness.testing.schedules._reduced import Reduced
from harness.testing.schedules._search import Probe, Search
from harness.testing.schedules._watch import Watch, Watched

Way = Literal["mixed", "distinct", "priorities", "random"]
"""How to search: in turns; every distinct order; by priorities, with a bound; or at random."""

DRAWN: tuple[Way, ...] = ("priorities", "random")
"""The ways that draw each schedule independently of the others, so that they can be counted."""

LOOK_EVERY = 10
"""After how many schedules to look whether enough was seen."""


class Searching(Protocol):
    """A search for a failing schedule."""

    @property
    def exhausted(self) -> bool:
        """Whether every order that matters was run."""
        ...

    def probes(self) -> Iterator[Probe]:
        """Yield what to run next."""
        ...

    def learn(self, probe: Probe, run: ScheduleRun) -> None:
        """Learn what came of it."""
        ...


@attrs.frozen
class PriorityBound:
    """How likely a search by priorities is to find a fault, if there is one.

    For a program of ``n`` tasks and ``k`` decisions, each schedule finds a fault that needs
    ``depth`` steps in one order with a chance of at least ``1 / (n * k ** (depth - 1))``, however
    seldom it shows otherwise (Burckhardt, Kothari, Musuvathi, Nagarakatte, "A randomized scheduler
    with probabilistic guarantees of finding bugs", 2010).
    """

    depth: int
    tasks: int
    """The most tasks that a schedule had."""
    decisions: int
    """The most decisions that a schedule had."""
    schedules: int

    @property
    def one_in(self) -> int:
        """The bound for one schedule, as 1 in so many."""
        decisions: int = max(self.decisions, 1) ** (self.depth - 1)
        return max(self.tasks, 1) * decisions

    @property
    def chance(self) -> float:
        """The bound for all schedules together."""
        return 1 - (1 - 1 / self.one_in) ** self.schedules

    def __str__(self) -> str:
        return (
            f"each schedule finds a fault that needs {self.depth} steps in one order with a chance "
            f"of at least 1 in {self.one_in:,} ({self.tasks} tasks, {self.decisions} decisions), "
            f"and one of {self.schedules:,} does with at least {self.chance * 100:.3g} %"
        )


@attrs.define(eq=False)
class Drawn:
    """Draws each schedule independently of the others."""

    way: Way
    depth: int
    enough_below: float | None
    """The search ends when one more schedule shows something new with a lower chance."""

    _random: Random
    exhausted: bool = attrs.field(default=False, init=False)
    seen: Seen | None = attrs.field(init=False)
    tasks: int = attrs.field(default=0, init=False)
    decisions: int = attrs.field(default=1, init=False)
    runs: int = attrs.field(default=0, init=False)
    _watch: Watch | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.seen = None if self.enough_below is None else Seen(independent=True)

    def probes(self) -> Iterator[Probe]:
        """Yield what to run next, until enough was seen."""
        while not self._has_seen_enough():
            random = Random(self._random.getrandbits(64))
            chooser: Chooser = Uniform(random)
            if self.way == "priorities":
                chooser = Priorities(random, self.depth - 1, self.decisions)
            if self.seen is None:
                yield Probe(chooser)
            else:
                self._watch = watch = Watch()
                yield Probe(Watched(chooser, watch), observers=(watch,))

    def learn(self, probe: Probe, run: ScheduleRun) -> None:
        """Learn how large the program is, and which order it was."""
        self.runs += 1
        self.tasks = max(self.tasks, len(run.names))
        self.decisions = max(self.decisions, len(run.choices))
        if self.seen is not None and self._watch is not None:
            watch = self._watch
            self.seen.learn(watch, Happened(watch.steps, watch.started_by()))

    def bound(self) -> PriorityBound | None:
        """Return how likely it was to find a fault; None for other ways."""
        if self.way != "priorities":
            return None
        return PriorityBound(self.depth, self.tasks, self.decisions, self.runs)

    def _has_seen_enough(self) -> bool:
        return (
            self.enough_below is not None
            and self.seen is not None
            and self.runs % LOOK_EVERY == 0
            and self.runs > 0
            and self.seen.chance_at_most() < self.enough_below
        )


def search_for(
    way: Way, usual: Search, *, schedules: int, depth: int, enough_below: float | None
) -> Searching:
    """Return the search for a way.

    Args:
      way: How to search.
      usual: The usual search.
      schedules: How many schedules to run at most.
      depth: How many steps in one order a fault needs that ``"priorities"`` looks for.
      enough_below: When to end a search that draws its schedules.
    """
    if way == "distinct":
        return Reduced(usual, max(schedules // 2, min(schedules, 50)))
    if way == "mixed":
        return usual
    return Drawn(way, depth, enough_below, Random(usual.seed))


def seen_by(searching: Searching, controlled: bool) -> OrdersSeen | None:
    """Return what a search saw of orders; None if it didn't look."""
    seen = searching.seen if isinstance(searching, Reduced | Drawn) else None
    return (
        None if seen is None else seen.result(exhausted=searching.exhausted, controlled=controlled)
    )


def check_way(
    what: str, way: str, depth: int, enough_below: float | None, starved_after: int | None
) -> None:
    """Refuse a way to search that there isn't, and settings that don't go with it."""
    if way not in get_args(Way):
        known = ", ".join(map(repr, get_args(Way)))
        raise ValueError(f"{what}(search=...) must be one of {known}, not {way!r}")
    advice = "it is how many steps must come in one order for the fault to show"
    check_count(f"{what}(depth=...)", depth, advice=advice)
    if starved_after is not None:
        advice = "it is how many steps of others a task may get nowhere"
        check_count(f"{what}(starved_after=...)", starved_after, advice=advice)
    if enough_below is None:
        return
    if not 0 < enough_below < 1:
        raise ValueError(f"{what}(enough_below=...) must be between 0 and 1, not {enough_below!r}")
    if way not in DRAWN:
        raise ValueError(
            f"{what}(enough_below=...) is an estimate from schedules that are drawn independently; "
            'ask for search="random" or search="priorities" with it'
        )
