"""Count the steps and the calls of each run and task that faults can strike, and strike in time.

A run is known by a number; 0 is the program itself, outside all runs. Steps after which a run had
to wait are also recorded: there a cancel is most likely to hurt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

import attrs

from harness.testing.schedules._schedule import Fault
from harness.testing.schedules._strand import Strand


@attrs.define(eq=False)
class Target:
    """One of the runs that faults can strike."""

    number: int
    cancel: Callable[[], None]
    steps: int = 0
    """Steps that its strands have made."""

    calls: int = 0
    """Calls it has made to functions that can be made to fail."""

    struck: list[Fault] = attrs.field(factory=list[Fault])
    """What was made to go wrong in it."""


@attrs.frozen
class Wait:
    """A step after which a run had to wait for others: where a cancel is most likely to hurt."""

    run: int
    """The run, by the number of its target."""

    step: int
    """The run's step, from 1."""

    decisions: int
    """How many decisions had been made by then."""


class StruckTasks(Protocol):
    """Cancels tasks of a controlled program, and watches what comes of it."""

    def cancel(self, strand: Strand, fault: Fault) -> None:
        """Cancel a task, or whoever such a cancel must come from."""
        ...

    def watched(self, strand: Strand, coro: Any) -> Any:
        """Return the coroutine for a task that has just been started, so that it can be struck."""
        ...

    def step_ended(self) -> None:
        """Look at what the last step made of a cancel."""
        ...

    def in_words(self) -> list[str]:
        """Return what was cancelled, and where."""
        ...


target_of_task: ContextVar[Target | None] = ContextVar("harness.testing.target", default=None)
"""The run that the current code belongs to, for faults. Set by `faultable`."""


class Targets:
    """The runs of one controlled program that faults can strike."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.faults = tuple(faults)
        self.by_number = {0: Target(0, lambda: None)}
        self.waits: list[Wait] = []
        """The steps of targets after which they had to wait for others."""
        self.stepped: tuple[Target, Strand] | None = None
        """The target that made the last step, until it is known whether it has to wait now."""
        self.struck_tasks: StruckTasks | None = None
        """What cancels tasks; set by the program, before it starts any."""
        self.labels: dict[Fault, str] = {}
        """What the faults struck that struck a point with a label."""
        self._task_steps: dict[int, int] = {}
        self._struck_tasks_by: list[Fault] = []
        self._by_step: dict[tuple[int, int], list[Fault]] = {}
        self._by_task_step: dict[tuple[int, int], list[Fault]] = {}
        self._by_call: dict[tuple[int, int], list[Fault]] = {}
        self._after_step: list[Callable[[], None]] = []
        for fault in self.faults:
            if fault.cancels_task:
                table = self._by_task_step
            else:
                table = self._by_call if fault.kind in ("fail", "delay") else self._by_step
            table.setdefault((fault.run, fault.at), []).append(fault)
        self.strikes_tasks = bool(self._by_task_step)
        """Whether any task is to be cancelled."""

    def count_step(self, strand: Strand) -> None:
        """Count a step for the run that a strand belongs to, and strike if it is time."""
        target = strand.context.get(target_of_task)
        if target is None or self.by_number.get(target.number) is not target:
            return
        target.steps += 1
        self.stepped = (target, strand)
        for fault in self._by_step.get((target.number, target.steps), ()):
            target.struck.append(fault)
            if fault.kind == "cancel_waking":
                target.cancel()
            else:
                self._after_step.append(target.cancel)

    def begin_task_step(self, number: int, strand: Strand) -> None:
        """Count a step of a task, and cancel the task if it is time."""
        self._task_steps[number] = step = self._task_steps.get(number, 0) + 1
        for fault in self._by_task_step.get((number, step), ()):
            strike = partial(self._strike_task, strand, fault)
            if fault.kind == "cancel_task_waking":
                strike()
            else:
                self._after_step.append(strike)

    def _strike_task(self, strand: Strand, fault: Fault) -> None:
        if self.struck_tasks is not None:
            self._struck_tasks_by.append(fault)
            self.struck_tasks.cancel(strand, fault)

    def note_wait(self, *, goes_on: bool, is_live: bool, decisions: int) -> None:
        """Record whether the target that made the last step has to wait now.

        Args:
          goes_on: Whether its strand could make another step at once.
          is_live: Whether its strand hasn't ended.
          decisions: How many decisions had been made by then.
        """
        assert self.stepped is not None
        target, _ = self.stepped
        self.stepped = None
        if not goes_on and is_live:
            self.waits.append(Wait(target.number, target.steps, decisions))

    def step_ended(self) -> None:
        """Do what was waiting for the last picked step to end."""
        if self.struck_tasks is not None:
            self.struck_tasks.step_ended()
        while self._after_step:
            self._after_step.pop()()

    def call(self, target: Target, label: str = "") -> Sequence[Fault]:
        """Count a call that can be made to go wrong, or a point; return what should go wrong."""
        target.calls += 1
        faults = self._by_call.get((target.number, target.calls), [])
        if label:  # A point takes no time.
            faults = [fault for fault in faults if fault.kind == "fail"]
            self.labels.update((fault, label) for fault in faults)
        target.struck.extend(faults)
        return faults

    @property
    def struck(self) -> tuple[Fault, ...]:
        """All the faults that struck."""
        of_runs = [fault for target in self.by_number.values() for fault in target.struck]
        return (*of_runs, *self._struck_tasks_by)
