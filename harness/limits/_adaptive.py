"""Adapt the number of places to what the provider can take."""

from __future__ import annotations

import trio

from harness._arguments import says_near_options
from harness.limits._aimd import Aimd
from harness.limits._numbers import checked_amount, checked_count


@says_near_options
class AdaptiveCapacity:
    """A concurrency limit that finds itself: ``Limiter(concurrent=AdaptiveCapacity())``.

    A refusal for too many requests (429) halves it, at most once per cooldown. A full round
    of good responses while all places are taken adds one. A server error (5xx) keeps it from
    growing for one cooldown. `Reservation.settle` reports to it.

    Args:
      minimum: It never falls below this.
      start: Where it starts.
      maximum: It never grows beyond this.
      cooldown: Seconds between two cuts, and before it grows again.

    Raises:
      TypeError, ValueError: if the numbers aren't ``1 <= minimum <= start <= maximum``, or
        the cooldown is negative or not a number.
    """

    __slots__ = ("_aimd", "_cooldown", "_maximum", "_minimum", "_start")

    def __init__(
        self, minimum: int = 1, start: int = 10, maximum: int = 100, cooldown: float = 15.0
    ) -> None:
        self._minimum = checked_count("minimum", minimum)
        self._start = checked_count("start", start)
        self._maximum = checked_count("maximum", maximum)
        self._cooldown = checked_amount("cooldown", cooldown)
        if not minimum <= start <= maximum:
            raise ValueError(
                f"an adaptive capacity from {minimum} to {maximum} can't start at {start}; "
                "give minimum <= start <= maximum"
            )
        self.reset()

    @property
    def limit(self) -> int:
        """How many concurrent requests are allowed now."""
        return self._aimd.limit

    def record(self, *, status: int, in_use: int, retry_after: float | None = None) -> None:
        """Report the outcome of one request.

        Args:
          status: The response's status.
          in_use: How many requests were in flight, this one included.
          retry_after: How long the provider wants to be left alone. Accepted so that callers
            needn't leave it out, and ignored: a long pause is no reason to cut once and never
            again.
        """
        self._aimd.record(status=status, in_use=in_use, now=trio.current_time())

    def reset(self) -> None:
        """Forget everything and start over; `Limiter.reset` does this too."""
        self._aimd = Aimd(
            minimum=self._minimum,
            start=self._start,
            maximum=self._maximum,
            cooldown=self._cooldown,
        )

    def __repr__(self) -> str:
        return f"AdaptiveCapacity({self.limit} of {self._minimum} to {self._maximum})"
