"""Do several different things at once, and return the value of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from harness._arguments import says_where_options_are
from harness._outside_trio import refuse_outside_trio
from harness.fanout._fan_out import fan_out
from harness.fanout._plan import ELSEWHERE, check_function
from harness.fanout._race import call
from harness.runs._functions import name_of

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

_OF_FAN_OUTS = {
    **ELSEWHERE,
    **{name: f"{name}=..." for name in ("each", "limit", "policy", "within")},
}
_ELSEWHERE = {name: f"harness.fan_out(fn, items, {do})" for name, do in _OF_FAN_OUTS.items()}


@overload
async def gather(
    fn1: Callable[[], Awaitable[A]], fn2: Callable[[], Awaitable[B]], /, *, name: str | None = None
) -> tuple[A, B]: ...
@overload
async def gather(
    fn1: Callable[[], Awaitable[A]],
    fn2: Callable[[], Awaitable[B]],
    fn3: Callable[[], Awaitable[C]],
    /,
    *,
    name: str | None = None,
) -> tuple[A, B, C]: ...
@overload
async def gather(
    fn1: Callable[[], Awaitable[A]],
    fn2: Callable[[], Awaitable[B]],
    fn3: Callable[[], Awaitable[C]],
    fn4: Callable[[], Awaitable[D]],
    /,
    *,
    name: str | None = None,
) -> tuple[A, B, C, D]: ...
@overload
async def gather(*fns: Callable[[], Awaitable[A]], name: str | None = None) -> tuple[A, ...]: ...
@says_where_options_are(_ELSEWHERE)
async def gather(*fns: Callable[[], Awaitable[Any]], name: str | None = None) -> tuple[Any, ...]:
    """Call every function at once, and return the value of each, in the order of the functions.

    The first failure cancels the others. For any other policy, for a limit or retries, or to call
    one function many times, use `fan_out`.

    Args:
      fns: Async functions without arguments; use `functools.partial` to give them some.
      name: The name of the run; by default ``gather``.

    Returns:
      One value per function.

    Raises:
      FanOutError: if one failed: one group, with the error of each that did. If one was cancelled
        or the run was stopped, it has an entry for each that has no value.
      ValueError: if there is no function.
      TypeError: if one is not a function, or takes an argument.
      RuntimeError: outside trio.

    Checkpoint: always.

    Cancellation: all are cancelled and have ended before the cancel goes on.
    """
    if not fns:
        raise ValueError("gather() takes at least one async function, and got none")
    for fn in fns:
        check_function("gather()", fn, items=0)
    refuse_outside_trio("gather() was called")
    results = await fan_out(
        call, fns, limit=len(fns), key=name_of, name="gather" if name is None else name
    )
    results.raise_if_incomplete()
    return tuple(result.value for result in results)
