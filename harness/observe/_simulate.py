"""Carry out a fan-out without carrying it out: only its times, as fast as Python can count them.

An item is a list of steps: seconds that pass, and grants that a limiter has to give. The rules are
those of the engine and of a limiter's line. A finished item starts the next one itself; who asks a
limiter stands in its line, first come, first served, and the head is granted at the moment that the
limiter names. That moment is worked out by the limiter's own code, which is told the time and looks
at no clock. ``tests/observe/test_simulate.py`` holds all of it against the real engine on a virtual
clock, which does the same thirty times slower.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from harness.limits import Limiter, Reservation
from harness.observe._runs import Used


class Tokens(NamedTuple):
    """How many tokens a request is for; None where that isn't known."""

    total: float | None = None
    read: float | None = None
    written: float | None = None


class Grant(NamedTuple):
    """A step of an item: a limiter has to grant this much."""

    limiter: str
    tokens: Tokens = Tokens()
    """Without the total, the limiter estimates it, by what it learned from earlier requests."""


class Settle(NamedTuple):
    """A step of an item: its latest grant by a limiter is replaced by what was used."""

    limiter: str
    used: Used


class Release(NamedTuple):
    """A step of an item: its latest grant by a limiter is over."""

    limiter: str


Step = float | Grant | Settle | Release
Steps = Sequence[Step]


class Simulated(NamedTuple):
    """How a simulated fan-out went."""

    seconds: float
    """When the last item ended."""

    last_began: float
    """When the last stretch of an item began that takes time: in a fan-out without calls one after
    another, its last item."""

    item_seconds: list[float]
    """How long each item took, waits in line included, in the order in which they ended."""


class _Item:
    """An item on its way."""

    __slots__ = ("held", "left", "started", "wants")

    def __init__(self, steps: Steps, started: float) -> None:
        self.left = iter(steps)
        self.started = started
        self.held: dict[_Line, Reservation] = {}
        self.wants: Reservation


class _Line:
    """A limiter, and who waits in its line."""

    __slots__ = ("_grants", "_limiter", "wakes_at", "waiting")

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._grants: Any = limiter._grants
        self.waiting: deque[_Item] = deque()
        self.wakes_at = math.inf

    def ask(self, item: _Item, step: Grant, now: float) -> bool:
        """Grant what an item asks for, or put it in line."""
        total, read, written = step.tokens
        item.wants = self._limiter.reserve(tokens=total, input_tokens=read, output_tokens=written)
        if not self.waiting and self._free_at(item, now) <= now:
            self._take(item, now)
            return True
        self.waiting.append(item)
        return False

    def next(self, now: float) -> _Item | None:
        """Grant what the head of the line waits for; None if it has to wait on, or nobody does."""
        self.wakes_at = math.inf
        if not self.waiting:
            return None
        self.wakes_at = self._free_at(self.waiting[0], now)
        if self.wakes_at > now:
            return None
        item = self.waiting.popleft()
        self._take(item, now)
        return item

    def settle(self, reservation: Reservation, used: Used, now: float) -> None:
        """Replace what was granted by what was used."""
        if used.requests:
            self._grants.estimates.learn(
                None,
                input_tokens=used.read,
                output_tokens=used.written,
                total_tokens=used.total,
            )
        for meter, charged in reservation.charges:
            really = used[meter.kind]
            if really is not None:
                meter.settle(charged, really, taken_at=reservation.granted_at, now=now)

    def take_back(self) -> None:
        """Take back a place."""
        self._grants.in_flight -= 1

    def _free_at(self, item: _Item, now: float) -> float:
        moment: float = self._grants.free_at(item.wants, now)
        return moment

    def _take(self, item: _Item, now: float) -> None:
        self._grants.take(item.wants, now)
        item.held[self] = item.wants


def simulate(items: Iterator[Steps], limit: int, limiters: Mapping[str, Limiter]) -> Simulated:
    """Return how long a fan-out takes.

    Args:
      items: The steps of each item, in order.
      limit: How many are in flight at most.
      limiters: The limiters that grants name; fresh ones. One that isn't here grants everything.

    Raises:
      ValueError: if a grant would never be made.
    """
    lines = {name: _Line(limiter) for name, limiter in limiters.items()}
    events: list[tuple[float, int, _Item | _Line]] = []
    numbers = itertools.count()
    took: list[float] = []
    now = last_began = 0.0

    def look(line: _Line) -> None:
        """Serve a line, and come back when its head can be served."""
        before = line.wakes_at
        while (served := line.next(now)) is not None:
            # What it frees by ending is looked at in turn, further up.
            heappush(events, (now, next(numbers), served))
        if line.wakes_at < math.inf and line.wakes_at != before:
            heappush(events, (line.wakes_at, next(numbers), line))

    def give_back(item: _Item, line: _Line) -> None:
        """Take back what an item holds of a line, if anything, and serve who waits there."""
        if item.held.pop(line, None) is not None:
            line.take_back()
            look(line)

    def go_on(item: _Item) -> bool:
        """Take the next steps of an item; return whether that was the last."""
        nonlocal last_began
        for step in item.left:
            if isinstance(step, Grant):
                line = lines.get(step.limiter)
                if line is None:
                    continue
                # One at a time: what a part of the item that ran beside this one holds is given
                # back first. Otherwise an item could wait for itself.
                give_back(item, line)
                if not line.ask(item, step, now):
                    if len(line.waiting) == 1:
                        look(line)
                    return False
            elif isinstance(step, Settle):
                line = lines.get(step.limiter)
                if line is not None and (reservation := item.held.get(line)) is not None:
                    line.settle(reservation, step.used, now)
                    look(line)
            elif isinstance(step, Release):
                line = lines.get(step.limiter)
                if line is not None:
                    give_back(item, line)
            elif step > 0:
                last_began = now
                heappush(events, (now + step, next(numbers), item))
                return False
        took.append(now - item.started)
        for line in tuple(item.held):
            give_back(item, line)
        return True

    in_flight = 0
    more = True
    while True:
        while more and in_flight < limit:
            steps = next(items, None)
            if steps is None:
                more = False
                break
            in_flight += 1
            in_flight -= go_on(_Item(steps, now))
        if not events:
            if in_flight:
                raise ValueError(
                    "a limiter would never grant what a request needs, which is more than it "
                    "allows in a period; plan with a larger limit"
                )
            return Simulated(now, last_began, took)
        now, _, due = heappop(events)
        if isinstance(due, _Line):
            if now >= due.wakes_at:
                due.wakes_at = math.inf
                look(due)
        else:
            in_flight -= go_on(due)
