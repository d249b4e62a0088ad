"""Do blocking work in a thread of its own, with the caller's virtual clock standing meanwhile."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TypeVar

import trio
from trio.testing import MockClock

T = TypeVar("T")


async def in_worker_thread(work: Callable[[Callable[[], None]], T]) -> T:
    """Call a function that starts loops of its own in a thread that has none.

    While it works, a virtual clock of the caller's loop stands: without that a clock that jumps
    would spin, and the caller's timeouts would strike.

    Args:
      work: Is given a function to call now and then; it raises if the caller was cancelled.
    """
    try:
        clock = trio.lowlevel.current_clock()
    except RuntimeError:
        return await _beside_asyncio(work)
    threshold = math.inf
    if isinstance(clock, MockClock):
        threshold, clock.autojump_threshold = clock.autojump_threshold, math.inf
    try:
        return await trio.to_thread.run_sync(
            work, trio.from_thread.check_cancelled, limiter=trio.CapacityLimiter(1)
        )
    finally:
        if isinstance(clock, MockClock):
            clock.autojump_threshold = threshold


async def _beside_asyncio(work: Callable[[Callable[[], None]], T]) -> T:
    """Do the same where asyncio runs the test, as anyio's plugin does by default."""
    return await asyncio.to_thread(work, _never_cancelled)


def _never_cancelled() -> None:
    pass
