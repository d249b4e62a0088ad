"""Small programs whose order of steps can be read off what they return, and every backend."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from harness.testing.schedules import Observer, ScheduleRun
from harness.testing.schedules._choosers import Planned
from harness.testing.schedules._controlled import run_controlled
from harness.testing.schedules._schedule import Schedule
from harness.testing.schedules._step_backend import StepBackend
from harness.testing.schedules._step_backends import BACKENDS

each_backend = pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)


async def letters(names: str = "abc", count: int = 2) -> str:
    """Have a task for each letter write it so many times."""
    written: list[str] = []

    async def write(letter: str) -> None:
        for _ in range(count - 1):
            written.append(letter)
            await trio.lowlevel.checkpoint()
        written.append(letter)

    async with trio.open_nursery() as nursery:
        for letter in names:
            nursery.start_soon(write, letter, name=letter)
    return "".join(written)


def run_with(
    backend: StepBackend,
    program: Callable[[], Awaitable[Any]],
    schedule: Schedule | str = Schedule(),  # noqa: B008 - frozen
    *,
    observers: tuple[Observer, ...] = (),
    most_steps: int = 2_000,
) -> ScheduleRun:
    """Run a program under a schedule by a backend."""
    if isinstance(schedule, str):
        schedule = Schedule.parse(schedule)
    return run_controlled(
        program,
        Planned(schedule.choices()),
        backend=backend,
        faults=schedule.faults,
        plan=schedule,
        observers=observers,
        most_steps=most_steps,
    )
