"""Find how many concurrent requests a provider can take: grow by one, cut by half.

Three clocks, kept apart. A cut starts the *cut* clock, and there is no other cut until it has run
out, because one overload refuses many requests. It holds back *growth* for as long. A server error
holds back growth only. How long the provider wants no requests at all, the *pause*, is ignored
here: if every refusal with a long ``Retry-After`` moved one common clock, the limit would be cut
once and then never move again.

It grows only when all places are taken, or an idle limiter would grow untested.

Clock-free: `Aimd.record` is told what time it is.
"""

from __future__ import annotations

import math

CUT_FACTOR = 0.5
"""The share of the limit that a cut leaves."""


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
        """How many concurrent requests are allowed now."""
        return int(self._size)

    def record(self, *, status: int, in_use: int, now: float) -> None:
        """Record the outcome of one request.

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
