"""Know what the functions of trio and asyncio read and write, so that they needn't be followed.

Inside, both keep queues that every task's step changes; followed like any other code, every step
would depend on every other. What they mean for the order of steps is known: a lock, an event or a
queue is one place, read or written as a whole; a checkpoint touches nothing; a cancel may concern
anybody. Who wakes whom is seen by whoever makes the steps.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Iterator
from types import FrameType
from typing import Any

import outcome
import trio

from harness.testing.schedules._c_functions import Touched, UnseenError, is_future
from harness.testing.schedules._effects import WHOLE

_TRIO = os.path.dirname(os.path.abspath(trio.__file__)) + os.sep
_ASYNCIO = os.path.dirname(os.path.abspath(asyncio.__file__)) + os.sep
_OUTCOME = os.path.dirname(os.path.abspath(outcome.__file__)) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

_NOTHING = frozenset(
    (
        # trio
        *("checkpoint", "checkpoint_if_cancelled", "cancel_shielded_checkpoint", "sleep"),
        *("sleep_until", "sleep_forever", "current_time", "current_task", "open_nursery"),
        *("NurseryManager.__aenter__", "NurseryManager.__aexit__", "CancelScope.__enter__"),
        *("CancelScope.__exit__", "move_on_after", "move_on_at", "fail_after", "fail_at"),
        *("Nursery.start_soon", "current_effective_deadline", "CancelScope.cancelled_caught"),
        *("CancelScope.__init__", "Event.__init__", "open_memory_channel", "NoPublicConstructor"),
        *("current_root_task", "current_trio_token", "current_clock", "MockClock.current_time"),
        *("CancelScope.__attrs_post_init__", "reschedule", "Nursery.start", "_TaskStatus.started"),
        # asyncio
        *("create_task", "gather", "TaskGroup.__aenter__", "TaskGroup.__aexit__"),
        *("TaskGroup.create_task", "TaskGroup.__init__", "timeout", "timeout_at", "ensure_future"),
        *("Timeout.__aenter__", "Timeout.__aexit__", "Timeout.__init__", "current_task"),
        *("iscoroutinefunction", "iscoroutine", "isfuture", "get_event_loop", "Future.__init__"),
        *("BaseEventLoop.create_future", "BaseEventLoop.get_debug", "_GatheringFuture.__init__"),
        *("Runner.__init__", "shield", "wait_for"),
    )
)
_READS = frozenset(
    ("Event.is_set", "Event.wait", "Lock.locked", "Queue.qsize", "Queue.empty", "Queue.full")
)
_CONCERN_ALL = frozenset(
    (
        *("CancelScope.cancel", "CancelScope.deadline", "CancelScope.shield", "Timeout.reschedule"),
        *("BaseEventLoop.call_soon", "BaseEventLoop.call_later", "BaseEventLoop.call_at"),
        *("BaseEventLoop.call_soon_threadsafe", "CancelScope.relative_deadline"),
        "CancelScope.cancel_called",
    )
)
LOCKS = (
    *(trio.Lock, trio.StrictFIFOLock, trio.Semaphore, trio.CapacityLimiter, trio.Condition),
    *(trio.lowlevel.ParkingLot, asyncio.Lock, asyncio.Condition, asyncio.Semaphore),
)
"""What is taken and given back, and holds nothing."""

_OWNED = (
    *LOCKS,
    *(trio.Event, trio.MemorySendChannel, trio.MemoryReceiveChannel, trio.lowlevel.RunVar),
    *(asyncio.Event, asyncio.Queue, asyncio.Future),
    *(getattr(asyncio, name) for name in ("Barrier",) if hasattr(asyncio, name)),
)
_WAITING = frozenset(("_wait", "wait", "as_completed", "gather", "shield", "wait_for"))

EVERYTHING = Touched(None, WHOLE, True)
"""Stands for something that may concern everybody."""


def is_library(frame: FrameType) -> bool:
    """Tell whether a frame is of a library whose functions are known here."""
    return _is_of_library(frame.f_code.co_filename)


@functools.cache
def _is_of_library(filename: str) -> bool:
    return filename.startswith((_TRIO, _ASYNCIO, _OUTCOME, _OURS))


def library_call(frame: FrameType, *, is_resumed: bool) -> Iterator[Touched]:
    """Yield what a function touches that is called by somebody else's code, or goes on.

    Raises:
      UnseenError: if that isn't known.
    """
    code = frame.f_code
    name = code.co_qualname
    file = code.co_filename
    if file.startswith((_OUTCOME, _OURS)):
        if name in ("trio.to_thread_run_sync", "run_sync", "ControlledLoop.run_in_executor"):
            yield EVERYTHING
        return
    if is_resumed and file.startswith(_TRIO):
        return  # What it waited for was handed to it.
    variables = frame.f_locals
    if name in _CONCERN_ALL:
        callback = variables.get("callback")
        if getattr(callback, "__module__", None) is None and is_future(
            getattr(callback, "__self__", None)
        ):
            return  # It wakes a task.
        yield EVERYTHING
        return
    if name in _WAITING:
        for value in list(variables.values()):
            for one in value if isinstance(value, tuple | list | set) else (value,):
                if is_future(one):
                    yield Touched(one, "result", False)
        return
    if isinstance(variables.get("self"), _OWNED):
        for one in primitives_of(frame):
            yield Touched(one, WHOLE, name not in _READS and not name.endswith("__init__"))
    elif name not in _NOTHING and not name.endswith(
        ("__repr__", "__del__", "<genexpr>", "<lambda>")
    ):
        raise UnseenError(f"{'trio' if file.startswith(_TRIO) else 'asyncio'}: {name}")


def primitives_of(frame: FrameType) -> Iterator[Any]:
    """Yield the locks, queues and the like that a method of one is about."""
    own = frame.f_locals.get("self")
    if is_library(frame) and isinstance(own, _OWNED):
        yield getattr(own, "_state", own)  # The two ends of a channel share it.
        lock = getattr(own, "_lock", None)
        if isinstance(own, trio.Condition | asyncio.Condition) and lock is not None:
            yield lock
