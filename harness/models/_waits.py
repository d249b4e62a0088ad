"""How long one call may wait because its provider refuses it: arithmetic, without a clock."""

from __future__ import annotations

from math import inf

WAIT_SECONDS_AT_MOST = 600.0
"""From the first refusal on. A model that is refused for longer says so."""

# After the first refusal. Who is told to come back after 0 s, again and again, must not be a storm.
_SECONDS_AT_LEAST = 0.1


class RateLimitWaits:
    """The refusals of one call so far."""

    __slots__ = ("_count", "_until")

    def __init__(self) -> None:
        self._count = 0
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
        if not self._count:
            self._until = now + WAIT_SECONDS_AT_MOST
        self._count += 1
        delay = 0.0 if self._count == 1 else _SECONDS_AT_LEAST
        if now + max(pause, delay) >= min(deadline, self._until):
            return None
        return delay
