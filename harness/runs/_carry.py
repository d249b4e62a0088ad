"""Be a run's body in a task of its own, for engines that start one task per run.

The other way to be a run's body is a block of the caller's code, `harness.runs._block`; both end
the same way, and `harness.runs._endings` tells how.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import CoroutineType, TracebackType
from typing import Any

import trio
from trio.lowlevel import current_task

from harness.errors import RunCancelled
from harness.runs._current import current
from harness.runs._endings import (
    add_note,
    is_only_cancelled,
    status_of,
    timed_out_error,
    unwrap_single,
    without_cancelled,
    without_first_frame,
)
from harness.runs._functions import forgotten_await_error, not_awaitable_error
from harness.runs._run import Ending, Run
from harness.runs._waiting import join_tasks, wait_for_tasks

_set_current = current.set
"""Bound once: Python takes an imported name for a module, and calls what is in it the slow way."""


async def carry(
    run: Run, function: Callable[..., Awaitable[Any]], *args: Any
) -> tuple[Ending, Any]:
    """Run ``function(*args)`` as the body of ``run``, and return how it ended.

    For a task that was started for this alone: the context variable is set and not put back.
    The run ends here; its scope must not have been entered.

    Returns:
      The status, and the value if that is ok; else the error: the function's own, a
      `RunTimedOut` or a `RunCancelled`. Never a `trio.Cancelled`.

    Raises:
      BaseException: what is neither an error nor a cancel, such as `KeyboardInterrupt`.

    Checkpoint: as ``function`` does.

    Cancellation: a cancel from outside is reported as the status ``"cancelled"`` and not raised;
    the caller's nursery is cancelled anyway, and collecting one `trio.Cancelled` from each of
    20,000 tasks would only slow it down.
    """
    _set_current(run)
    run._task = current_task()
    scope = run._scope
    awaitable: Any = _NOTHING
    value: Any = _NOTHING
    stuck_at: TracebackType | None = None
    try:
        with scope:
            if run._parent is not None and run._parent._forks:
                run._fork_locals(run._parent)
            awaitable = function(*args)
            try:
                returned = await awaitable
            except BaseException as error:
                if run._tasks:
                    await join_tasks(run, error)
                if isinstance(error, trio.Cancelled):
                    stuck_at = error.__traceback__
                raise
            if run._tasks:
                await wait_for_tasks(run)
            if type(returned) is CoroutineType:
                raise forgotten_await_error(function, returned)
            value = returned
    except BaseException as error:
        stuck_at = None  # Or this frame would hold the traceback that holds this frame.
        return _ending_by_error(run, error, function, awaitable)
    now = run._above.tree.now()
    if value is not _NOTHING:
        run._end("ok", now)
        return "ok", value
    if run._cancel_asked:
        stuck_at = None
        run._end("cancelled", now)
        return "cancelled", RunCancelled(run._cancel_reason)
    run._end("timed_out", now)
    timed_out = timed_out_error(run, stuck_at)
    stuck_at = None
    return "timed_out", timed_out


def _ending_by_error(
    run: Run, error: BaseException, function: Callable[..., Any], awaitable: Any
) -> tuple[Ending, Any]:
    """End a carried run whose function raised ``error`` past the run's own scope."""
    now = trio.current_time()
    if is_only_cancelled(error):
        run._note_foreign_cancel(error)
        run._end("cancelled", now)
        return "cancelled", RunCancelled(run._cancel_reason)
    failure = without_cancelled(error)
    if not isinstance(failure, Exception):
        run._end("failed", now)
        raise failure
    if isinstance(failure, TypeError) and not isinstance(awaitable, Awaitable | _Nothing):
        run._end("failed", now)
        raise not_awaitable_error(function, awaitable)
    failure = unwrap_single(without_first_frame(failure))
    status = status_of(failure, run)
    run._end(status, now)
    add_note(failure, run)
    return status, failure


class _Nothing:
    """Stands where a function has not returned. Not None, which a function may return."""


_NOTHING = _Nothing()
