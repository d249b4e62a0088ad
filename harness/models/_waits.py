"""Work out how long one call may wait because its provider refuses it, without a clock."""

from __future__ import annotations

from math import inf

WAIT_SECONDS_AT_MOST = 600.0
"""Counted from the first refusal. A model that is refused for longer says so."""

# From the second refusal on, twice as long each time. Callers told again and again to come back
# after 0 s mustn't become a storm.
_SECONDS_AT_LEAST = 0.1
_SECONDS_AT_LEAST_IN_THE_END = 1.0


class RateLimitWaits:
    """The refusals of one call so far."""

    __slots__ = ("_next", "_until")

    def __init__(self) -> None:
        self._next = 0.0
        self._until = inf

    def delay_seconds(self, *, pause: float, now: float, deadline: float) -> float | None:
        """Return how long to wait before asking the limiter again, which waits out the rest.

        Args:
          pause: Seconds during which nothing may be sent.
          now: The time.
          deadline: When the caller will be cut short.

        Returns:
          Seconds; ``None`` if the pause would last beyond the deadline, or too long in total.
        """
        if self._until == inf:
            self._until = now + WAIT_SECONDS_AT_MOST
        delay = self._next
        self._next = min(max(2 * delay, _SECONDS_AT_LEAST), _SECONDS_AT_LEAST_IN_THE_END)
        if now + max(pause, delay) >= min(deadline, self._until):
            return None
        return delay
