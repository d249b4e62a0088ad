"""Try several ways to get one answer; the first that succeeds wins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from harness._outside_trio import refuse_outside_trio
from harness.errors import FanOutError
from harness.fanout._drop import DROP
from harness.fanout._fan_out import fan_out
from harness.fanout._plan import check_function
from harness.fanout._result import fan_out_error
from harness.policies import FirstSuccess
from harness.runs._functions import name_of, not_awaitable_error

T = TypeVar("T")


async def race(*fns: Callable[[], Awaitable[T]], name: str | None = None) -> T:
    """Call every function at once, and return the first success; the others are cancelled.

    A failure doesn't end the race while another function is still running.

    Args:
      fns: Async functions without arguments; use `functools.partial` to give them some.
      name: The name of the race's run; by default ``race``.

    Returns:
      The value of the first that succeeded.

    Raises:
      FanOutError: if all failed: one group, with the error of each. If the race's own run was
        cancelled or stopped before one succeeded there may be none, and a `QuorumError` says so.
      ValueError: if there is no function.
      TypeError: if one is not a function, or takes an argument.
      RuntimeError: outside trio.

    Checkpoint: always.

    Cancellation: all are cancelled and have ended before the cancel goes on.
    """
    if not fns:
        raise ValueError("race() takes at least one async function, and got none")
    for fn in fns:
        check_function("race()", fn, items=0)
    refuse_outside_trio("race() was called")
    try:
        results = await fan_out(
            call,
            fns,
            policy=FirstSuccess(),
            limit=len(fns),
            key=name_of,
            name="race" if name is None else name,
        )
    except FanOutError as error:
        if error.results.failed:
            # A race counts no successes, so it doesn't speak of a quorum.
            path = error.results.name
            what = f"no function of run {path!r} succeeded"
            raise fan_out_error(what, error.results.failed, error.results) from None
        raise
    value: T = results.values()[0]
    return value


async def call(fn: Callable[[], Awaitable[Any]]) -> Any:
    """Call a function that may turn out not to be async."""
    awaitable = fn()
    if not isinstance(awaitable, Awaitable):
        raise not_awaitable_error(fn, awaitable)
    value = await awaitable
    if value is DROP:
        raise ValueError(
            f"{name_of(fn)} returned DROP, which can't win a race; return an answer, "
            "or raise an error to let another function win"
        )
    return value
