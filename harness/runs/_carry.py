"""Be a run's body in a task of its own, for engines that start one task per run.

The other way to be a run's body is a block of the caller's code, `harness.runs._block`; both end
the same way; see `harness.runs._endings`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import CoroutineType, TracebackType
from typing import Any, Protocol

import trio
from trio.lowlevel import current_task

from harness.runs._current import current
from harness.runs._endings import (
    add_note,
    cancelled_below,
    cancelled_error,
    is_only_cancelled,
    own_error,
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
"""Bound once: a method of an imported name is looked up and bound again for each call."""


class Owner(Protocol):
    """What has jobs of any kind, each carried out in a run and a task of its own."""

    def begin_run(self, job: Any) -> Run:
        """Return the run for a job that begins now; its scope must not have been entered."""
        ...

    def end_run(self, job: Any, run: Run, status: Ending, result: Any) -> Awaitable[None] | None:
        """Note how the run ended, as `carry` returns it; return what its task still has to do."""
        ...


async def carry_out(
    owner: Owner, job: Any, function: Callable[..., Awaitable[Any]], argument: Any
) -> None:
    """Run ``function(argument)`` as the body of the run that ``owner`` begins for ``job``.

    For a task that was started for this alone: the context variable is set and not reset. The owner
    is called, rather than calling, so that this is the only coroutine between the task and the
    function: one more would be 3 % of what an item of a fan-out costs.

    Raises:
      BaseException: what is neither an error nor a cancel, such as `KeyboardInterrupt`; the owner
        isn't told.

    Checkpoint: as ``function`` does, and as what the owner still has to do.

    Cancellation: a cancel from outside is reported as the status ``"cancelled"``, not raised; the
    owner's nursery is cancelled anyway, and collecting one `trio.Cancelled` from each of 20,000
    tasks would only slow it down.
    """
    run = owner.begin_run(job)
    _set_current(run)
    run._task = current_task()
    if run._observers:
        run._notice_begin()
    awaitable: Any = _NOTHING
    result: Any = _NOTHING
    stuck_at: TracebackType | None = None
    status: Ending = "ok"
    try:
        with run._scope:
            if run._parent is not None and run._parent._forks:
                run._fork_locals(run._parent)
            awaitable = function(argument)
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
            result = returned
    except BaseException as error:
        stuck_at = None  # Or this frame would hold the traceback that holds this frame.
        status, result = _ending_by_error(run, error, function, awaitable)
    else:
        if result is not _NOTHING:
            now = run._above.tree.now
            run._end("ok", now())
        else:
            status, result = _ending_by_own_scope(run, stuck_at)
            stuck_at = None
    left = owner.end_run(job, run, status, result)
    if left is not None:
        await left


async def carry(
    run: Run, function: Callable[..., Awaitable[Any]], argument: Any
) -> tuple[Ending, Any]:
    """Run ``function(argument)`` as the body of ``run``, and return how it ended.

    Do as `carry_out` does, for a task with more to do, which minds one more coroutine less.

    Returns:
      The status, and the value if ok; otherwise the error: the function's own, a `RunTimedOut` or a
      `RunCancelled`. Never a `trio.Cancelled`.

    Raises:
      BaseException: what is neither an error nor a cancel, such as `KeyboardInterrupt`.

    Checkpoint: as ``function`` does.

    Cancellation: as `carry_out`.
    """
    told = _Told()
    await carry_out(told, run, function, argument)
    return told.ending


class _Told:
    """The owner of a run that already exists, for `carry`."""

    ending: tuple[Ending, Any]

    def begin_run(self, job: Run) -> Run:
        return job

    def end_run(self, job: Run, run: Run, status: Ending, result: Any) -> None:
        self.ending = status, result


def _ending_by_own_scope(run: Run, stuck_at: TracebackType | None) -> tuple[Ending, Any]:
    """End a carried run whose own scope has caught a cancel: `Run.cancel`, or its deadline."""
    now = run._above.tree.now()
    if run._cancel_asked:
        run._end("cancelled", now)
        return "cancelled", cancelled_error(run)
    run._end("timed_out", now)
    return "timed_out", timed_out_error(run, stuck_at)


def _ending_by_error(
    run: Run, error: BaseException, function: Callable[..., Any], awaitable: Any
) -> tuple[Ending, Any]:
    """End a carried run whose function raised ``error`` past the run's own scope."""
    now = trio.current_time()
    if is_only_cancelled(error):
        run._note_foreign_cancel(error)
        run._end("cancelled", now)
        return "cancelled", cancelled_error(run)
    failure = without_cancelled(error)
    if not isinstance(failure, Exception):
        run._end("failed", now, failure)
        raise failure
    if isinstance(failure, TypeError) and not isinstance(awaitable, Awaitable | _Nothing):
        run._end("failed", now, failure)
        raise not_awaitable_error(function, awaitable)
    failure = own_error(unwrap_single(without_first_frame(failure)), run)
    if (cancelled := cancelled_below(failure, run)) is not None:
        # A run that the function stood for was cancelled, such as its own call of an agent's.
        if run._cancel_reason is None:
            run._cancel_reason = cancelled.reason
        run._end("cancelled", now)
        add_note(cancelled, run)
        return "cancelled", cancelled
    status = status_of(failure, run)
    run._end(status, now, failure)
    add_note(failure, run)
    return status, failure


class _Nothing:
    """Means that a function hasn't returned. Not None, which a function may return."""


_NOTHING = _Nothing()
