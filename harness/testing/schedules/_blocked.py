"""Say in words what the tasks of a program are waiting for.

Used when all of them are waiting and nothing can wake them, or when they never stop.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from harness.runs._frames import describe_wait
from harness.testing.schedules._control import Control
from harness.testing.schedules._strand import Strand


@attrs.frozen
class BlockedTask:
    """A waiting task, in words."""

    name: str
    """The task's name; with a number, if another task had the same name before it."""

    place: str
    """The innermost function of the user's code, with file and line."""

    holder: str | None = None
    """The task that holds the lock it is waiting for, if that is known."""

    taken_at: str | None = None
    """The line that took that lock, if that is known."""

    kind: str = "task"

    def __str__(self) -> str:
        what = ""
        if self.holder is not None:
            itself = self.holder == self.name
            who = "it" if itself else f"{self.kind} {self.holder!r}"
            since = f" since {self.taken_at}" if self.taken_at is not None else ""
            what = f", for a lock that {who} holds{' itself' if itself else ''}{since}"
        return f"{self.kind} {self.name!r} waits in {self.place}{what}"


def blocked_tasks(control: Control) -> list[BlockedTask]:
    """Return the tasks that are waiting for something other than the tasks they started."""
    found: list[BlockedTask] = []
    # So are they in the order of steps that a report tells.
    first_step = {number: step for step, number in enumerate(dict.fromkeys(control.order))}
    never = len(first_step)
    names = told_apart(
        sorted(control.numbers, key=lambda strand: first_step.get(control.numbers[strand], never))
    )
    for strand in control.live():
        frames = control.frames(strand)
        if not frames or control.backend.only_joins(strand, frames):
            continue
        thread = control.threads.get(strand)
        owner = control.backend.holder(strand, frames)
        taken_at = control.backend.taken_at(strand, frames)
        if thread is not None and thread is not strand:
            held_by, taken_at = thread.holder(), thread.taken_at()
            owner = next((one for one, its in control.threads.items() if its is held_by), owner)
        holder = None if owner is None else names.get(owner) or task_name(owner)
        where = describe_wait(frames)
        if thread is not None and thread.outside:
            where += ", for something that no schedule controls"
        kind = "thread" if control.backend.kind == "threads" else "task"
        found.append(BlockedTask(names[strand], where, holder, taken_at, kind))
    return found


def told_apart(tasks: Iterable[Strand]) -> dict[Strand, str]:
    """Return a name for each task; those of the same name are numbered in the order given."""
    names: dict[Strand, str] = {}
    counts: dict[str, int] = {}
    for task in dict.fromkeys(tasks):
        name = task_name(task)
        counts[name] = count = counts.get(name, 0) + 1
        names[task] = name if count == 1 else f"{name} #{count}"
    return names


def task_name(task: Strand) -> str:
    """Return a task's name as its author would say it: ``ask``, not ``app.main.<locals>.ask``."""
    return task.name.rpartition("<locals>.")[2]
