"""Say how much the orders that were run say about those that weren't."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable
from typing import Any

import attrs

from harness.testing.schedules._c_functions import CONTAINERS, is_future
from harness.testing.schedules._effects import ANY, WHOLE, Line
from harness.testing.schedules._happened import Happened
from harness.testing.schedules._watch import Watch

RACES_AT_MOST = 200
"""How many pairs of lines are kept."""

RACES_SHOWN = 3
"""How many are named in one line."""


@attrs.frozen(order=True)
class RacingLines:
    """Two lines that touched the same place in different tasks, one of them writing."""

    first: str
    """A line, as ``app.py:12``."""

    second: str
    """The other one; the same if two tasks raced through it."""

    what: str
    """What both touched: ``Account.left``, a variable, or what kind of container it is."""

    in_both_orders: bool
    """Whether each came before the other in some schedule; if not, ``first`` always did."""

    def __str__(self) -> str:
        return f"{self.first} and {self.second} ({self.what})"


@attrs.frozen(kw_only=True)
class OrdersSeen:
    """What a search that watched its schedules can say about orders."""

    schedules: int
    """How many schedules were watched."""

    distinct: int
    """How many of their orders differ in a way that an assertion could notice."""

    orders: int | None
    """How many orders of steps these stand for; None if there are too many to count."""

    exhaustive: bool
    """Whether there is no other order: every step was fully seen, and every distinct order run."""

    unseen: tuple[str, ...]
    """What steps did that can't be seen; their order with any other step counts as distinct."""

    races: tuple[RacingLines, ...]
    """Pairs of lines that could come in either order."""

    chance_of_new: float | None = None
    """How likely one more schedule is to show a distinct order that none has shown: the share of
    distinct orders that were seen once (Good and Turing's estimate; I. J. Good, 1953). None if the
    schedules weren't drawn independently."""

    chance_at_most: float | None = None
    """What that is below with 95 % confidence."""

    @property
    def one_way(self) -> tuple[RacingLines, ...]:
        """The races that were seen in one order only; the program itself keeps it, if all orders
        were run."""
        return tuple(race for race in self.races if not race.in_both_orders)

    def __str__(self) -> str:
        distinct = f"{self.distinct:,} distinct"
        if self.exhaustive and self.orders is not None:
            words = f"all {self.orders:,} order{'s'[: self.orders != 1]}, {distinct}"
        elif self.exhaustive:
            words = f"all orders, {distinct}"
        else:
            words = f"{distinct} orders in {self.schedules:,} schedules"
        if self.chance_of_new is not None and self.chance_at_most is not None:
            words += (
                f"; one more shows a new one with a chance of about "
                f"{_percent(self.chance_of_new)}, at most {_percent(self.chance_at_most)}"
            )
        if self.unseen:
            first, *others = self.unseen
            words += f"; not seen: {first}{f' and {len(others)} more' if others else ''}"
        # Of those that no order of all has turned round, the program itself keeps the order.
        raced = [race for race in self.races if race.in_both_orders or not self.exhaustive]
        if raced:
            words += f"; {len(raced)} pair{'s'[: len(raced) != 1]} of lines raced"
        if self.one_way and not self.exhaustive:
            shown = ", ".join(map(str, self.one_way[:RACES_SHOWN]))
            more = ", ..." if len(self.one_way) > RACES_SHOWN else ""
            words += f", {len(self.one_way)} in one order only: {shown}{more}"
        return words


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def most_expected(count: int) -> float:
    """Return what a count is on average at most, by the upper of the two usual Poisson limits.

    Below the upper one of a single limit only 93 of 100 searches were: what is unseen varies, too.
    """
    low, high = float(count), count + 5 + 4 * math.sqrt(count + 1)
    for _ in range(50):
        middle = (low + high) / 2
        term = total = math.exp(-middle)
        for number in range(1, count + 1):
            term *= middle / number
            total += term
        low, high = (low, middle) if total < 0.025 else (middle, high)
    return high


@attrs.define(eq=False)
class Seen:
    """Collects what is seen in one schedule after the other."""

    independent: bool = False
    """Whether schedules are drawn independently of each other."""

    runs: int = attrs.field(default=0, init=False)
    counts: dict[Hashable, int] = attrs.field(factory=dict, init=False)
    _orders: int | None = attrs.field(default=0, init=False)
    _unseen: dict[str, None] = attrs.field(factory=dict, init=False)
    _races: dict[tuple[str, str, str], set[bool]] = attrs.field(factory=dict, init=False)

    def note_divergence(self) -> None:
        """Note that the same schedule led elsewhere, so something else decides as well."""
        self._unseen["what differs from run to run, such as random numbers"] = None

    def learn(self, watch: Watch, happened: Happened, *, is_new: bool = True) -> None:
        """Learn from a run; ``is_new`` says whether it may show a distinct order."""
        self.runs += 1
        if not watch.complete:
            self._unseen["steps of a run that went on for too long"] = None
        for step in watch.steps:
            if step.effects.unseen is not None:
                self._unseen.setdefault(step.effects.unseen)
        self._note_races(watch, happened)
        if not is_new:
            return
        key = happened.key
        if key not in self.counts and self._orders is not None and not self.independent:
            orders = happened.orders()
            self._orders = None if orders is None else self._orders + orders
        self.counts[key] = self.counts.get(key, 0) + 1

    def chance_of_new(self) -> float:
        """Return how likely the next schedule is to show something new."""
        return self._singles() / max(self.runs, 1)

    def chance_at_most(self) -> float:
        """Return what that is below with 95 % confidence."""
        return min(1.0, most_expected(self._singles()) / max(self.runs, 1))

    def _singles(self) -> int:
        return sum(count == 1 for count in self.counts.values())

    def result(self, *, exhausted: bool, controlled: bool) -> OrdersSeen:
        """Return what can be said.

        Args:
          exhausted: Whether every distinct order was run.
          controlled: Whether no schedule waited for something outside.
        """
        return OrdersSeen(
            schedules=self.runs,
            distinct=len(self.counts),
            orders=None if self.independent else self._orders,
            exhaustive=exhausted and controlled and not self._unseen,
            unseen=tuple(self._unseen),
            races=tuple(sorted(_race(*pair, ways) for pair, ways in self._races.items())),
            chance_of_new=self.chance_of_new() if self.independent else None,
            chance_at_most=self.chance_at_most() if self.independent else None,
        )

    def _note_races(self, watch: Watch, happened: Happened) -> None:
        last: dict[int, dict[tuple[Hashable, int, Line, bool], int]] = {}
        for here, step in enumerate(happened.steps):
            for thing, keys in step.effects.touched.items():
                if thing == ANY or thing in watch.primitives:
                    continue
                if thing > 0 and is_librarys(watch.things.kept[thing]):
                    continue
                earlier = last.setdefault(thing, {})
                for key, access in keys.items():
                    for line, writes in access.at:
                        if line is None:
                            continue
                        for (other_key, task, other_line, wrote), place in earlier.items():
                            if (
                                task != step.task
                                and (writes or wrote)
                                and (key == other_key or WHOLE in (key, other_key))
                                and not happened.is_synchronized(place, here)
                            ):
                                tasks = (task, step.task)
                                what = _in_words(watch, thing, key)
                                self._note_race(other_line, line, what, tasks)
                for key, access in keys.items():
                    for line, writes in access.at:
                        if line is not None:
                            earlier[key, step.task, line, writes] = here

    def _note_race(self, first: Line, second: Line, what: str, tasks: tuple[int, int]) -> None:
        forwards = first < second if first != second else tasks[0] < tasks[1]
        low, high = (first, second) if first <= second else (second, first)
        pair = (_short(low), _short(high), what)
        if pair in self._races or len(self._races) < RACES_AT_MOST:
            self._races.setdefault(pair, set()).add(forwards)


def _race(low: str, high: str, what: str, ways: set[bool]) -> RacingLines:
    first, second = (low, high) if True in ways else (high, low)
    return RacingLines(first, second, what, len(ways) > 1)


def _short(line: Line) -> str:
    return f"{os.path.basename(line[0])}:{line[1]}"


def is_librarys(thing: Any) -> bool:
    """Tell whether an object is a lock, a queue or a task of trio or asyncio."""
    return is_future(thing) or type(thing).__module__.startswith(("trio", "asyncio"))


def _in_words(watch: Watch, thing: int, key: Hashable) -> str:
    if thing < 0:
        return f"variable {key}"
    kept = watch.things.kept[thing]
    if isinstance(kept, dict) and "__name__" in kept and isinstance(key, str) and key in kept:
        return f"{kept['__name__']}.{key}"
    if isinstance(key, str) and key is not WHOLE and not isinstance(kept, CONTAINERS):
        owner = kept if isinstance(kept, type) else type(kept)
        return f"{owner.__qualname__.rpartition('<locals>.')[2]}.{key}"
    return f"a {type(kept).__qualname__}"
