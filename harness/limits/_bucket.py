"""Pace a limit: let it out evenly, with a small burst.

A bucket that starts full of a whole minute's limit lets twice the limit pass in its first
minute. So this one holds only a small burst, and refills at the rate of the limit. The
exact promise, never too much in any window, is kept by `SlidingCap`; the bucket is there
so that the use of a window is spread over it.

Invariant: ``level <= burst`` always. It may be below zero: that is debt, from a request
above the burst or one that used more than it had reserved, and time repays it.

Clock-free: every method is told what time it is.
"""

from __future__ import annotations

# The bucket counts as full enough when this little time is missing. Without it, rounding
# could make the head of a line wake up, find 1e-16 units missing, and sleep again.
_SLACK_SECONDS = 1e-9

# How much may be saved up while the window holds requests back, in seconds' worth. More would
# let a long wait be followed by a long rush.
_MOST_SAVED_SECONDS = 6.0


class PacedBucket:
    """A level that time fills and requests drain."""

    __slots__ = ("_filled_at", "burst", "per_second", "saving", "stock", "surplus")

    def __init__(self, *, per_second: float, burst: float) -> None:
        self.per_second = per_second
        self.burst = burst
        self.surplus: float = 0.0
        """What didn't fit and isn't lost: it doubles the speed of filling. See `give`."""
        self.saving = False
        """Whether what overflows becomes surplus: while a request waits, but not for this."""
        self.stock = burst
        """The level when it was last looked at; `level` brings it up to date."""
        self._filled_at = float("-inf")

    def level(self, now: float) -> float:
        """Return what the bucket holds; below zero, what is owed."""
        elapsed = now - self._filled_at
        if elapsed > 0:
            self._filled_at = now
            gained = elapsed * self.per_second
            if self.saving:
                overflow = self.stock + gained - self.burst
                if overflow > 0:
                    most = self.per_second * _MOST_SAVED_SECONDS
                    self.surplus = max(self.surplus, min(self.surplus + overflow, most))
            elif self.surplus:
                extra = min(self.surplus, gained)
                self.surplus -= extra
                gained += extra
            stock = self.stock + gained
            self.stock = stock if stock < self.burst else self.burst
        return self.stock

    def has(self, amount: float, now: float) -> bool:
        """Return whether ``amount`` may surely be taken now; afterwards `stock` is up to date.

        It says what `wait_seconds` says, but for the cases that need a closer look.
        """
        elapsed = now - self._filled_at
        if elapsed < 0:
            return False  # Paused.
        if self.surplus or self.saving:
            return self.level(now) >= amount
        stock = self.stock + elapsed * self.per_second
        self.stock = stock if stock < self.burst else self.burst
        self._filled_at = now
        return self.stock >= amount

    def wait_seconds(self, amount: float, now: float) -> float:
        """Return how long it takes until ``amount`` may be taken; 0 if it may be now.

        An amount above the burst may be taken when the bucket is full: it then goes into
        debt by the rest.
        """
        # A pause puts the moment from which the bucket fills into the future.
        pause = self._filled_at - now if self._filled_at > now else 0.0
        missing = (amount if amount < self.burst else self.burst) - self.level(now)
        if missing <= self.per_second * _SLACK_SECONDS:
            return pause
        seconds = missing / self.per_second
        # A surplus doubles the speed of filling while it lasts.
        if self.surplus:
            seconds = max(seconds / 2, seconds - self.surplus / self.per_second)
        return pause + seconds

    def take(self, amount: float, now: float) -> None:
        """Take ``amount``, into debt if need be."""
        self.stock = self.level(now) - amount

    def give(self, amount: float, now: float) -> None:
        """Put back ``amount`` that was taken and not used.

        What doesn't fit isn't poured away, or a limiter whose estimates are too high would
        never reach its limit. It isn't let out at once either, or everybody settling in one
        moment would make a burst. It doubles the speed of filling until it is used up.
        """
        level = self.level(now)
        if level >= self.burst:
            return  # Time has repaid it already, and the pace holds nobody back.
        level += amount
        if level > self.burst:
            self.surplus += level - self.burst
            level = self.burst
        self.stock = level

    def resize(self, *, per_second: float, burst: float, now: float) -> None:
        """Change the speed and the size, and keep what is in the bucket or owed."""
        level = self.level(now)
        self.per_second = per_second
        self.burst = burst
        self.stock = min(level, burst)

    def drain_until(self, moment: float, now: float, *, keep: float) -> None:
        """Hold at most ``keep`` at ``moment``, so that a pause ends with a trickle.

        Debt is repaid meanwhile as always.
        """
        level = self.level(now) + max(0.0, moment - now) * self.per_second
        self.stock = min(level, keep, self.burst)
        self._filled_at = max(moment, now)
        self.surplus = 0.0
