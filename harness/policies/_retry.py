"""Say when to try again, and how long to wait first.

Plain arithmetic: no clock, no randomness, no `await`. Whoever makes the attempts supplies those.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import attrs

from harness._arguments import check_count, says_near_options
from harness._root_errors import root_errors
from harness.errors import (
    BudgetExceeded,
    EffectUnknownError,
    ModelRequestTooLargeError,
    QuotaExhaustedError,
)
from harness.policies._fields import fraction, seconds
from harness.policies._retry_after import is_too_large, may_succeed

RetryOn = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], object]
"""Which errors to retry: a class, several, or a function of the error."""

_FINAL = (
    QuotaExhaustedError,
    BudgetExceeded,
    EffectUnknownError,
    ModelRequestTooLargeError,
)
"""Errors that another attempt would only meet again."""


def _check_attempts(instance: object, attribute: object, value: Any) -> None:
    check_count("Retry(attempts)", value, advice="1 is a single attempt without a retry")


def _check_factor(instance: object, attribute: object, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"Retry(factor=...) takes a number from 1 upwards, not {value!r}")
    if not 1 <= value < math.inf:
        raise ValueError(
            f"Retry(factor=...) takes a number from 1 upwards, not {value!r}; "
            "1 keeps all delays equal"
        )


def _check_on(instance: object, attribute: object, value: Any) -> None:
    classes = value if isinstance(value, tuple) else (value,)
    if all(isinstance(c, type) and issubclass(c, Exception) for c in classes):
        return
    if (
        isinstance(value, (type, tuple))
        or not callable(value)
        or inspect.iscoroutinefunction(value)
    ):
        raise TypeError(
            "Retry(on=...) takes an exception class, a tuple of them, or a plain function of the "
            f"error, not {value!r}"
        )


def _on_in_words(on: RetryOn) -> str:
    return repr(on) if isinstance(on, (type, tuple)) else getattr(on, "__qualname__", repr(on))


@says_near_options
@attrs.frozen
class Retry:
    """Try again after a failure, with growing delays.

    The delay before retry n is ``first_delay * factor ** (n - 1)`` seconds, at most ``max_delay``,
    spread by ``jitter``. If the error says how long to wait (an attribute ``retry_after`` in
    seconds, or ``Retry-After`` in its response headers), that is the minimum. A retry that would
    sleep past the deadline isn't made: the real error comes out at once.

    An error that says "too many requests" (`RateLimitedError`, or a status of 429 or 529) uses up
    no attempt; waiting for those ends at the deadline, or after ten minutes in total. One that says
    a quota or a budget is used up (`QuotaExhaustedError`, `BudgetExceeded`), or that the request
    alone is above the limit, is final, and so is a group of only such errors.
    """

    attempts: int = attrs.field(default=3, validator=_check_attempts)
    """How many attempts in total, the first included; at least 1, which never retries."""

    first_delay: float = attrs.field(
        default=0.5, kw_only=True, validator=seconds("0 retries at once")
    )
    """Seconds before the first retry."""

    factor: float = attrs.field(default=2.0, kw_only=True, validator=_check_factor)
    """Each delay is this many times the one before; at least 1."""

    max_delay: float = attrs.field(
        default=30.0, kw_only=True, validator=seconds("0 retries at once")
    )
    """No delay is longer than this many seconds, except one that the error asks for."""

    jitter: float = attrs.field(
        default=0.5, kw_only=True, validator=fraction("0 makes every delay exact")
    )
    """Share of a delay that is drawn at random, so that attempts that failed together don't return
    together: from 0 (none) to 1 (all)."""

    on: RetryOn = attrs.field(
        default=may_succeed, kw_only=True, validator=_check_on, repr=_on_in_words
    )
    """Which errors to retry. By default every failure, timeouts (`RunTimedOut`) included, except an
    HTTP status such as 400, 401, 403 or 404: the same request would only meet it again."""

    def applies_to(self, error: Exception) -> bool:
        """Return whether to retry after this error.

        Never after a final error, whatever `on` says: a `QuotaExhaustedError` stays until the quota
        is back, a `BudgetExceeded` and an `EffectUnknownError` until somebody decides; and a
        request above the limit stays so.
        """
        roots = root_errors(error)
        if roots and all(isinstance(root, _FINAL) or is_too_large(root) for root in roots):
            return False
        if isinstance(self.on, (type, tuple)):
            return isinstance(error, self.on)
        return bool(self.on(error))

    def delay_seconds(self, retry: int, *, draw: float, at_least: float | None = None) -> float:
        """Return the seconds before retry number ``retry``.

        Args:
          retry: Which retry, counting from 1.
          draw: A number from 0 to 1. The caller draws it, so a seeded run repeats exactly.
          at_least: Seconds that the error asked for, if any. The jitter then comes on top.
        """
        try:
            grown = min(self.first_delay * self.factor ** (retry - 1), self.max_delay)
        except OverflowError:  # A doubling delay gets here near retry 1,000.
            grown = self.max_delay if self.first_delay else 0.0
        if at_least is None:
            return grown * (1 - self.jitter * draw)
        return max(grown, at_least) + self.jitter * draw * grown
