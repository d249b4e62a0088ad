"""Say in words what the tasks of a program are waiting for.

Used when all of them are waiting and nothing can wake them, or when they never stop. It also picks
out the waits that end by themselves, for a worker thread or a socket, which no schedule controls.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import trio

from harness.runs._frames import describe_wait
from harness.testing.schedules._control import Control

_OUTSIDE = {
    **dict.fromkeys(("to_thread_run_sync", "run_process"), "worker threads"),
    # With no wish for real time it would have ended when everything waits; so it has one. Code that
    # works in threads of its own holds a virtual clock still in this way.
    "wait_all_tasks_blocked": "real time",
    **dict.fromkeys(("wait_readable", "wait_writable", "_epoll_wait"), "sockets"),
}
"""Functions of trio whose wait ends when something outside of the loop does, and what that is."""


@attrs.frozen
class BlockedTask:
    """A waiting task, in words."""

    name: str
    """The task's name; with a number, if another task had the same name before it."""

    place: str
    """The innermost function of the user's code, with file and line."""

    holder: str | None = None
    """The task that holds the lock it is waiting for, if trio knows."""

    def __str__(self) -> str:
        what = f", for a lock that task {self.holder!r} holds" if self.holder is not None else ""
        return f"task {self.name!r} waits in {self.place}{what}"


def blocked_tasks(control: Control) -> list[BlockedTask]:
    """Return the tasks that are waiting for something other than the tasks they started."""
    found: list[BlockedTask] = []
    # So are they in the order of steps that a report tells.
    first_step = {number: step for step, number in enumerate(dict.fromkeys(control.order))}
    never = len(first_step)
    names = told_apart(
        sorted(control.numbers, key=lambda task: first_step.get(control.numbers[task], never))
    )
    for task in control.live_tasks():
        frames = control.frames(task)
        if not frames or any(
            frame.f_code.co_qualname == "NurseryManager.__aexit__" for frame, _ in frames
        ):
            continue
        holder: str | None = None
        for frame, _ in frames:
            if frame.f_code.co_name in ("acquire", "acquire_on_behalf_of"):
                held = frame.f_locals.get("self")
                if isinstance(held, trio.Lock) and isinstance(
                    owner := held.statistics().owner, trio.lowlevel.Task
                ):
                    holder = names.get(owner) or task_name(owner)
        found.append(BlockedTask(names[task], describe_wait(frames), holder))
    return found


def told_apart(tasks: Iterable[trio.lowlevel.Task]) -> dict[trio.lowlevel.Task, str]:
    """Return a name for each task; those of the same name are numbered in the order given."""
    names: dict[trio.lowlevel.Task, str] = {}
    counts: dict[str, int] = {}
    for task in dict.fromkeys(tasks):
        name = task_name(task)
        counts[name] = count = counts.get(name, 0) + 1
        names[task] = name if count == 1 else f"{name} #{count}"
    return names


def task_name(task: trio.lowlevel.Task) -> str:
    """Return a task's name as its author would say it: ``ask``, not ``app.main.<locals>.ask``."""
    return task.name.rpartition("<locals>.")[2]


def waits_outside(control: Control) -> set[str]:
    """Return what outside of the loop tasks wait for: ``"worker threads"``, ``"sockets"``, ...."""
    return {
        _OUTSIDE[frame.f_code.co_name]
        for task in control.live_tasks()
        # The functions of trio that wait are within a few frames of the end.
        for frame, _ in control.frames(task)[-4:]
        if frame.f_code.co_name in _OUTSIDE
    }
