"""Who is next: the order of a line with priorities in which nobody starves.

The larger priority goes first, and inside a priority the first come. Endless requests of a
high priority could then hold one of a low priority back for ever, so there is a bound: when
the one that waits longest has been overtaken by `MAX_OVERTAKES` later arrivals, it and those
after it that were overtaken as often get every second place. A waiter so goes after at most
those that came before it, 300 that came later, and one more for each that starves with it.
It counts places, not seconds, so that no flood of arrivals can outrun it.

Each priority has a lane of its own, first in first out: most lines have one or a few, and with
those a step costs the same however long they are. (A heap of all took a twentieth of the time
of a grant in a line of a thousand.)

Pure: no clock and no tasks. Joining, leaving and finding the next cost O(1), but for a search
among the priorities when one is new.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import Generic, TypeVar

MAX_OVERTAKES = 300
"""How many later arrivals may go before a waiter until it gets every second place."""

T = TypeVar("T", bound="Place")


class Place:
    """A place in a line. What waits derives from it."""

    __slots__ = ("in_line", "overdue_at")

    in_line: bool
    """Whether it waits still. Set by the line, as is the other; there's no need to make both
    twice."""

    overdue_at: int
    """How many must have gone until it has been overtaken often enough."""


class Line(Generic[T]):
    """Waiters, the next one first."""

    __slots__ = (
        "_arrivals",
        "_gone",
        "_in_lanes",
        "_lanes",
        "_others_turn",
        "_priorities",
        "count",
    )

    def __init__(self) -> None:
        self.count: int = 0
        """How many wait; to be read, many times per request, and not to be written."""
        self._gone = 0
        self._others_turn = False
        # Lanes and arrivals hold waiters that have left the line until they come to the front,
        # or until there are more of them than of others. See `_tidy`.
        self._lanes: dict[float, deque[T]] = {}
        self._priorities: list[float] = []  # Of the lanes, the largest last.
        self._in_lanes = 0
        self._arrivals: deque[T] = deque()

    def join(self, waiter: T, priority: float) -> bool:
        """Let ``waiter`` join the line; return whether that may have changed the head."""
        waiter.in_line = True
        # All that are in line now go first in any case, and don't count as overtaking.
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
        """Take the head out of the line, because it got what it waited for."""
        self._gone += 1
        self._others_turn = not self._others_turn
        # As `leave`, which every grant would have to call.
        head.in_line = False
        self.count -= 1
        if self._in_lanes + len(self._arrivals) > 4 * self.count + 64:
            self._tidy()

    def leave(self, waiter: T) -> None:
        """Take ``waiter`` out of the line, wherever it stands."""
        waiter.in_line = False
        self.count -= 1
        if self._in_lanes + len(self._arrivals) > 4 * self.count + 64:
            self._tidy()

    def clear(self) -> list[T]:
        """Empty the line, and return who stood in it, in order of arrival."""
        waiters = [waiter for waiter in self._arrivals if waiter.in_line]
        for waiter in waiters:
            waiter.in_line = False
        self.count = 0
        self._tidy()
        return waiters

    def _tidy(self) -> None:
        """Drop those that have left, so that they don't add up behind a head that waits."""
        lanes = {
            priority: deque(waiter for waiter in lane if waiter.in_line)
            for priority, lane in self._lanes.items()
        }
        self._lanes = {priority: lane for priority, lane in lanes.items() if lane}
        self._priorities = sorted(self._lanes)
        self._in_lanes = self.count
        self._arrivals = deque(waiter for waiter in self._arrivals if waiter.in_line)
