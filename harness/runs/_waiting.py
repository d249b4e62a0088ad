"""Wait for the tasks that `start_soon` gave to a run, so that none outlives it."""

from __future__ import annotations

import functools

import trio

from harness.runs._run import Run
from harness.runs._scopes import cancel_scope


async def join_tasks(run: Run, error: BaseException | None) -> BaseException | None:
    """Wait until the tasks that others started for this run are gone.

    If the body raised they are cancelled first. Returns the exception to leave the run with.

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
    waiting_for = functools.partial(_task_words, run)  # noqa: F841 (read by `dump`)
    try:
        while run._tasks:
            run._idle = trio.Event()
            await run._idle.wait()
    except BaseException:
        await end_tasks(run)
        raise


async def end_tasks(run: Run) -> None:
    waiting_for = functools.partial(_task_words, run)  # noqa: F841 (read by `dump`)
    with trio.CancelScope(shield=True):
        while run._tasks:
            for scope in run._tasks:
                cancel_scope(scope, f"run {run.path!r} is over")
            run._idle = trio.Event()
            await run._idle.wait()


def _task_words(run: Run) -> str:
    return f"its tasks in other nurseries: {', '.join((run._tasks or {}).values())}"
