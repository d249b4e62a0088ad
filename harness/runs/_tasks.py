"""Start code elsewhere, and say whose it is.

trio gives a new task the context of whoever called ``start_soon``, not of the nursery it lives
in. So a task may carry one run and live in the nursery of another, or outlive its run. Here the
caller says which run a task belongs to, and the run keeps hold of it: the run's cancel and deadline
reach the task, and the run doesn't end before the task.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVarTuple

import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from harness._outside_trio import outside_trio
from harness.runs._accounts import NOBODY, paid_by, payer_of
from harness.runs._cleanup import enclosing_cleanup
from harness.runs._current import current
from harness.runs._endings import add_note
from harness.runs._functions import check_callable, name_of, not_awaitable_error
from harness.runs._inner_scope import inner_scope
from harness.runs._run import Run
from harness.runs._scopes import cancel_scope
from harness.runs._tree import token_here

Ts = TypeVarTuple("Ts")


@enable_ki_protection
def start_soon(
    nursery: trio.Nursery,
    fn: Callable[[*Ts], Awaitable[Any]],
    *args: *Ts,
    run: Run | None,
    name: str | None = None,
) -> None:
    """Start a task in ``nursery`` that belongs to ``run``, whoever calls.

    The task has the caller's context variables, except that its run is ``run``. The run's cancel
    and deadline end it quietly; leaving the run's block waits for it, cancelling it first if the
    body raised. If it fails, the nursery fails as with any task.

    Args:
      nursery: Where the task lives; any nursery will do.
      fn: The async function to call, with ``args``.
      run: The run it belongs to; None for a task that belongs to no run, such as a worker, a
        cache or a timer that outlives the run that happened to need it first.
      name: For dumps; by default the function's.

    Raises:
      TypeError: if an argument has the wrong type, such as a coroutine for ``fn``.
      RunEndedError: if ``run`` has ended.
      RuntimeError: if ``run`` lives in another ``trio.run``.
    """
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        raise RuntimeError(
            "start_soon() is to be called by a task; from a worker thread call it with "
            "trio.from_thread.run_sync(harness.start_soon, nursery, fn)"
        ) from None
    if not isinstance(nursery, trio.Nursery):
        raise TypeError(
            f"start_soon() takes a trio nursery first, not {nursery!r}; write "
            "start_soon(nursery, fn, arg, run=run)"
        )
    check_callable("start_soon()", fn)
    if run is None:
        _start_in_context(None, nursery.start_soon, fn, *args, name=name)
        return
    if not isinstance(run, Run):
        raise TypeError(
            f"start_soon(run=...) takes a run, such as current_run(), or None, not {run!r}"
        )
    run._refuse_if_ended("no task can be started for it")
    run._refuse_elsewhere("it can't reach a task started")
    task_name = name or name_of(fn)
    scope = belonging_scope(run)

    def start() -> None:
        # Called here and not in the task, so that a mistake is raised where it was made.
        awaitable = _call(fn, *args)
        if not isinstance(awaitable, Awaitable):
            raise not_awaitable_error(fn, awaitable)
        try:
            nursery.start_soon(belonging, run, scope, awaitable, name=task_name)
        except BaseException:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise

    _start_in_context(run, start)
    if run._tasks is None:
        run._tasks = {}
    run._tasks[scope] = task_name


def belonging_scope(run: Run) -> trio.CancelScope:
    """Return a scope for something that lives elsewhere but belongs to ``run``."""
    scope = trio.CancelScope(deadline=run.deadline)
    if run._takes_no_tasks or any(r._scope.cancel_called for r in (run, *run._ancestors())):
        cancel_scope(scope, f"run {run.path!r} was cancelled before this task began")
    return scope


def let_go_of_task(run: Run, scope: trio.CancelScope) -> None:
    """Tell ``run`` that what belonged to it under ``scope`` is gone."""
    tasks = run._tasks
    assert tasks is not None, "a run doesn't end before its tasks"
    del tasks[scope]
    if not tasks and run._idle is not None:
        run._idle.set()


@disable_ki_protection
def _call(fn: Callable[..., Any], *args: Any) -> Any:
    """Call one of the user's functions, which Ctrl-C may interrupt."""
    return fn(*args)


def _start_in_context(run: Run | None, start: Callable[..., None], *args: Any, **how: Any) -> None:
    """Call ``start`` with ``run`` set in the context, which trio copies for the new task.

    A cleanup block or a stage around the call isn't passed on: the task may live longer. Nor is
    whoever pays for the caller: a task is paid for by its run.
    """
    run_token = current.set(run)
    payer_token = paid_by.set(NOBODY if run is None else payer_of(run))
    cleanup_token = enclosing_cleanup.set(None)
    scope_token = inner_scope.set(None)
    try:
        start(*args, **how)
    finally:
        inner_scope.reset(scope_token)
        enclosing_cleanup.reset(cleanup_token)
        paid_by.reset(payer_token)
        current.reset(run_token)


@disable_ki_protection
async def _await(awaitable: Awaitable[Any]) -> None:
    await awaitable


@enable_ki_protection  # Or the run could wait forever for a task that is gone.
async def belonging(run: Run, scope: trio.CancelScope, awaitable: Awaitable[Any]) -> None:
    """Run as a task that belongs to ``run`` wherever it lives, and tell the run when it is gone."""
    try:
        with scope:
            await _await(awaitable)
    except Exception as error:
        add_note(error, run)
        raise
    finally:
        let_go_of_task(run, scope)


def run_sync_soon(fn: Callable[[*Ts], Any], *args: *Ts) -> None:
    """Call ``fn(*args)`` in trio's thread soon, with the caller's run and context variables.

    May be called from any thread that has a run, or from trio. A bare
    ``TrioToken.run_sync_soon`` calls in trio's own context, where there is no run. As there, an
    error in ``fn`` ends the whole of trio: catch what may go wrong.

    Args:
      fn: A plain function.
      args: What it is called with.

    Raises:
      RuntimeError: outside trio, if the caller has no run to say which trio is meant.
      trio.RunFinishedError: if that trio has ended.
    """
    if not callable(fn):
        raise TypeError(f"run_sync_soon() takes a function to call, not {fn!r}")
    run = current.get()
    token = None if run is None else run._above.tree.token
    token = token or token_here()
    if token is None:
        raise outside_trio(
            f"run_sync_soon({fn!r}) was called in no run and",
            instead="start this thread with trio.to_thread.run_sync, from code with a run that "
            "trio.run() runs, to say where to call it",
        )
    context = contextvars.copy_context()
    token.run_sync_soon(lambda: context.run(fn, *args))
