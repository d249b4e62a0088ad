"""Pace a limit: let it out evenly, with a small burst.

A bucket that starts with a whole minute's limit lets through twice the limit in its first minute.
So this one holds only a small burst, and refills at the rate of the limit. `SlidingCap` keeps the
exact promise, never too much in any window; the bucket spreads the use over the window.

Invariant: ``level <= burst`` always. Below zero is debt, from a request above the burst or one that
used more than it reserved, and time repays it.

Clock-free: every method is told what time it is.
"""

from __future__ import annotations

# This close to the time, the bucket counts as full enough. Without it, rounding could make the head
# of a line wake up, find 1e-16 units missing, and sleep again.
_SLACK_SECONDS = 1e-9

# How much may be saved up while the window holds requests back, in seconds' worth. More would
# let a long wait be followed by a long rush.
_MOST_SAVED_SECONDS = 6.0


class PacedBucket:
    """A level that rises with time and falls with each request."""

    __slots__ = ("_filled_at", "burst", "per_second", "saving", "stock", "surplus")

    def __init__(self, *, per_second: float, burst: float) -> None:
        self.per_second = per_second
        self.burst = burst
        self.surplus: float = 0.0
        """What didn't fit but isn't lost: it doubles the refill rate. See `give`."""
        self.saving = False
        """Whether overflow becomes surplus: while a request waits, but for something else."""
        self.stock = burst
        """The level when it was last looked at; `level` brings it up to date."""
        self._filled_at = float("-inf")

    def level(self, now: float) -> float:
        """Return what the bucket holds; below zero is debt."""
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
        """Return whether ``amount`` can certainly be taken now, and bring `stock` up to date.

        The same answer as `wait_seconds`, except in the cases that need a closer look.
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
        # A pause moves the time from which the bucket fills into the future.
        pause = self._filled_at - now if self._filled_at > now else 0.0
        missing = (amount if amount < self.burst else self.burst) - self.level(now)
        if missing <= self.per_second * _SLACK_SECONDS:
            return pause
        seconds = missing / self.per_second
        # While it lasts, a surplus doubles the refill rate.
        if self.surplus:
            seconds = max(seconds / 2, seconds - self.surplus / self.per_second)
        return pause + seconds

    def take(self, amount: float, now: float) -> None:
        """Take ``amount``, going into debt if necessary."""
        self.stock = self.level(now) - amount

    def give(self, amount: float, now: float) -> None:
        """Put back ``amount``, which was taken but not used.

        What doesn't fit isn't thrown away, or a limiter that estimates too high would never reach
        its limit. Nor is it let out at once, or many callers settling together would make a burst.
        It doubles the refill rate until it is used up.
        """
        level = self.level(now)
        if level >= self.burst:
            return  # Time has already repaid it, and the pace holds nobody back.
        level += amount
        if level > self.burst:
            self.surplus += level - self.burst
            level = self.burst
        self.stock = level

    def numbers(self, shift: float) -> tuple[float, ...]:
        """Return its state, with times that are ``shift`` later, for `restore` elsewhere."""
        return self.stock, self._filled_at + shift, self.surplus, self.saving

    def restore(self, numbers: tuple[float, ...], shift: float) -> None:
        """Go on from what `numbers` returned."""
        self.stock, filled_at, self.surplus, saving = numbers
        self._filled_at = filled_at - shift
        self.saving = bool(saving)

    def resize(self, *, per_second: float, burst: float, now: float) -> None:
        """Change the rate and the size, and keep what is in the bucket or owed."""
        level = self.level(now)
        self.per_second = per_second
        self.burst = burst
        self.stock = min(level, burst)
        self.surplus = min(self.surplus, per_second * _MOST_SAVED_SECONDS)

    def drain_until(self, moment: float, now: float, *, keep: float) -> None:
        """Hold at most ``keep`` at ``moment``, so that a pause ends with a trickle.

        Debt is still repaid meanwhile.
        """
        level = self.level(now) + max(0.0, moment - now) * self.per_second
        self.stock = min(level, keep, self.burst)
        self._filled_at = max(moment, now)
        self.surplus = 0.0
