"""Rest a provider after failures, longer each time.

A failure is a server error or a broken connection. It starts a rest unless at least two good
answers came between it and the failure before it. So a failure in the very first answer starts one,
and a failure among many good answers doesn't. While a provider rests, a pool uses the next one;
then one answer decides again. A refusal for rate isn't a failure: pauses deal with that.

Clock-free: every method is told what time it is.
"""

from __future__ import annotations

import math

_GOOD_ENOUGH = 2  # Between two failures; with fewer, more than every third answer is a failure.
_FIRST_REST_SECONDS = 10.0
_LONGEST_REST_SECONDS = 300.0


class Health:
    """How well one provider has answered lately."""

    __slots__ = ("_next_rest_seconds", "good", "rests_until")

    def __init__(self) -> None:
        self.good: int = 0
        """Good answers since the last failure. Whoever gets one adds to it: see `failed`."""
        self.rests_until: float = -math.inf
        """Until when a pool should use another provider."""
        self._next_rest_seconds = _FIRST_REST_SECONDS

    def numbers(self, shift: float) -> tuple[float, ...]:
        """Return its state, with times that are ``shift`` later, for `restore` elsewhere."""
        return self.good, self.rests_until + shift, self._next_rest_seconds

    def restore(self, numbers: tuple[float, ...], shift: float) -> None:
        """Go on from what `numbers` returned."""
        good, rests_until, self._next_rest_seconds = numbers
        self.good, self.rests_until = int(good), rests_until - shift

    def failed(self, now: float) -> None:
        """Record a failure. A good answer is just added to `good`, to be as cheap as possible."""
        good, self.good = self.good, 0
        if now < self.rests_until:
            return  # Sent before the rest began, so it is no news.
        if good >= _GOOD_ENOUGH:
            self._next_rest_seconds = _FIRST_REST_SECONDS
            return
        self.rests_until = now + self._next_rest_seconds
        self._next_rest_seconds = min(2 * self._next_rest_seconds, _LONGEST_REST_SECONDS)
