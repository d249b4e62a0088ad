"""Wait for the tasks that `start_soon` gave to a run, so that none outlives it."""

from __future__ import annotations

import functools

import trio

from harness._events import happened
from harness.runs._run import Run
from harness.runs._scopes import cancel_scope


async def join_tasks(run: Run, error: BaseException | None) -> BaseException | None:
    """Wait until the tasks that others started for this run are gone.

    If the body raised, they are cancelled first. Returns the exception to leave the run with.

    Cancellation: they are cancelled too and waited for, shielded: nothing outlives the run.
    """
    if error is None:
        try:
            await wait_for_tasks(run)
        except BaseException as interrupted:
            return interrupted
        return None
    await end_tasks(run)
    return error


async def wait_for_tasks(run: Run) -> None:
    """Wait until the run's tasks in other nurseries have ended.

    Cancellation: they are cancelled too and waited for, shielded.
    """
    try:
        while run._tasks:
            # Words, and not a function: the error is worded when they may be gone.
            _waiting_for = _task_words(run)
            run._idle = trio.Event()
            await happened(run._idle)
    except BaseException:
        await end_tasks(run)
        raise


async def end_tasks(run: Run) -> None:
    """Cancel the run's tasks in other nurseries, and wait until they have ended, shielded."""
    _waiting_for = functools.partial(_task_words, run)
    run._takes_no_tasks = True  # What is started from now on starts cancelled.
    with trio.CancelScope(shield=True):
        for scope in run._tasks or ():
            cancel_scope(scope, f"run {run.path!r} is over")
        while run._tasks:
            run._idle = trio.Event()
            await happened(run._idle)


def _task_words(run: Run) -> str:
    return f"its tasks in other nurseries: {', '.join((run._tasks or {}).values())}"
