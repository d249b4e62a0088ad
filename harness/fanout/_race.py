"""Several ways to get one answer; the first that succeeds wins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from harness.errors import FanOutError, QuorumError
from harness.fanout._fan_out import check_callable, fan_out, name_of
from harness.policies import FirstSuccess

T = TypeVar("T")


async def race(*fns: Callable[[], Awaitable[T]], name: str | None = None) -> T:
    """Call every function at once, and return the first success; the others are cancelled.

    A failure doesn't end the race as long as somebody is still running.

    Args:
      fns: Async functions without arguments; use `functools.partial` to give them some.
      name: The name of the race's run.

    Raises:
      FanOutError: if all failed; one group with the error of each.
      ValueError: if there is no function.
      TypeError: if one is not a function.

    Checkpoint: always.

    Cancellation: all are cancelled and have ended before the cancel goes on.
    """
    if not fns:
        raise ValueError("race() takes at least one async function, and got none")
    for fn in fns:
        check_callable("race()", fn)
    try:
        results = await fan_out(
            _call,
            fns,
            policy=FirstSuccess(),
            limit=len(fns),
            key=name_of,
            name="race" if name is None else name,
        )
    except FanOutError as error:
        failures = [e for e in error.exceptions if not isinstance(e, QuorumError)]
        if failures:
            raise FanOutError(error.message, failures, error.results) from None
        raise
    value: T = results.values()[0]
    return value


async def _call(fn: Callable[[], Awaitable[Any]]) -> Any:
    return await fn()
