"""Count the tries at one thing, and say after a failure when to make the next.

A wait for a rate limit spends no attempt; all such waits together are bounded instead.
"""

from __future__ import annotations

import random
import time

import trio

from harness.policies import Attempt, Retry, is_rate_limit, retry_after_seconds

ONE_ATTEMPT = Attempt()
"""What happens to an item unless told otherwise."""

WAIT_SECONDS_AT_MOST = 600.0
"""How long one item may wait for rate limits in all, or because one error asks for it; beyond that
the error is final."""

RATE_LIMIT_SECONDS_AT_LEAST = 0.1
"""The wait for a rate limit after the first. One of 0, which spends no attempt, would never end."""


class Tries:
    """The tries at one thing so far."""

    __slots__ = ("attempts", "before", "failures", "owed", "rate_limit_seconds", "rate_limits")

    def __init__(self) -> None:
        self.attempts: int = 0
        """Attempts that began, hedges included; rate-limited ones are taken back."""
        self.before: int = 0
        """How many there were before the try that is under way."""
        self.failures: int = 0
        """Tries that failed for another reason than a rate limit."""
        self.rate_limits: int = 0
        self.rate_limit_seconds: float = 0.0
        self.owed: bool = False
        """Whether the latest try failed and is to be followed by another. If the thing ends so, it
        was for want of time."""

    def delay_seconds(self, retry: Retry, error: Exception) -> float | None:
        """Note a failure; return the seconds to wait before the next try, None if there is none."""
        asked = retry_after_seconds(error, now=time.time())
        if is_rate_limit(error):
            self.attempts = self.before  # The limiter may have refused it before it was one.
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
    """Return whether a wait would end at the deadline or past it.

    Then the real error says more than the timeout that the wait would become.
    """
    return trio.current_time() + delay_seconds >= trio.current_effective_deadline()
