"""Keep a line with priorities in an order in which nobody starves.

The larger priority goes first; within a priority, first come, first served. Endless requests of a
high priority could then hold back one of a low priority forever, so there is a bound: once the
longest waiter has been overtaken by `MAX_OVERTAKES` later arrivals, it and those after it that were
overtaken as often get every second place. So ahead of a waiter go at most those that came before
it, 300 that came later, and one more for each that starves with it. The bound counts places, not
seconds, so that no flood of arrivals can outrun it.

Each priority has a lane of its own, first in, first out. Most lines have one lane or a few, and a
step then costs the same however long they are. (One heap for all took a twentieth of the time of a
grant in a line of a thousand.)

Pure: no clock and no tasks. Joining, leaving and finding the next cost O(1), except for a search
among the priorities when one is new.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from itertools import islice
from typing import Generic, TypeVar

import attrs

MAX_OVERTAKES = 300
"""How many later arrivals may overtake a waiter before it gets every second place."""

T = TypeVar("T", bound="Place")


class Place:
    """A place in a line. What waits derives from it."""

    __slots__ = ("in_line", "overdue_at")

    in_line: bool
    """Whether it is still waiting. The line sets both fields, so they aren't made here as well."""

    overdue_at: int
    """How many must have gone before it counts as overtaken often enough."""


@attrs.define(eq=False, repr=False)
class Line(Generic[T]):
    """Waiters, the next one first."""

    count: int = 0
    """How many wait. Read many times per request; not to be written from outside."""
    _gone: int = 0
    _others_turn: bool = False
    # Lanes and arrivals keep waiters that have left until they reach the front, or until they
    # outnumber the rest. See `_tidy`.
    _lanes: dict[float, deque[T]] = attrs.field(factory=dict)
    _priorities: list[float] = attrs.field(factory=list)  # Of the lanes, the largest last.
    _in_lanes: int = 0
    _arrivals: deque[T] = attrs.field(factory=deque)

    def join(self, waiter: T, priority: float) -> bool:
        """Let ``waiter`` join the line; return whether that may have changed the head."""
        waiter.in_line = True
        # All those now in line go first in any case, and don't count as overtaking.
        waiter.overdue_at = self._gone + self.count + MAX_OVERTAKES
        self.count += 1
        self._in_lanes += 1
        self._arrivals.append(waiter)
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = deque()
            insort(self._priorities, priority)
        behind_another = bool(lane) and lane[0].in_line
        lane.append(waiter)
        return not behind_another and self._most_urgent() is waiter

    def by_priority(self) -> dict[float, int]:
        """Return how many wait, by priority, the largest first."""
        if len(self._priorities) == 1:  # Nearly always, and then nobody needs to be counted.
            return {self._priorities[0]: self.count} if self.count else {}
        counts = {
            priority: sum(waiter.in_line for waiter in self._lanes[priority])
            for priority in reversed(self._priorities)
        }
        return {priority: count for priority, count in counts.items() if count}

    def head(self) -> T | None:
        """Return the one whose turn it is, or ``None`` if nobody waits."""
        if not self.count:
            return None
        arrivals = self._arrivals
        while not arrivals[0].in_line:
            arrivals.popleft()
        if self._others_turn and self._gone >= arrivals[0].overdue_at:
            return arrivals[0]
        return self._most_urgent()

    def first(self, count: int) -> list[T]:
        """Return the first in line, at most ``count``; without looking who was overtaken."""
        head = self.head()
        if head is None:
            return []
        others = (
            waiter
            for priority in reversed(self._priorities)
            for waiter in self._lanes[priority]
            if waiter.in_line and waiter is not head
        )
        return [head, *islice(others, count - 1)]

    def _most_urgent(self) -> T:
        # Ends: somebody is in line, and so in a lane.
        while True:
            lane = self._lanes[self._priorities[-1]]
            while lane:
                first = lane[0]
                if first.in_line:
                    return first
                lane.popleft()
                self._in_lanes -= 1
            del self._lanes[self._priorities.pop()]

    def serve(self, head: T) -> None:
        """Take the head out of the line, because it got what it was waiting for."""
        self._gone += 1
        self._others_turn = not self._others_turn
        # The same as `leave`, inlined because every grant would have to call it.
        head.in_line = False
        self.count -= 1
        if self._in_lanes + len(self._arrivals) > 4 * self.count + 64:
            self._tidy()

    def leave(self, waiter: T) -> None:
        """Take ``waiter`` out of the line, wherever it is."""
        waiter.in_line = False
        self.count -= 1
        if self._in_lanes + len(self._arrivals) > 4 * self.count + 64:
            self._tidy()

    def clear(self) -> list[T]:
        """Empty the line, and return who was in it, in order of arrival."""
        waiters = [waiter for waiter in self._arrivals if waiter.in_line]
        for waiter in waiters:
            waiter.in_line = False
        self.count = 0
        self._tidy()
        return waiters

    def _tidy(self) -> None:
        """Drop those that have left, so that they don't pile up behind a waiting head."""
        lanes = {
            priority: deque(waiter for waiter in lane if waiter.in_line)
            for priority, lane in self._lanes.items()
        }
        self._lanes = {priority: lane for priority, lane in lanes.items() if lane}
        self._priorities = sorted(self._lanes)
        self._in_lanes = self.count
        self._arrivals = deque(waiter for waiter in self._arrivals if waiter.in_line)
