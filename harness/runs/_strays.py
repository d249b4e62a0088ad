"""Report tasks that carry a run but live outside its block.

Such a stray can go on after its run has ended, or outlive it into another run's time: trio gave
it the context of whoever called ``start_soon``, not of the nursery it lives in.
`harness.start_soon` says whose a task is, and makes no strays. Strays are reported, not stopped:
this is an instrument, for tests, and only looks.

It looks when a task is spawned (is its nursery inside the block of the run it carries?) and at each
step (has that run ended?).
"""

from __future__ import annotations

import inspect
from typing import NamedTuple, TypeGuard

import trio
from trio.lowlevel import Task

from harness.runs._current import current
from harness.runs._run import Run
from harness.runs._tasks import belonging

_BELONGING = inspect.unwrap(belonging).__code__

STRAYS_AT_MOST = 1_000
"""How many strays are kept; any more are only counted."""


class Stray(NamedTuple):
    """A task found outside the block of the run it carries."""

    run_path: str
    """The path of the run it carries."""

    task_name: str
    """Its name."""

    reason: str
    """What is wrong, and whose nursery it is in."""


class StrayTasks(trio.abc.Instrument):
    """A trio instrument that collects strays: ``trio.lowlevel.add_instrument(StrayTasks())``."""

    def __init__(self) -> None:
        self.strays: list[Stray] = []
        """The strays found so far, oldest first, each task once."""
        self.count: int = 0
        """How many were found."""
        self._reported: set[int] = set()

    def task_spawned(self, task: Task) -> None:
        """Look at where the task lives. Never raises: code in an instrument mustn't."""
        run = task.context.get(current)
        if not _belongs_to_a_run(run) or task.parent_nursery is None:
            return
        if run._status != "running":
            self._report(task, run, f"started when that run had ended ({run._status})")
        elif not _is_start_soons(task) and not _is_inside(task.parent_nursery, run):
            self._report(task, run, "its nursery is outside that run's block")

    def before_task_step(self, task: Task) -> None:
        """Check whether the run it carries has ended."""
        run = task.context.get(current)
        if run is not None and run._status != "running" and _belongs_to_a_run(run):
            self._report(task, run, f"goes on after that run has ended ({run._status})")

    def task_exited(self, task: Task) -> None:
        """Forget the task; another may get its number."""
        self._reported.discard(id(task))

    def _report(self, task: Task, run: Run, reason: str) -> None:
        if id(task) in self._reported:
            return
        self._reported.add(id(task))
        self.count += 1
        if len(self.strays) < STRAYS_AT_MOST:
            owner = task.parent_nursery.parent_task.name if task.parent_nursery else "trio"
            reason = f"{reason}; it lives in a nursery of task {owner!r}"
            self.strays.append(Stray(run.path, task.name, reason))


def _belongs_to_a_run(run: Run | None) -> TypeGuard[Run]:
    return run is not None and run._above.tree.token is trio.lowlevel.current_trio_token()


def _is_inside(nursery: trio.Nursery, run: Run) -> bool:
    """Return whether ``nursery`` was opened inside the block of ``run``."""
    inner: trio.Nursery | None = nursery
    while inner is not None:
        task = inner.parent_task
        if task is run._task:
            return inner in task.child_nurseries[run._nurseries_at_start :]
        if _is_start_soons(task) and task.context.get(current) is run:
            return True
        inner = task.parent_nursery
    return False


def _is_start_soons(task: Task) -> bool:
    """Return whether the run waits for this task, because `start_soon` gave it to the run."""
    return getattr(task.coro, "cr_code", None) is _BELONGING
