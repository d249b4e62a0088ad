"""Hold the items that were read and not yet started, and say which is the next.

Plain bookkeeping, without a clock or an `await`. The largest priority is next, of two equal ones
the item that came first. So that nothing starves, an item that was overtaken by as many later
items as the look-ahead is deep is next whatever its priority.

Why that is cheap: all items before the oldest that waits have been started, so the number of
those that overtook it is a subtraction, and none that waits was overtaken more often than the
oldest. Nothing has to be counted per item, and no priority has to grow with time.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from harness.policies import Priority


class Waiting:
    """An item that waits for its turn."""

    __slots__ = ("index", "item", "priority", "problem")

    def __init__(self, index: int, item: Any, priority: float, problem: Exception | None) -> None:
        self.index = index
        """Its place in the input."""
        self.item = item
        self.priority = priority
        self.problem = problem
        """What the priority's function raised for it, if it did."""


class Lookahead:
    """The items that wait. They are numbered as they are put in, from 0."""

    def __init__(self, priority: Priority) -> None:
        self._function = priority.function
        self.depth = priority.lookahead
        """How many may wait at most; whoever puts items in sees to it."""
        self.pulled = 0
        """How many items were put in, ever."""
        self.waiting: dict[int, Waiting] = {}
        """Those that wait, by index and in input order; to be looked at."""
        self._best: list[tuple[float, int]] = []
        """A heap of (minus the priority, index); may hold some that don't wait any more."""
        self._oldest: deque[int] = deque()
        """Indexes in input order; may begin with some that don't wait any more."""

    def put(self, item: Any) -> None:
        """Add an item, and ask for its priority.

        One for which there is none goes first: it is going to fail, and the sooner that is seen
        the less was done in vain.
        """
        index = self.pulled
        self.pulled += 1
        priority, problem = math.inf, None
        try:
            priority = _checked(self._function(item))
        except Exception as error:
            problem = error
        self.waiting[index] = Waiting(index, item, priority, problem)
        heapq.heappush(self._best, (-priority, index))
        self._oldest.append(index)

    def take(self) -> Waiting:
        """Return the item that is next, which then waits no more. There must be one."""
        waiting = self.waiting
        while self._oldest[0] not in waiting:
            self._oldest.popleft()
        oldest = self._oldest[0]
        started = self.pulled - len(waiting)
        if started - oldest >= self.depth:
            return self._out(oldest)
        while True:
            _, index = heapq.heappop(self._best)
            if index in waiting:
                return self._out(index)

    def drain(self) -> Iterator[Waiting]:
        """Take out all that wait, in input order."""
        while self.waiting:
            yield self._out(next(iter(self.waiting)))

    def depths(self) -> dict[float, int]:
        """Return how many wait by priority, the largest first."""
        counts = Counter(one.priority for one in self.waiting.values())
        return {priority: counts[priority] for priority in sorted(counts, reverse=True)}

    def _out(self, index: int) -> Waiting:
        one = self.waiting.pop(index)
        # Those that went by age are still in the heap. Without this, they would gather at its
        # bottom as long as more urgent items keep coming.
        if len(self._best) > 2 * len(self.waiting) + 8:
            self._best = [entry for entry in self._best if entry[1] in self.waiting]
            heapq.heapify(self._best)
        return one


def _checked(priority: Any) -> float:
    if isinstance(priority, (int, float)) and not math.isnan(priority):
        return priority
    raise TypeError(
        f"priority= is a function that must return a number for an item, and returned {priority!r}"
    )
