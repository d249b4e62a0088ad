"""Do blocking work in a thread of its own, while the caller's virtual clock stands still.

Only one such piece of work runs at a time in a process: each puts back what it can reach, and would
interfere with another. Work that starts more of its kind already has its turn.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

import trio

from harness._clock_hold import ClockHold
from harness.testing.schedules._kinds import surroundings
from harness.testing.schedules._thread_patches import adopting

T = TypeVar("T")

_LOOK_SECONDS = 0.05
"""How often a thread waiting for its turn checks whether the caller was cancelled."""

_turn = threading.Lock()  # harness: shared (what it protects is the state of the whole process)
_has_turn: ContextVar[bool] = ContextVar("harness.testing.has_turn", default=False)


async def in_worker_thread(work: Callable[[Callable[[], None]], T]) -> T:
    """Call a function that starts its own loops, in a thread that has none.

    While it works, the virtual clock of the caller's loop stands still: otherwise a jumping clock
    would spin, and the caller's timeouts would strike.

    Args:
      work: Is given a function to call now and then; that raises if the caller was cancelled.
    """
    try:
        hold = ClockHold()
    except RuntimeError:
        return await _from_asyncio(work)
    hold.begin()
    token = surroundings.set("trio")
    try:
        return await trio.to_thread.run_sync(
            _in_turn,
            work,
            trio.from_thread.check_cancelled,
            limiter=trio.CapacityLimiter(1),
        )
    finally:
        surroundings.reset(token)
        hold.end()


async def _from_asyncio(work: Callable[[Callable[[], None]], T]) -> T:
    cancelled = threading.Event()

    def go_on() -> None:
        if cancelled.is_set():
            raise asyncio.CancelledError

    token = surroundings.set("asyncio")
    thread = asyncio.ensure_future(asyncio.to_thread(_in_turn, work, go_on))
    surroundings.reset(token)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        cancelled.set()
        # asyncio would leave the thread alone, with what it is about to put back.
        await asyncio.wait([thread])
        if not thread.cancelled():
            thread.exception()
        raise


def in_this_thread(work: Callable[[Callable[[], None]], T]) -> T:
    """Do such work for a caller that has no loop."""
    return _in_turn(work, lambda: None)


def _in_turn(work: Callable[[Callable[[], None]], T], go_on: Callable[[], None]) -> T:
    if _has_turn.get():
        with adopting(work):
            return work(go_on)
    while not _turn.acquire(timeout=_LOOK_SECONDS):
        go_on()
    token = _has_turn.set(True)
    try:
        with adopting(work):
            return work(go_on)
    finally:
        _has_turn.reset(token)
        _turn.release()
