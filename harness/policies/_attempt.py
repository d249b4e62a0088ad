"""What happens to one item: how long it may take, how often it is tried, what replaces it.

One frozen value, `Attempt`, says it all; fan-outs, pipelines and routers take the same. Plain
arithmetic: no clock, no randomness, no `await`. Whoever runs the attempts supplies those.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

import attrs

from harness._arguments import check_count, check_fraction, check_seconds

RetryOn = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], object]
"""Which errors to retry: a class, several, or a function of the error."""


def _seconds(advice: str, *, least: float = 0.0) -> Any:
    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        call = f"{type(instance).__name__}({attribute.name}=...)"
        check_seconds(call, value, advice=advice, least=least)

    return check


def _fraction(advice: str) -> Any:
    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        call = f"{type(instance).__name__}({attribute.name}=...)"
        check_fraction(call, value, advice=advice)

    return check


@attrs.frozen
class Retry:
    """Try again after a failure, with growing delays.

    The delay before retry n is ``first_delay * factor ** (n - 1)`` seconds, at most ``max_delay``,
    spread by ``jitter``. If the error says how long to wait (an attribute ``retry_after`` in
    seconds, or ``Retry-After`` in its response headers) that is the least. A retry that would
    sleep past the deadline isn't made: the real error comes out at once.

    An error that says "too many requests" (`RateLimitedError`, or a status of 429 or 529) spends
    no attempt; the waits for those end at the deadline, or after ten minutes in all.
    """

    attempts: int = attrs.field(default=3)
    """How many attempts in all, the first included; from 1, which never retries."""

    first_delay: float = attrs.field(
        default=0.5, kw_only=True, validator=_seconds("0 retries at once")
    )
    """Seconds before the first retry."""

    factor: float = attrs.field(default=2.0, kw_only=True)
    """Each delay is this many times the one before; at least 1."""

    max_delay: float = attrs.field(
        default=30.0, kw_only=True, validator=_seconds("0 retries at once")
    )
    """No delay of ours is longer than this many seconds; one that the error asks for may be."""

    jitter: float = attrs.field(
        default=0.5, kw_only=True, validator=_fraction("0 makes every delay exact")
    )
    """Share of a delay that is drawn at random, so that those who failed together don't return
    together: from 0 (none) to 1 (all)."""

    on: RetryOn = attrs.field(default=Exception, kw_only=True)
    """Which errors to retry. By default every failure, timeouts (`RunTimedOut`) included."""

    @attempts.validator
    def _check_attempts(self, attribute: object, value: object) -> None:
        check_count("Retry(attempts)", value, advice="1 is a single attempt without a retry")

    @factor.validator
    def _check_factor(self, attribute: object, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"Retry(factor=...) takes a number from 1 upwards, not {value!r}")
        if not 1 <= value < math.inf:
            raise ValueError(
                f"Retry(factor=...) takes a number from 1 upwards, not {value!r}; "
                "1 keeps all delays equal"
            )

    @on.validator
    def _check_on(self, attribute: object, value: Any) -> None:
        classes = value if isinstance(value, tuple) else (value,)
        if all(isinstance(c, type) and issubclass(c, Exception) for c in classes):
            return
        if isinstance(value, (type, tuple)) or not callable(value):
            raise TypeError(
                "Retry(on=...) takes an exception class, a tuple of them, or a function of the "
                f"error, not {value!r}"
            )

    def applies_to(self, error: Exception) -> bool:
        """Return whether this error is one to retry."""
        if isinstance(self.on, (type, tuple)):
            return isinstance(error, self.on)
        return bool(self.on(error))

    def delay_seconds(self, retry: int, *, draw: float, at_least: float | None = None) -> float:
        """Return the seconds before retry number ``retry``.

        Args:
          retry: Which retry, counting from 1.
          draw: A number from 0 to 1. The caller draws it, so a seeded run repeats exactly.
          at_least: Seconds that the error asked for, if it did. The jitter then comes on top.
        """
        try:
            grown = min(self.first_delay * self.factor ** (retry - 1), self.max_delay)
        except OverflowError:  # A doubling delay gets here near retry 1,000.
            grown = self.max_delay
        if at_least is None:
            return grown * (1 - self.jitter * draw)
        return max(grown, at_least) + self.jitter * draw * grown


@attrs.frozen(kw_only=True)
class Hedge:
    """Start a second attempt for a straggler; the first answer wins, the other is cancelled.

    Give ``after`` or ``percentile``. A hedge takes no item's place, but has a budget of its own.
    """

    after: float | None = attrs.field(default=None)
    """Seconds after which an attempt is a straggler."""

    percentile: float | None = attrs.field(default=None)
    """An attempt is a straggler when it takes longer than this share of those that succeeded,
    such as 0.95. Learned while the fan-out runs: nothing is hedged before 20 have."""

    budget: float = attrs.field(
        default=0.1, validator=_fraction("0.05 allows one hedge for twenty items")
    )
    """Hedges allowed, as a share of the items started; ten are allowed in any case, so that short
    fan-outs can hedge. A provider that is slow for all then isn't asked twice by all."""

    def __attrs_post_init__(self) -> None:
        if (self.after is None) == (self.percentile is None):
            raise ValueError(
                f"Hedge takes either after=seconds or percentile=share, not after={self.after!r} "
                f"and percentile={self.percentile!r}; write Hedge(after=2.0) or "
                "Hedge(percentile=0.95)"
            )
        if self.after is not None:
            check_seconds("Hedge(after=...)", self.after, advice="say when an attempt is late")
        if self.percentile is not None:
            check_fraction("Hedge(percentile=...)", self.percentile, advice="0.95 is usual")


@runtime_checkable
class ReservingLimiter(Protocol):
    """What `Attempt.limiter` needs: something to reserve from before each attempt."""

    def reserve(self, *, tokens: int | None = None) -> AbstractAsyncContextManager[Any]:
        """Return an async context manager that waits on entry until the attempt may go ahead."""


@attrs.frozen(kw_only=True)
class Attempt:
    """What happens to one item, from its first attempt to its final result."""

    timeout: float | None = attrs.field(
        default=None, validator=attrs.validators.optional(_seconds("None is for no limit"))
    )
    """Seconds that each attempt may take, counted from the grant of its limiter; None: any."""

    retry: Retry | None = attrs.field(default=None)
    """When to try again; None: never."""

    hedge: Hedge | None = attrs.field(default=None)
    """When to start a second attempt beside the first; None: never."""

    fallback: Callable[[Any, Exception], Any] | None = attrs.field(default=None)
    """``fallback(item, error)``, plain or async, gives the value for an item that failed finally.
    Its result is ok and ``degraded``."""

    limiter: ReservingLimiter | None = attrs.field(default=None)
    """Reserved from once per attempt, for functions that call a provider themselves. Waiting for
    it counts neither as an attempt nor towards ``timeout``."""

    tokens: int | Callable[[Any], int] | None = attrs.field(default=None)
    """How many tokens to reserve: a number, or a function of the item; None: as the limiter
    thinks right."""

    @retry.validator
    def _check_retry(self, attribute: object, value: Any) -> None:
        if value is not None and not isinstance(value, Retry):
            hint = "Retry(3)" if not isinstance(value, int) else f"Retry({value})"
            raise TypeError(f"Attempt(retry=...) takes a Retry, not {value!r}; write retry={hint}")

    @hedge.validator
    def _check_hedge(self, attribute: object, value: Any) -> None:
        if value is not None and not isinstance(value, Hedge):
            raise TypeError(
                f"Attempt(hedge=...) takes a Hedge, not {value!r}; write hedge=Hedge(after=2.0)"
            )

    @fallback.validator
    def _check_fallback(self, attribute: object, value: Any) -> None:
        if value is not None and not callable(value):
            raise TypeError(
                "Attempt(fallback=...) takes a function of the item and its error, "
                f"not {value!r}; for a fixed value write fallback=lambda item, error: value"
            )

    @limiter.validator
    def _check_limiter(self, attribute: object, value: Any) -> None:
        if value is not None and not isinstance(value, ReservingLimiter):
            raise TypeError(
                f"Attempt(limiter=...) takes a limiter with a reserve() method, not {value!r}; "
                "to bound how many items run at once use the fan-out's limit="
            )

    @tokens.validator
    def _check_tokens(self, attribute: object, value: Any) -> None:
        if value is None or (callable(value) and not isinstance(value, type)):
            return
        check_count("Attempt(tokens=...)", value, advice="or give a function of the item", least=0)
