"""Run a program once under a given schedule: the base of searches, replays and checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

import trio

from harness.testing.schedules._choosers import Planned
from harness.testing.schedules._controlled import ScheduleRun, run_controlled
from harness.testing.schedules._kinds import (
    BACKENDS,
    check_kind,
    other_kind,
    probable_kind,
)
from harness.testing.schedules._schedule import Schedule
from harness.testing.schedules._search import Probe
from harness.testing.schedules._strand import Kind, Observer
from harness.testing.schedules._thread_patches import adopting

MOST_STEPS = 100_000
"""How many steps make a livelock, by default."""


def run_schedule(
    target: Callable[[], Any],
    schedule: Schedule | str = Schedule(),  # noqa: B008 - frozen
    *,
    observers: tuple[Observer, ...] = (),
    most_steps: int = MOST_STEPS,
    context: Context | None = None,
    backend: Kind | None = None,
) -> ScheduleRun:
    """Run a program once under a schedule, in an event loop of its own on a virtual clock.

    The call blocks its thread until the program has ended. Inside trio, call it in a worker thread:
    ``await trio.to_thread.run_sync(run_schedule, program)``.

    Args:
      target: The program: an async function without arguments, or a plain one with threads.
      schedule: The schedule or its replay string; by default the plain one, without a switch.
      observers: Look on between the steps.
      most_steps: After how many steps to cut the program short and call it a livelock.
      context: The context variables that the program starts with; by default a copy of the
        caller's.
      backend: ``"trio"`` or ``"asyncio"``; by default it is told from the code. If only its first
        wait tells, the program is begun twice.

    Returns:
      What came of it. What the program raises isn't raised here, but is in `ScheduleRun.outcome`;
      so is a deadlock or livelock.

    Raises:
      ValueError: if the replay string isn't valid, or there is no such backend.
      TypeError: if ``schedule`` is neither a schedule nor a string.
      RuntimeError: if this thread has an event loop, or trio can't be controlled.
    """
    if not isinstance(schedule, Schedule):
        schedule = Schedule.parse(schedule)
    fixed = check_kind("run_schedule(backend=...)", backend)
    refuse_inside_a_loop("run_schedule")

    def run(kind: Kind) -> ScheduleRun:
        return run_controlled(
            target,
            Planned(schedule.choices()),
            backend=BACKENDS[kind](),
            faults=schedule.faults,
            plan=schedule,
            observers=observers,
            most_steps=most_steps,
            context=context,
        )

    with adopting(target):
        return run(fixed) if fixed else of_its_kind(probable_kind(target), run)


def of_its_kind(kind: Kind, run: Callable[[Kind], ScheduleRun]) -> ScheduleRun:
    """Run a program as one of this kind, and as the other if it turns out to be that."""
    made = run(kind)
    other = other_kind(kind, [made.error])
    if other is None:
        return made
    if kind == "threads":
        return of_its_kind(other, run)
    again = run(other)
    return made if other_kind(other, [again.error]) else again


def run_probe(
    target: Callable[[], Any],
    probe: Probe,
    *,
    observers: tuple[Observer, ...] = (),
    most_steps: int = MOST_STEPS,
    backend: Kind,
) -> ScheduleRun:
    """Run a program the way a search asks for; otherwise like `run_schedule`."""
    return run_controlled(
        target,
        probe.chooser,
        backend=BACKENDS[backend](),
        faults=probe.faults,
        observers=(*observers, *probe.observers),
        most_steps=most_steps,
    )


def refuse_inside_a_loop(what: str) -> None:
    """Refuse to start a loop in a thread that already has one."""
    if asyncio._get_running_loop() is not None:
        loop, thread = "asyncio", f"asyncio.to_thread({what}, ...)"
    elif _in_trio():
        loop, thread = "trio", f"trio.to_thread.run_sync({what}, ...)"
    else:
        return
    raise RuntimeError(
        f"{what} starts an event loop of its own, and this thread is inside {loop} already; call "
        f"it in a worker thread: `await {thread}`"
    )


def _in_trio() -> bool:
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return False
    return True
