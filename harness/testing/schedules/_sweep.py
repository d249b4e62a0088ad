"""Propose what to make go wrong: cancel every run at every step, fail and delay every call.

What there is to strike is learned from earlier runs. Each fault is proposed once, in random order;
then pairs of them, for as long as somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from types import MappingProxyType

import attrs

from harness.testing.schedules._schedule import Fault, FaultKind


@attrs.define(eq=False)
class Sweep:
    """The faults that can strike a program, and which haven't been tried yet."""

    random: Random
    cancels: bool
    """Whether runs are cancelled, rather than only calls made to fail."""

    _known: list[Fault] = attrs.field(factory=list[Fault], init=False)
    _untried: list[Fault] = attrs.field(factory=list[Fault], init=False)
    _steps: dict[int, int] = attrs.field(factory=dict[int, int], init=False)
    _task_steps: dict[int, int] = attrs.field(factory=dict[int, int], init=False)
    _calls: dict[int, int] = attrs.field(factory=dict[int, int], init=False)

    def learn(
        self,
        steps: Mapping[int, int],
        calls: Mapping[int, int],
        task_steps: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Learn the steps and calls of each run, by its number, and the steps of each task."""
        new: list[Fault] = []
        # After its last step a task has ended.
        waits = {number: made - 1 for number, made in task_steps.items()}
        new += _unknown(self._task_steps, waits, "cancel_task", "cancel_task_waking")
        if self.cancels:
            of_runs = {number: made for number, made in steps.items() if number}
            new += _unknown(self._steps, of_runs, "cancel", "cancel_waking")
        new += _unknown(self._calls, calls, "fail", "delay")
        if new:
            self._known += new
            self._untried += new
            self.random.shuffle(self._untried)

    def __bool__(self) -> bool:
        """Whether there is anything to strike."""
        return bool(self._known)

    def propose(self) -> tuple[Fault, ...]:
        """Return what goes wrong in the next run."""
        if self._untried:
            return (self._untried.pop(),)
        first, second = self.random.choices(self._known, k=2)
        # Only one task is cancelled: two cancels at once are hardly anybody's doing.
        if self.random.random() < 0.5 or (first.cancels_task and second.cancels_task):
            return (first,)
        return (first, second)


def _unknown(known: dict[int, int], made: Mapping[int, int], *kinds: FaultKind) -> Iterator[Fault]:
    """Yield faults of these kinds for what was not known, and take note of it."""
    for number, count in made.items():
        for at in range(known.get(number, 0) + 1, count + 1):
            known[number] = at
            for kind in kinds:
                yield Fault(number, at, kind)
