"""Hold the items that were read and not yet started, and say which is the next.

Plain bookkeeping, without a clock or an `await`. The largest priority is next, of two equal ones
the item that came first. So that nothing starves, an item that was overtaken by as many later
items as the look-ahead is deep is next whatever its priority.

Why that is cheap: all items before the oldest that waits have been started, so the number of
those that overtook it is a subtraction, and none that waits was overtaken more often than the
oldest. Nothing has to be counted per item, and no priority has to grow with time.

Where items of one key are to run one after the other, only the first that waits of a key may be
next, and that once the one before it has ended. Such a candidate counts as overtaken by all that
started since it became one.

Invariant: of each key in `Lookahead._behind`, either one item is a candidate, or one is running.
"""

from __future__ import annotations

import heapq
import inspect
import math
from collections import Counter, deque
from collections.abc import Hashable, Iterator
from typing import Any

from harness.policies import Priority


class Waiting:
    """An item that waits for its turn."""

    __slots__ = ("index", "item", "key", "priority", "problem", "since")

    def __init__(self, index: int, item: Any, priority: float, problem: Exception | None) -> None:
        self.index = index
        """Its place in the input."""
        self.item = item
        self.priority = priority
        self.problem = problem
        """What the priority's function raised for it, if it did."""
        self.key: Hashable = _NO_KEY
        """What it may not run beside another one of."""
        self.since = 0
        """How many had been started when it became a candidate; counted only with keys."""


_NO_KEY = object()


class Lookahead:
    """The items that wait. They are numbered as they are put in, from 0."""

    def __init__(self, priority: Priority) -> None:
        self._function = priority.function
        self._serial_by = priority.serial_by
        self._behind: dict[Hashable, deque[int]] = {}
        """For each key with a candidate or a running item, those that wait behind it."""
        self._running: dict[int, Hashable] = {}
        """The keys of those that were taken and have not ended, by index."""
        self.depth = priority.lookahead
        """How many may wait at most; whoever puts items in sees to it."""
        self.pulled = 0
        """How many items were put in, ever."""
        self.waiting: dict[int, Waiting] = {}
        """Those that wait, by index and in input order; to be looked at."""
        self._best: list[tuple[float, int]] = []
        """A heap of (minus the priority, index) of the candidates; may hold some that don't wait
        any more."""
        self._oldest: deque[int] = deque()
        """The candidates in the order in which they became that; may begin with some that don't
        wait any more."""

    def put(self, item: Any) -> None:
        """Add an item, and ask for its priority.

        One for which there is none goes first: it is going to fail, and the sooner that is seen
        the less was done in vain.
        """
        index = self.pulled
        self.pulled += 1
        priority, problem, key = math.inf, None, _NO_KEY
        try:
            number = 0.0 if self._function is None else _checked(self._function(item))
            if self._serial_by is not None:
                key = _checked_key(self._serial_by(item))
            priority = number
        except Exception as error:
            problem = error
        self.waiting[index] = one = Waiting(index, item, priority, problem)
        if key is not _NO_KEY:
            one.key = key
            if key in self._behind:
                self._behind[key].append(index)
                return
            self._behind[key] = deque()
        self._stand_for(one)

    @property
    def ready(self) -> bool:
        """Whether one may be next. Without keys any may that waits."""
        waiting = self.waiting
        while self._oldest and self._oldest[0] not in waiting:
            self._oldest.popleft()
        return bool(self._oldest)

    def take(self) -> Waiting:
        """Return the item that is next, which then waits no more. One must be `ready`."""
        waiting = self.waiting
        while self._oldest[0] not in waiting:
            self._oldest.popleft()
        oldest = self._oldest[0]
        started = self.pulled - len(waiting)
        before = oldest if self._serial_by is None else waiting[oldest].since
        if started - before >= self.depth:
            return self._run(oldest)
        while True:
            _, index = heapq.heappop(self._best)
            if index in waiting:
                return self._run(index)

    def ended(self, index: int) -> None:
        """Hear that an item which was taken has ended: the next one of its key may be next."""
        key = self._running.pop(index, _NO_KEY)
        if key is _NO_KEY:
            return
        behind = self._behind[key]
        while behind:
            if (one := self.waiting.get(behind.popleft())) is not None:
                self._stand_for(one)
                return
        del self._behind[key]

    def drain(self) -> Iterator[Waiting]:
        """Take out all that wait, in input order."""
        while self.waiting:
            yield self._out(next(iter(self.waiting)))

    def depths(self) -> dict[float, int]:
        """Return how many wait by priority, the largest first."""
        counts = Counter(one.priority for one in self.waiting.values())
        return {priority: counts[priority] for priority in sorted(counts, reverse=True)}

    def _stand_for(self, one: Waiting) -> None:
        """Make an item a candidate."""
        one.since = self.pulled - len(self.waiting)
        heapq.heappush(self._best, (-one.priority, one.index))
        self._oldest.append(one.index)

    def _run(self, index: int) -> Waiting:
        one = self._out(index)
        if one.key is not _NO_KEY:
            self._running[index] = one.key
        return one

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


def _checked_key(key: Any) -> Hashable:
    if inspect.iscoroutine(key):
        key.close()
        raise TypeError("serial_by= is a plain function of the item, and returned a coroutine")
    try:
        hash(key)
    except TypeError as error:
        raise TypeError(
            f"serial_by= is a function that must return what can be hashed, and returned {key!r} "
            f"({error}); return a string, a number or a tuple of them"
        ) from None
    checked: Hashable = key
    return checked
