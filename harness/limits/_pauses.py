"""Time the pause that all callers of a limiter share, in which nothing may be sent.

A refusal starts one pause. Its epoch tells refusals apart: requests sent before the pause began may
be refused during it or after it, and that is no news. A pause ends a little later than the provider
asked, by a random amount, because many processes are told the same time; and what follows is paced,
because many tasks are waiting for it.

Pure: the time and the draw of the random number are given.
"""

from __future__ import annotations

import math

import attrs

from harness.limits._responses._heard import LONGEST_WAIT_SECONDS

_LONGEST_JITTER_SECONDS = 10.0
_LONGEST_BACKOFF_SECONDS = 60.0
# For a quota with no known reset: after this, one request may find out whether it is back.
_QUOTA_RECHECK_SECONDS = 3600.0


def jitter_seconds(seconds: float, *, draw: float) -> float:
    """Return what to add to a pause: up to a quarter second and a tenth of it, at most 10 s.

    Args:
      seconds: The pause asked for.
      draw: A number from 0 to 1.
    """
    return draw * min(0.25 + 0.1 * seconds, _LONGEST_JITTER_SECONDS)


@attrs.define(eq=False, repr=False)
class Pauses:
    """The shared pause of one limiter, and its used-up quota."""

    epoch: int = 0
    """The number of the pause; a reservation keeps the one it was granted in."""
    count: int = 0
    asked_until: float = -math.inf
    """Until when the provider, or the user, asked for a pause."""
    closed_until: float = -math.inf
    """Until when nothing is granted: the pause with its jitter, and the quota."""
    quota_until: float = -math.inf
    quota_reset_known: bool = False
    streak: int = 0
    """Refusals in a row, with no request getting through."""

    def numbers(self, shift: float) -> tuple[float, ...]:
        """Return its state, with times that are ``shift`` later, for `restore` elsewhere."""
        return (
            self.epoch,
            self.count,
            self.asked_until + shift,
            self.closed_until + shift,
            self.quota_until + shift,
            self.quota_reset_known,
            self.streak,
        )

    def restore(self, numbers: tuple[float, ...], shift: float) -> None:
        """Go on from what `numbers` returned."""
        epoch, count, asked_until, closed_until, quota_until, known, streak = numbers
        self.epoch, self.count, self.streak = int(epoch), int(count), int(streak)
        self.asked_until = asked_until - shift
        self.closed_until = closed_until - shift
        self.quota_until = quota_until - shift
        self.quota_reset_known = bool(known)

    def begin(self, seconds: float, *, now: float, draw: float) -> None:
        """Pause for ``seconds`` from now; a longer pause in progress is kept."""
        self.epoch += 1
        self.count += 1
        self.asked_until = max(self.asked_until, now + seconds)
        self.closed_until = max(
            self.closed_until, now + seconds + jitter_seconds(seconds, draw=draw)
        )

    def refused(self, seconds: float | None, *, epoch: int | None, now: float, draw: float) -> bool:
        """Record that the provider refused a request; return whether that began a pause.

        Args:
          seconds: How long the provider wants no requests, or ``None`` if it didn't say:
            then 1 s, and twice as much each time until a request gets through.
          epoch: The epoch in which the request was granted, or ``None`` if nobody knows.
          now: The time.
          draw: A number from 0 to 1, for the jitter.
        """
        if epoch is None:
            known = self.asked_until if now < self.closed_until else -math.inf
            if seconds is None and known > now:
                return False
            if seconds is not None and now + seconds <= known:
                return False
        elif epoch != self.epoch:
            return False
        if seconds is None:
            seconds = min(2.0**self.streak, _LONGEST_BACKOFF_SECONDS)
        # Bounded, because a float power of a long streak would overflow.
        self.streak = min(self.streak + 1, 10)
        self.begin(seconds, now=now, draw=draw)
        return True

    def got_through(self, *, epoch: int) -> None:
        """Record that a request granted in ``epoch`` wasn't refused."""
        if epoch == self.epoch:
            self.streak = 0

    def quota_used_up(self, seconds: float | None, *, now: float) -> None:
        """Close until the quota is back.

        A short delay that comes with it, such as from a minute's limit hit at the same time,
        doesn't say when a day's quota is back.
        """
        if seconds is not None and seconds <= LONGEST_WAIT_SECONDS:
            seconds = None
        self.epoch += 1
        self.quota_reset_known = seconds is not None
        self.quota_until = now + (_QUOTA_RECHECK_SECONDS if seconds is None else seconds)
        self.closed_until = max(self.closed_until, self.quota_until)

    def too_long(self, now: float) -> bool:
        """Return whether the pause is longer than anybody should wait in line."""
        return self.asked_until - now > LONGEST_WAIT_SECONDS
