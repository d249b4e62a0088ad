"""Count the tries at one thing, and say after a failure when to make the next.

A wait for a rate limit costs no attempt; instead, the total of such waits is bounded.
"""

from __future__ import annotations

import random
import time

import trio

from harness.policies import Attempt, Retry, is_rate_limit, retry_after_seconds

ONE_ATTEMPT = Attempt()
"""What happens to an item by default."""

WAIT_SECONDS_AT_MOST = 600.0
"""How long one item may wait for rate limits in total, or because one error asks for it; beyond
that the error is final."""

RATE_LIMIT_SECONDS_AT_LEAST = 0.1
"""The least wait for a rate limit after the first. Waits of 0, which cost no attempt, might never
end."""


class Tries:
    """The tries at one thing so far."""

    __slots__ = ("attempts", "before", "failures", "owed", "rate_limit_seconds", "rate_limits")

    def __init__(self) -> None:
        self.attempts: int = 0
        """Attempts that began, hedges included; rate-limited ones are taken back."""
        self.before: int = 0
        """How many there were before the current try."""
        self.failures: int = 0
        """Tries that failed for a reason other than a rate limit."""
        self.rate_limits: int = 0
        self.rate_limit_seconds: float = 0.0
        self.owed: bool = False
        """Whether the latest try failed and another should follow. If it all ends like this, time
        ran out."""

    def delay_seconds(self, retry: Retry, error: Exception) -> float | None:
        """Note a failure; return the seconds to wait before the next try, None if there is none."""
        asked = retry_after_seconds(error, now=time.time())
        if is_rate_limit(error):
            self.attempts = self.before  # The limiter may have refused it before it counted.
            self.rate_limits += 1
            delay = retry.delay_seconds(self.rate_limits, draw=random.random(), at_least=asked)
            if self.rate_limits > 1:
                delay = max(delay, RATE_LIMIT_SECONDS_AT_LEAST)
            if self.rate_limit_seconds + delay > WAIT_SECONDS_AT_MOST:
                return None
            self.rate_limit_seconds += delay
            return delay
        self.failures += 1
        if self.failures >= retry.attempts:
            return None
        if asked is not None and asked > WAIT_SECONDS_AT_MOST:
            return None
        return retry.delay_seconds(self.failures, draw=random.random(), at_least=asked)


def too_late(delay_seconds: float) -> bool:
    """Return whether a wait would end at or past the deadline.

    Then the real error says more than the timeout the wait would turn into.
    """
    return trio.current_time() + delay_seconds >= trio.current_effective_deadline()
