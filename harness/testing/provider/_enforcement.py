"""Judge one amount against one limit, the way model providers do.

Everything here is arithmetic on a number of seconds that the caller passes in;
nothing reads a clock, so a test can check exact values. There are three allowances:

- `Bucket` refills continuously and holds the whole limit: a client that was idle may spend a full
  minute's worth at once.
- `FixedWindow` counts from zero again at each multiple of its length.
- `Paced` is a fixed minute in which, in addition, no second may hold more than its share.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import attrs

MINUTE_SECONDS = 60.0

# A client that waits for exactly the announced time computes the same moment another way; it
# mustn't be refused over the last bits of a float.
_UNIT_TOLERANCE = 1e-6
_WINDOW_TOLERANCE = 1e-9


@attrs.define(eq=False)
class Bucket:
    """A limit that refills continuously.

    Its only state is the moment at which it will be full again. A charge moves that moment on, and
    everything else follows from it, so reading changes nothing and rounding errors don't pile up.
    """

    limit: float
    period_seconds: float = MINUTE_SECONDS
    _full_at: float = attrs.field(default=-math.inf, init=False)

    def remaining(self, now: float) -> float:
        """Return what is left; negative after an overrun."""
        missing_seconds = max(0.0, self._full_at - now)
        return self.limit - missing_seconds * self.limit / self.period_seconds

    def wait_seconds(self, amount: float, now: float) -> float:
        """Return how long until ``amount`` would be accepted: 0 for now, infinity for never."""
        if amount > self.limit:
            return math.inf
        short_by = amount - self.remaining(now)
        if short_by <= _UNIT_TOLERANCE:
            return 0.0
        return short_by * self.period_seconds / self.limit

    def reset_seconds(self, now: float) -> float:
        """Return how long until the bucket is full."""
        return max(0.0, self._full_at - now)

    def charge(self, amount: float, now: float) -> None:
        """Take ``amount``, even if that leaves less than nothing."""
        self._full_at = max(self._full_at, now) + amount * self.period_seconds / self.limit


@attrs.define(eq=False)
class FixedWindow:
    """A limit that starts over at each multiple of the window's length.

    An overrun is forgotten with its window, as with real providers.
    """

    limit: float
    period_seconds: float
    _window: int = attrs.field(default=0, init=False)
    _used: float = attrs.field(default=0.0, init=False)

    def remaining(self, now: float) -> float:
        """Return what is left in this window; negative after an overrun."""
        return self.limit - (self._used if self._window == self._window_at(now) else 0.0)

    def wait_seconds(self, amount: float, now: float) -> float:
        """Return how long until ``amount`` would be accepted: 0 for now, infinity for never."""
        if amount > self.limit:
            return math.inf
        if amount <= self.remaining(now) + _UNIT_TOLERANCE:
            return 0.0
        return self._next_window_at(now) - now

    def reset_seconds(self, now: float) -> float:
        """Return how long until the next window, or 0 while this one is untouched."""
        if self.remaining(now) >= self.limit:
            return 0.0
        return self._next_window_at(now) - now

    def charge(self, amount: float, now: float) -> None:
        """Take ``amount``, even if that leaves less than nothing."""
        window = self._window_at(now)
        if window != self._window:
            self._window = window
            self._used = 0.0
        self._used += amount

    def _window_at(self, now: float) -> int:
        return math.floor(now / self.period_seconds + _WINDOW_TOLERANCE)

    def _next_window_at(self, now: float) -> float:
        return (self._window_at(now) + 1) * self.period_seconds


@attrs.define(eq=False)
class Paced(FixedWindow):
    """A limit per minute that expects its requests to be spread evenly.

    Each second may hold a sixtieth of the limit, rounded up, so that an even flow at the limit is
    never refused. Below sixty a minute, the interval grows until it may hold one whole request.
    What is left and when it resets are those of the minute, because that is what such a provider
    announces.
    """

    period_seconds: float = attrs.field(default=MINUTE_SECONDS, init=False)
    _interval: FixedWindow = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._interval = FixedWindow(
            max(1.0, math.ceil(self.limit / MINUTE_SECONDS)),
            max(1.0, MINUTE_SECONDS / self.limit),
        )

    def wait_seconds(self, amount: float, now: float) -> float:
        """Return how long until ``amount`` would be accepted: 0 for now, infinity for never."""
        in_minute = super().wait_seconds(amount, now)
        return max(in_minute, self._interval.wait_seconds(amount, now))

    def charge(self, amount: float, now: float) -> None:
        """Take ``amount``, even if that leaves less than nothing."""
        super().charge(amount, now)
        self._interval.charge(amount, now)


Allowance: TypeAlias = Bucket | FixedWindow
"""The arithmetic behind one limit."""
