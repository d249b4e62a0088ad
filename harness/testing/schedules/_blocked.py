"""Say in words what the tasks of a program are waiting for.

Used when all of them are waiting and nothing can wake them, or when they never stop. It also picks
out the waits that end by themselves, for a worker thread or a socket, which no schedule controls.
"""

from __future__ import annotations

import attrs
import trio

from harness.runs._frames import describe_wait
from harness.testing.schedules._control import Control

_THREAD_WAITS = {"to_thread_run_sync", "run_process"}
"""Functions of trio whose wait ends when something outside the loop happens."""

_QUIET_WAITS = {"wait_all_tasks_blocked"}
"""Without a wish for real time, it would have ended once everything was waiting; so it has one.
Code that works in threads of its own holds a virtual clock still in this way."""

_SOCKET_WAITS = {"wait_readable", "wait_writable", "_epoll_wait"}


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
    names = _told_apart(control)
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


def _told_apart(control: Control) -> dict[trio.lowlevel.Task, str]:
    """Return a name for each task; those with the same name are numbered by their first steps.

    They have the same numbers in the order of steps that a report gives.
    """
    first_step = {number: step for step, number in enumerate(dict.fromkeys(control.order))}
    names: dict[trio.lowlevel.Task, str] = {}
    counts: dict[str, int] = {}
    never = len(first_step)
    for task in sorted(
        control.numbers, key=lambda task: first_step.get(control.numbers[task], never)
    ):
        name = task_name(task)
        counts[name] = count = counts.get(name, 0) + 1
        names[task] = name if count == 1 else f"{name} #{count}"
    return names


def task_name(task: trio.lowlevel.Task) -> str:
    """Return a task's name as its author would say it: ``ask``, not ``app.main.<locals>.ask``."""
    return task.name.rpartition("<locals>.")[2]


def waits_outside(control: Control) -> set[str]:
    """Return what tasks wait for outside the loop: ``"worker threads"``, ``"sockets"``, ...."""
    found: set[str] = set()
    for task in control.live_tasks():
        # Trio's waiting functions are within a few frames of the end.
        for frame, _ in control.frames(task)[-4:]:
            name = frame.f_code.co_name
            if name in _THREAD_WAITS:
                found.add("worker threads")
            elif name in _QUIET_WAITS:
                found.add("real time")
            elif name in _SOCKET_WAITS:
                found.add("sockets")
    return found
