"""Say what happens to one item: how long it may take, how often it is tried, what replaces it.

One frozen value, `Attempt`, says it all, for fan-outs, pipelines and routers alike.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

import attrs

from harness._arguments import check_count, says_near_options
from harness.policies._fields import seconds
from harness.policies._hedge import Hedge
from harness.policies._retry import Retry


@runtime_checkable
class ReservingLimiter(Protocol):
    """What `Attempt.limiter` needs: something to reserve from before each attempt."""

    def reserve(self, *, tokens: int | None = None) -> AbstractAsyncContextManager[Any]:
        """Return an async context manager that waits on entry until the attempt may go ahead."""
        ...


def _check_retry(instance: object, attribute: object, value: Any) -> None:
    if value is not None and not isinstance(value, Retry):
        hint = "Retry(3)" if not isinstance(value, int) else f"Retry({value})"
        raise TypeError(f"Attempt(retry=...) takes a Retry, not {value!r}; write retry={hint}")


def _check_hedge(instance: object, attribute: object, value: Any) -> None:
    if value is not None and not isinstance(value, Hedge):
        raise TypeError(
            f"Attempt(hedge=...) takes a Hedge, not {value!r}; write hedge=Hedge(after=2.0)"
        )


def _check_fallback(instance: object, attribute: object, value: Any) -> None:
    if value is not None and not callable(value):
        raise TypeError(
            "Attempt(fallback=...) takes a function of the item and its error, "
            f"not {value!r}; for a fixed value write fallback=lambda item, error: value"
        )


def _check_limiter(instance: object, attribute: object, value: Any) -> None:
    if value is not None and (isinstance(value, type) or not isinstance(value, ReservingLimiter)):
        raise TypeError(
            f"Attempt(limiter=...) takes a limiter with a reserve() method, not {value!r}; "
            "to bound how many items run at once use the fan-out's limit="
        )


def _check_tokens(instance: object, attribute: object, value: Any) -> None:
    if value is None or (callable(value) and not isinstance(value, type)):
        return
    check_count("Attempt(tokens=...)", value, advice="or give a function of the item", least=0)


@says_near_options
@attrs.frozen(kw_only=True)
class Attempt:
    """What happens to one item, from its first attempt to its final result."""

    timeout: float | None = attrs.field(
        default=None,
        validator=attrs.validators.optional(seconds("None is for no limit", zero=False)),
    )
    """Seconds above 0 that each attempt may take, counted from its limiter's grant; None: no
    limit."""

    retry: Retry | None = attrs.field(default=None, validator=_check_retry)
    """When to try again; None: never."""

    hedge: Hedge | None = attrs.field(default=None, validator=_check_hedge)
    """When to start a second attempt alongside the first; None: never."""

    fallback: Callable[[Any, Exception], Any] | None = attrs.field(
        default=None, validator=_check_fallback
    )
    """``fallback(item, error)``, plain or async, gives the value for an item that failed for good.
    Its result is ok and ``degraded``."""

    limiter: ReservingLimiter | None = attrs.field(default=None, validator=_check_limiter)
    """Reserved from once per attempt, for functions that call a provider themselves. Waiting for
    it counts neither as an attempt nor towards ``timeout``."""

    tokens: int | Callable[[Any], int] | None = attrs.field(default=None, validator=_check_tokens)
    """How many tokens to reserve: a number, or a function of the item; None: the limiter's
    estimate. Only with ``limiter``."""
