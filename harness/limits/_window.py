"""Keep to a limit in any window: exact and sliding.

The log holds one cell for each moment at which something was taken: when, and how much. A
charge leaves the window exactly one period after it was made, so two charges a period
apart aren't in one window, and any two less than that are.

Bounded memory: up to `EXACT_CELLS` different moments in one window are kept one by one. Beyond
that, charges closer together than the period / `EXACT_CELLS` share a cell, and a cell counts from
the *latest* charge in it. So a shared cell can free its charges late, by at most 1/2048 of the
period, and never early: the promise stays exact, and no more than 2 x `EXACT_CELLS` cells are ever
alive.

A charge is found again by its time: it is in the first cell that isn't older.

Clock-free: every method is told what time it is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from math import inf, nextafter
from typing import Protocol

import attrs

EXACT_CELLS = 2048
"""How many moments of a window are kept apart before neighbours share a cell."""


class Window(Protocol):
    """A log of what was taken during the last period; `SlidingCap` says what each part does."""

    limit: float
    period: float
    used_before: float

    def used(self, now: float) -> float: ...
    def taken_since(self, moment: float) -> float: ...
    def free_at(self, amount: float, now: float) -> float: ...
    def take(self, amount: float, now: float) -> None: ...
    def adjust(self, amount: float, *, taken_at: float, now: float) -> None: ...


@attrs.define(eq=False, kw_only=True, repr=False)
class SlidingCap:
    """A log of what was taken during the last period."""

    limit: float
    period: float
    used_before: float = attrs.field(default=0, init=False)
    """What was taken, including what may have left the window since the last look.

    If an amount fits on top of this, it fits, and no closer look is needed."""

    # Two flat lists with a moving head, rather than a deque of pairs: the garbage collector
    # needn't look at them, and they allow a binary search.
    _stamps: list[float] = attrs.field(factory=list[float], init=False)
    _amounts: list[float] = attrs.field(factory=list[float], init=False)
    _head: int = attrs.field(default=0, init=False)
    # Until when the newest cell takes charges; its stamp moves to the latest of them.
    _shared_until: float = attrs.field(default=-inf, init=False)

    def charges(self) -> Iterator[tuple[float, float]]:
        """Yield when something was taken, and how much, the oldest first."""
        return islice(zip(self._stamps, self._amounts, strict=True), self._head, None)

    def used(self, now: float) -> float:
        """Return what was taken during the period that ends now."""
        self._forget(now)
        return self.used_before

    def taken_since(self, moment: float) -> float:
        """Return what was taken after ``moment``, which is less than a period ago."""
        return sum(self._amounts[bisect_right(self._stamps, moment, self._head) :])

    def cells(self) -> int:
        """Return how many cells are kept, for tests of the bound."""
        return len(self._stamps)

    def free_at(self, amount: float, now: float) -> float:
        """Return when ``amount`` may be taken; ``now`` if it may be now.

        An amount above the whole limit may be taken when the window is empty.
        """
        self._forget(now)
        excess = self.used_before + (amount if amount < self.limit else self.limit) - self.limit
        # Amounts are nearly always whole numbers; fractions get room for rounding.
        slack = self.limit * 1e-12
        if excess <= slack:
            return now
        # Ends after as many cells as it takes to free the amount, at most all of them.
        for index in range(self._head, len(self._stamps)):
            excess -= self._amounts[index]
            if excess <= slack:
                return self._end_of(self._stamps[index])
        return self._end_of(self._stamps[-1])

    def take(self, amount: float, now: float) -> None:
        """Charge ``amount``, which is not 0, to this moment."""
        self.used_before += amount
        if now < self._shared_until:
            self._stamps[-1] = now
            self._amounts[-1] += amount
        else:
            self._open_cell(amount, now)

    def adjust(self, amount: float, *, taken_at: float, now: float) -> None:
        """Change a charge that was made at ``taken_at`` by ``amount``, up or down.

        A charge that has left the window took all of its amount with it. What it turns out to have
        used beyond that is charged to now.
        """
        index = len(self._stamps)
        if now - taken_at < self.period:
            index = bisect_left(self._stamps, taken_at, self._head)
        if index < len(self._stamps):
            self._amounts[index] += amount
            self.used_before += amount
        elif amount > 0:
            self.take(amount, now)

    def _open_cell(self, amount: float, now: float) -> None:
        if len(self._stamps) - self._head >= EXACT_CELLS:
            self._forget(now)
        crowded = len(self._stamps) - self._head >= EXACT_CELLS
        self._stamps.append(now)
        self._amounts.append(amount)
        # Charges of one moment share a cell in any case.
        self._shared_until = now + self.period / EXACT_CELLS if crowded else nextafter(now, inf)

    def _forget(self, now: float) -> None:
        """Drop the cells that have left the window."""
        stamps, period = self._stamps, self.period
        head, count = self._head, len(self._stamps)
        while head < count and now - stamps[head] >= period:
            self.used_before -= self._amounts[head]
            head += 1
        if head == self._head:
            return
        if head == count:
            stamps.clear()
            self._amounts.clear()
            self.used_before = 0  # Otherwise fractions would leave rounding errors behind.
            self._shared_until = -inf
            head = 0
        elif head > EXACT_CELLS:
            del stamps[:head]
            del self._amounts[:head]
            head = 0
        self._head = head

    def _end_of(self, stamp: float) -> float:
        """Return the first moment at which a charge of ``stamp`` is outside the window."""
        end = stamp + self.period
        # The sum is rounded, perhaps to a moment that is still inside.
        while end - stamp < self.period:
            end = nextafter(end, inf)
        return end
