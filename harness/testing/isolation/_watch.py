"""See after every step what it changed in what runs share.

Between two checkpoints only one task runs, so whatever differs after a step was written by the run
whose step it was. That needs no proxy and no tracing, and leaves no doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import attrs

from harness._words import error_in_words
from harness.runs._frames import describe_wait
from harness.testing.objects import Part, SharedState, Suspect, suspects_of
from harness.testing.schedules import Strand
from harness.testing.schedules._control import frames_of

CLOSE_LOOKS_AT_MOST = 200
"""After how many steps a trial is no longer looked at closely."""

member: ContextVar[int | None] = ContextVar("harness.testing.isolation.member", default=None)
"""Which of the checked runs the code belongs to, as the index of its input."""


def member_of(task: Strand) -> int | None:
    """Return which of the runs a task belongs to, if any."""
    return task.context.get(member)


@attrs.define(eq=False)
class Step:
    """One step of one run."""

    number: int
    """Which step of the program, from 1."""

    member: int
    waits_in: str
    """Where the task stopped, in words; empty if it ended."""

    writes: list[Suspect] = attrs.field(factory=list[Suspect])


class StepWatch:
    """An observer that records which step wrote what.

    Args:
      state: What is watched.
      closely: Whether to look at the rest after each step, too; see `SharedState.look_closer`.
    """

    def __init__(self, state: SharedState, *, closely: bool = False) -> None:
        self.steps: list[Step] = []
        self._state = state
        self._looks = CLOSE_LOOKS_AT_MOST if closely else 0
        self._last: list[Any] = []

    def begin(self) -> None:
        """Forget what was seen; the first step begins from what is there then."""
        self._last = []

    def before_step(self, task: Strand) -> None:
        """Take everything as it is before the first step."""
        if not self._last:
            if self._looks:  # What the kit itself changes for the length of a trial isn't a run's.
                self._state.look_closer()
            self._last = [part.take() for part in self._state.parts]

    def after_step(self, task: Strand) -> None:
        """Compare everything with how it was after the previous step."""
        run = member_of(task)
        if self._looks and run is not None:
            self._looks -= 1
            self._state.look_closer()
            self._last += self._state.initial[len(self._last) :]
        writes = list(self._changes())
        if run is not None:
            self.steps.append(Step(len(self.steps) + 1, run, _halt(task), writes))

    def leave_out(self, parts: Container[Part]) -> None:
        """Forget what was written to these."""
        for step in self.steps:
            step.writes = [write for write in step.writes if write.part not in parts]

    def _changes(self) -> Iterable[Suspect]:
        for index, part in enumerate(self._state.parts):
            now = part.take()
            yield from suspects_of(part, self._last[index], now)
            self._last[index] = now


def _halt(task: Strand) -> str:
    frames = frames_of(task)
    return describe_wait(frames) if frames else ""


@attrs.frozen
class OutOfOrder:
    """A declared shared object was found out of order."""

    path: str
    member: int
    step: int
    waits_in: str
    why: str


class OrderWatch:
    """An observer that checks after every step that what is shared on purpose is in order."""

    def __init__(self, checks: Mapping[str, Callable[[], object]]) -> None:
        self.broken: OutOfOrder | None = None
        self._checks = checks
        self._steps = 0

    def before_step(self, task: Strand) -> None:
        """Do nothing."""

    def after_step(self, task: Strand) -> None:
        """Run each check, until one says no."""
        run = member_of(task)
        if run is None or self.broken is not None:
            return
        self._steps += 1
        for path, check in self._checks.items():
            why = out_of_order(check)
            if why is not None:
                self.broken = OutOfOrder(path, run, self._steps, _halt(task), why)
                return


def out_of_order(check: Callable[[], object]) -> str | None:
    """Return why a check fails; None if it passes."""
    try:
        return None if check() else "its function returned false"
    except Exception as error:
        return f"its function raised {error_in_words(error)}"
