"""Find how many requests at once a provider bears: grow by one, cut by half.

Three clocks, kept apart. A cut starts the *cut* clock, and until it has run there is no other
cut: one overload answers many requests. It holds back *growth* as long. A server error
holds back growth only. How long the provider wants no requests at all, the *pause*, is not
our affair: if each refusal with a long ``Retry-After`` moved one common clock, the limit
would be cut once and then stay for ever.

Grows only when all places are taken, or an idle limiter would grow without having tried.

Clock-free: `Aimd.record` is told what time it is.
"""

from __future__ import annotations

import math

CUT_FACTOR = 0.5
"""What a cut leaves of the limit."""


class Aimd:
    """Additive increase, multiplicative decrease."""

    __slots__ = ("_cooldown", "_cut_until", "_frozen_until", "_maximum", "_minimum", "_size")

    def __init__(self, *, minimum: int, start: int, maximum: int, cooldown: float) -> None:
        self._minimum = minimum
        self._maximum = maximum
        self._cooldown = cooldown
        self._size = float(start)
        self._cut_until = -math.inf
        self._frozen_until = -math.inf

    @property
    def limit(self) -> int:
        """How many requests at once are allowed now."""
        return int(self._size)

    def record(self, *, status: int, in_use: int, now: float) -> None:
        """Take over the outcome of one request.

        Args:
          status: The response's status.
          in_use: How many requests were in flight, this one included.
          now: The time.
        """
        if status == 429:
            if now >= self._cut_until:
                self._size = max(float(self._minimum), self._size * CUT_FACTOR)
                self._cut_until = now + self._cooldown
                self._frozen_until = max(self._frozen_until, self._cut_until)
        elif status >= 500:
            self._frozen_until = max(self._frozen_until, now + self._cooldown)
        elif status < 400 and now >= self._frozen_until and in_use >= self.limit:
            # One more for each full round of requests that went well.
            self._size = min(float(self._maximum), self._size + 1 / self._size)
