"""Cancel a scope, and tell trio why if it wants to know; or have no scope at all."""

from __future__ import annotations

import inspect
import math

import trio

_CANCEL_TAKES_REASON = "reason" in inspect.signature(trio.CancelScope.cancel).parameters
"""Newer trio passes a reason on to the `trio.Cancelled` that the code inside sees."""


def cancel_scope(scope: trio.CancelScope, reason: str) -> None:
    """Cancel ``scope``, telling trio why if it wants to know."""
    if _CANCEL_TAKES_REASON:
        scope.cancel(reason=reason)
    else:
        scope.cancel()


class NoScope:
    """Stands in for the cancel scope of a run that owns only state: it never cancels.

    A plain function can't be cancelled, and outside trio there is nothing to cancel it.
    """

    __slots__ = ()

    deadline = math.inf
    cancel_called = False


NO_SCOPE: trio.CancelScope = NoScope()  # type: ignore[assignment]
"""What such runs have; typed like what all others have, so that nobody else has to check."""
