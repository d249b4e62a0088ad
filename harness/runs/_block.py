"""Open a run around a block of code, and give it its one ending.

The other way to be a run's body is a function in a task of its own, `harness.runs._carry`. Both
end the same way:

- the body returned, even late: ok;
- it raised anything but a cancel: failed;
- the run's own scope caught the cancel: cancelled or timed out, whichever was asked for first;
- the cancel came from outside: cancelled, and the `trio.Cancelled` goes on to whoever sent it.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from contextvars import Token
from typing import Any

import trio
from trio.lowlevel import current_task

from harness._arguments import check_seconds
from harness._async_with import AsyncWithOnly
from harness._budget import Budget
from harness.runs._accounts import NOBODY, add_budget, current_payer, paid_by
from harness.runs._current import current
from harness.runs._endings import add_note, is_only_cancelled, status_of, timed_out_error
from harness.runs._observers import observers
from harness.runs._run import Run
from harness.runs._waiting import join_tasks

_paid_by_now = paid_by.get
"""Bound once: a method of an imported name is looked up, and bound, anew for each call."""


def open_run(
    name: str,
    *,
    timeout: float | None = None,
    deps: Any = None,
    tags: Mapping[str, Any] | None = None,
    private: bool = False,
    budget: Budget | None = None,
) -> RunBlock:
    """Open a run: ``async with harness.open_run("triage", timeout=60) as run:``.

    Inside the block, and in every task started there, `current_run` is this run. Whatever way
    the block is left, nothing of the run is alive afterwards and the context is as before.

    Args:
      name: For people; need not be unique.
      timeout: Seconds until the run is cut short. None and inf: no limit of its own; 0: at the
        first checkpoint. The deadline of a run above it holds in any case.
      deps: What the code inside works with, reached by ``current_run().deps``. None: the
        parent's.
      tags: Labels for logs and reports; copied.
      private: Whether its events, and those of the runs below it, stay hidden from subscribers
        of the runs above.
      budget: What it and all runs below it may spend together; see `harness.Budget`. Budgets of
        runs above it hold as well.

    Raises:
      TypeError: if an argument has the wrong type.
      ValueError: if ``timeout`` is negative or nan, or ``name`` is empty.
      RuntimeError: on entry, outside trio or for the second time; on exit, in another task or
        context than the one that entered.
      RunEndedError: on entry, if the run that this code carries has ended.
      RunTimedOut: from the block, if its own deadline cut the body short.
      Exception: the body's own comes out as itself, with a note that names the run.

    Checkpoint: neither on entry nor on exit, unless it waits on exit for tasks that
    `harness.start_soon` gave to this run.

    Cancellation: `Run.cancel` leaves the block quietly; a cancel from outside passes through.
    If it comes while the exit waits for tasks, they are cancelled and waited for, shielded.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"open_run() takes a name as a string, not {name!r}; "
            'write `async with harness.open_run("name"):`'
        )
    if not name:
        raise ValueError("open_run() takes a name that people can read, not ''")
    if timeout is not None:
        check_seconds("open_run(timeout=...)", timeout, advice="None is for no limit")
    if tags is not None and not isinstance(tags, Mapping):
        raise TypeError(f"open_run(tags=...) takes a mapping such as {{'shard': 3}}, not {tags!r}")
    if budget is not None:
        if not isinstance(budget, Budget):
            raise TypeError(
                f"open_run(budget=...) takes a Budget, not {budget!r}; write "
                "budget=harness.Budget(tokens=100_000)"
            )
        return _BlockWithBudget(name, timeout, deps, tags, private, budget)
    return RunBlock(name, timeout, deps, tags, private)


class RunBlock(AsyncWithOnly):
    """The block of one run; what `open_run` returns."""

    __slots__ = ("_deps", "_name", "_private", "_run", "_tags", "_timeout", "_token")

    _written = "harness.open_run(...) as run"

    def __init__(
        self,
        name: str,
        timeout: float | None,
        deps: Any,
        tags: Mapping[str, Any] | None,
        private: bool,
    ) -> None:
        self._name = name
        self._timeout = timeout
        self._deps = deps
        self._tags = tags
        self._private = private
        self._run: Run | None = None
        self._token: Token[Run | None] | None = None

    async def __aenter__(self) -> Run:
        """Begin the run; never a checkpoint."""
        if self._run is not None:
            raise RuntimeError(
                f"the block of {self._run!r} was entered before; call open_run() for each block"
            )
        run = self._run = self._make_run()
        parent = run._parent
        if parent is not None and parent._forks:
            try:
                run._fork_locals(parent)
            except BaseException:
                run._end("failed", run._started_at)
                raise
        run._scope.__enter__()
        self._token = current.set(run)
        return run

    def _make_run(self) -> Run:
        """Return a new run below the current one, its scope not yet entered, its locals empty."""
        try:
            task = current_task()
        except RuntimeError:
            raise RuntimeError(
                f"run {self._name!r} was opened outside trio; "
                "open it in a function that trio.run() runs"
            ) from None
        parent = above = current.get()
        if parent is not None:
            if parent._status != "running":
                parent._refuse_if_ended(f"run {self._name!r} can't be opened in it")
            # Of one task there is nothing to ask, and asking is felt.
            if parent._task is not task and (
                parent._above.tree.token is not trio.lowlevel.current_trio_token()
            ):
                # A context that was copied into another trio.run, in another thread: scopes and
                # tasks of two event loops have nothing to do with each other, so this is a root.
                parent = None
        time = trio.current_time if parent is None else parent._above.tree.now
        now = time()
        timeout = self._timeout
        run = Run(self._name, parent, now, math.inf if timeout is None else now + timeout)
        run._task = task
        run._nurseries_at_start = len(task.child_nurseries)
        run._private = self._private
        sinks = observers.get()
        if sinks and sinks is not run._observers:
            inherited = run._observers
            run._observers = (*inherited, *(sink for sink in sinks if sink not in inherited))
        if self._deps is not None:
            run._deps = self._deps
        if self._tags:
            run._tags = types.MappingProxyType(dict(self._tags))
        # Looked at here, since the call is felt: for nearly all roots there is nobody.
        if parent is None and (above is not None or _paid_by_now() is not NOBODY):
            run._above.tree.payer = current_payer()
        return run

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> bool:
        """End the run; a checkpoint only if tasks of `start_soon` are still alive."""
        run, token = self._run, self._token
        assert run is not None
        assert token is not None
        error = await join_tasks(run, exc) if run._tasks else exc
        try:
            current.reset(token)
        except ValueError:
            error = RuntimeError(
                f"the block of {run!r} is being left in another task or context than it was "
                "entered in; keep the whole `async with` block in one task, and use an async "
                "context manager, not an async generator, where it has to span a yield"
            )
            error.__context__ = exc
        scope = run._scope
        try:
            if scope.__exit__(type(error) if error is not None else None, error, None):
                remaining = None
            else:
                remaining = error
        except BaseException as left_over:  # What the scope didn't catch of a group.
            remaining = left_over
        time = run._above.tree.now
        now = time()
        if remaining is None:
            if error is None:
                run._end("ok", now)
                return False
            if run._cancel_asked:
                run._end("cancelled", now)
                return True
            run._end("timed_out", now)
            raise timed_out_error(run, error.__traceback__)
        if is_only_cancelled(remaining):
            run._note_foreign_cancel(remaining)
            run._end("cancelled", now)
        else:
            run._end(status_of(remaining, run), now)
            add_note(remaining, run)
        if remaining is exc:
            return False
        try:
            raise remaining
        finally:
            del remaining, error, exc  # Each would hold the frames that hold it.


class _BlockWithBudget(RunBlock):
    """The block of a run with a budget. A class of its own, so that no other asks for one."""

    __slots__ = ("_budget",)

    def __init__(
        self,
        name: str,
        timeout: float | None,
        deps: Any,
        tags: Mapping[str, Any] | None,
        private: bool,
        budget: Budget,
    ) -> None:
        super().__init__(name, timeout, deps, tags, private)
        self._budget = budget

    def _make_run(self) -> Run:
        run = super()._make_run()
        add_budget(run, self._budget)
        return run
