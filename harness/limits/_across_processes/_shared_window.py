"""Keep to a limit in any window, in memory that several processes share.

The same promise, and the same arithmetic, as `harness.limits._window.SlidingCap`, which explains
it: a cell for each moment at which something was taken. There the cells are lists; here they are a
ring in shared memory. A property test holds the two to the same answers.

Whoever calls a method has the memory to itself. What it overwrites goes through ``poke``, which can
take it back if the process dies half-way. A cell behind the last one that counts needs no such
care, and the four numbers that say which cells count are kept with the rest of a limiter's state.

Clock-free. Callers tell the time by their own clock, and the cells tell it by the machine's, which
is ``shift`` later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from math import inf, nextafter

import attrs

from harness.limits._window import EXACT_CELLS

RING = 4 * EXACT_CELLS
"""How many cells there is room for: twice what a window has alive.

So a cell is used again only long after it has left, and a half-made change can be taken back."""


@attrs.define(eq=False, kw_only=True, repr=False)
class SharedWindow:
    """A log of what was taken during the last period."""

    limit: float
    period: float
    shift: float
    memory: memoryview[float]
    """The shared memory."""
    start: int
    """Where the cells are in it: `RING` times, then as many amounts."""
    poke: Callable[[int, float], None]
    """Sets a number in it."""

    used_before: float = attrs.field(default=0, init=False)
    """What was taken, including what may have left the window since the last look."""
    _head: int = attrs.field(default=0, init=False)
    _count: int = attrs.field(default=0, init=False)
    _shared_until: float = attrs.field(default=-inf, init=False)

    def numbers(self) -> tuple[float, ...]:
        """Return which cells count, for `restore` in another process."""
        return self.used_before, self._head, self._count, self._shared_until

    def restore(self, numbers: tuple[float, ...]) -> None:
        """Go on from what `numbers` returned."""
        used, head, count, self._shared_until = numbers
        self.used_before, self._head, self._count = used, int(head), int(count)

    def charge_all_now(self, now: float) -> None:
        """Count everything as taken now, because nobody knows when it was."""
        used, self.used_before = self.used_before, 0
        self._head, self._count, self._shared_until = 0, 0, -inf
        if used > 0:
            self.take(used, now)

    def used(self, now: float) -> float:
        """Return what was taken during the period that ends now."""
        self._forget(now + self.shift)
        return self.used_before

    def taken_since(self, moment: float) -> float:
        """Return what was taken after ``moment``, which is less than a period ago."""
        moment += self.shift
        taken = 0.0
        for index in reversed(range(self._count)):
            if self.memory[self._at(index)] <= moment:
                break
            taken += self.memory[self._at(index) + RING]
        return taken

    def free_at(self, amount: float, now: float) -> float:
        """Return when ``amount`` may be taken; ``now`` if it may be now.

        An amount above the whole limit may be taken when the window is empty.
        """
        self._forget(now + self.shift)
        excess = self.used_before + (amount if amount < self.limit else self.limit) - self.limit
        slack = self.limit * 1e-12
        if excess <= slack:
            return now
        stamp = now + self.shift
        # Ends after as many cells as it takes to free the amount, at most all of them.
        for index in range(self._count):
            stamp = self.memory[self._at(index)]
            excess -= self.memory[self._at(index) + RING]
            if excess <= slack:
                break
        # By the caller's clock, that may round to a moment that is still too early.
        return max(stamp + self.period - self.shift, nextafter(now, inf))

    def take(self, amount: float, now: float) -> None:
        """Charge ``amount``, which is not 0, to this moment."""
        now += self.shift
        self.used_before += amount
        if self._count:
            last = self._at(self._count - 1)
            # Another process may have looked at its clock later, and got here first.
            now = max(now, self.memory[last])
            if now < self._shared_until:
                self.poke(last, now)
                self.poke(last + RING, self.memory[last + RING] + amount)
                return
        self._open_cell(amount, now)

    def adjust(self, amount: float, *, taken_at: float, now: float) -> None:
        """Change a charge that was made at ``taken_at`` by ``amount``, up or down.

        A charge that has left the window took all of its amount with it. What it turns out to have
        used beyond that is charged to now.
        """
        index = self._count
        if now - taken_at < self.period:
            stamp = taken_at + self.shift
            index = bisect_left(range(self._count), stamp, key=self._stamp)
        if index < self._count:
            cell = self._at(index)
            self.poke(cell + RING, self.memory[cell + RING] + amount)
            self.used_before += amount
        elif amount > 0:
            self.take(amount, now)

    def _at(self, index: int) -> int:
        return self.start + (self._head + index) % RING

    def _stamp(self, index: int) -> float:
        return self.memory[self._at(index)]

    def _open_cell(self, amount: float, now: float) -> None:
        if self._count >= EXACT_CELLS:
            self._forget(now)
        crowded = self._count >= EXACT_CELLS
        cell = self._at(self._count)
        self.memory[cell] = now
        self.memory[cell + RING] = amount
        self._count += 1
        self._shared_until = now + self.period / EXACT_CELLS if crowded else nextafter(now, inf)

    def _forget(self, now: float) -> None:
        """Drop the cells that have left the window."""
        while self._count and now - self.memory[cell := self._at(0)] >= self.period:
            self.used_before -= self.memory[cell + RING]
            self._head = (self._head + 1) % RING
            self._count -= 1
        if not self._count:
            self.used_before = 0  # Otherwise fractions would leave rounding errors behind.
            self._shared_until = -inf
