"""Cancel a scope, and tell trio why where it wants to know."""

from __future__ import annotations

import inspect

import trio

_CANCEL_TAKES_REASON = "reason" in inspect.signature(trio.CancelScope.cancel).parameters
"""Newer trio passes a reason on to the `trio.Cancelled` that the code inside sees."""


def cancel_scope(scope: trio.CancelScope, reason: str) -> None:
    """Cancel ``scope``, telling trio why if it wants to know."""
    if _CANCEL_TAKES_REASON:
        scope.cancel(reason=reason)
    else:
        scope.cancel()
