"""Hold the items that were read and not yet started, and say which is next.

Plain bookkeeping, without a clock or an `await`. The largest priority is next; of two equal ones,
the item that came first. So that nothing starves, an item overtaken by as many later items as the
look-ahead is deep is next whatever its priority.

This is cheap: all items before the oldest one waiting have been started, so the number that
overtook it is a subtraction, and no waiting item was overtaken more often than the oldest. Nothing
is counted per item, and no priority has to grow with time.

If items with the same key run one after the other, only the first one waiting with a key may be
next, and only once the one before it has ended. Such a candidate counts as overtaken by everything
started since it became one.

Invariant: for each key in `Lookahead._behind`, either one item is a candidate or one is running.
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
    """An item waiting for its turn."""

    __slots__ = ("index", "item", "key", "priority", "problem", "since")

    def __init__(self, index: int, item: Any, priority: float, problem: Exception | None) -> None:
        self.index = index
        """Its place in the input."""
        self.item = item
        self.priority = priority
        self.problem = problem
        """What the priority's function raised for it, if anything."""
        self.key: Hashable = _NO_KEY
        """No other item with this key may run beside it."""
        self.since = 0
        """How many had been started when it became a candidate; counted only with keys."""


_NO_KEY = object()


class Lookahead:
    """The waiting items, numbered from 0 as they are put in."""

    def __init__(self, priority: Priority) -> None:
        self._function = priority.function
        self._serial_by = priority.serial_by
        self._behind: dict[Hashable, deque[int]] = {}
        """For each key with a candidate or a running item, the items waiting behind it."""
        self._running: dict[int, Hashable] = {}
        """The keys of items taken and not yet ended, by index."""
        self.depth = priority.lookahead
        """How many may wait at most; up to whoever puts items in."""
        self.pulled = 0
        """How many items were ever put in."""
        self.waiting: dict[int, Waiting] = {}
        """The waiting items, by index and in input order; read-only."""
        self._best: list[tuple[float, int]] = []
        """A heap of the candidates' (minus the priority, index); may hold some that no longer
        wait."""
        self._oldest: deque[int] = deque()
        """The candidates in the order in which they became one; may start with some that no longer
        wait."""

    def put(self, item: Any) -> None:
        """Add an item, and ask for its priority.

        One whose priority can't be had goes first: it is going to fail, and the sooner it does, the
        less work is wasted.
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
        """Whether an item may be next. Without keys any waiting item may."""
        waiting = self.waiting
        while self._oldest and self._oldest[0] not in waiting:
            self._oldest.popleft()
        return bool(self._oldest)

    def take(self) -> Waiting:
        """Remove and return the next item. One must be `ready`."""
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
        """Note that a taken item has ended: the following one with its key may be next."""
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
        # Items taken by age are still in the heap. Without this they would collect at the bottom
        # for as long as more urgent items keep coming.
        if len(self._best) > 2 * len(self.waiting) + 8:
            self._best = [entry for entry in self._best if entry[1] in self.waiting]
            heapq.heapify(self._best)
        return one


def _checked(priority: Any) -> float:
    if isinstance(priority, (int, float)) and not math.isnan(priority):
        return priority
    raise TypeError(
        f"priority= is a function that must return a number for an item, but returned {priority!r}"
    )


def _checked_key(key: Any) -> Hashable:
    if inspect.iscoroutine(key):
        key.close()
        raise TypeError("serial_by= takes a plain function of the item, but returned a coroutine")
    try:
        hash(key)
    except TypeError as error:
        raise TypeError(
            f"serial_by= must return something hashable for an item, but returned {key!r} "
            f"({error}); return a string, a number or a tuple of them"
        ) from None
    checked: Hashable = key
    return checked
