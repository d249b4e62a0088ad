"""How long one call may wait because its provider refuses it: arithmetic, without a clock."""

from __future__ import annotations

from math import inf

WAIT_SECONDS_AT_MOST = 600.0
"""From the first refusal on. A model that is refused for longer says so."""

# From the second refusal on, twice as long each time. Who is told to come back after 0 s, again and
# again, must not be a storm.
_SECONDS_AT_LEAST = 0.1
_SECONDS_AT_LEAST_IN_THE_END = 1.0


class RateLimitWaits:
    """The refusals of one call so far."""

    __slots__ = ("_next", "_until")

    def __init__(self) -> None:
        self._next = 0.0
        self._until = inf

    def delay_seconds(self, *, pause: float, now: float, deadline: float) -> float | None:
        """Return how long to wait before asking the limiter again, which waits for the rest.

        Args:
          pause: Seconds for which nobody may be sent.
          now: The time.
          deadline: When the caller is cut short.

        Returns:
          Seconds; ``None`` if the pause would last until the deadline, or too long in all.
        """
        if self._until == inf:
            self._until = now + WAIT_SECONDS_AT_MOST
        delay = self._next
        self._next = min(max(2 * delay, _SECONDS_AT_LEAST), _SECONDS_AT_LEAST_IN_THE_END)
        if now + max(pause, delay) >= min(deadline, self._until):
            return None
        return delay
