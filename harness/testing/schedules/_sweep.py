"""Propose what to make go wrong: cancel every run at every step, fail and delay every call.

What there is to strike is learned from earlier runs. Each fault is proposed once, in random order;
then pairs of them, for as long as somebody asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import attrs

from harness.testing.schedules._schedule import Fault


@attrs.define(eq=False)
class Sweep:
    """The faults that can strike a program, and which haven't been tried yet."""

    random: Random
    cancels: bool
    """Whether runs are cancelled, rather than only calls made to fail."""

    _known: list[Fault] = attrs.field(factory=list[Fault], init=False)
    _untried: list[Fault] = attrs.field(factory=list[Fault], init=False)
    _steps: dict[int, int] = attrs.field(factory=dict[int, int], init=False)
    _calls: dict[int, int] = attrs.field(factory=dict[int, int], init=False)

    def learn(self, steps: Mapping[int, int], calls: Mapping[int, int]) -> None:
        """Learn the steps and calls that each run made, by its number."""
        new: list[Fault] = []
        if self.cancels:
            for number, made in steps.items():
                known = self._steps.get(number, 0)
                if number and made > known:
                    self._steps[number] = made
                    for at in range(known + 1, made + 1):
                        new += [Fault(number, at, "cancel"), Fault(number, at, "cancel_waking")]
        for number, made in calls.items():
            known = self._calls.get(number, 0)
            if made > known:
                self._calls[number] = made
                for at in range(known + 1, made + 1):
                    new += [Fault(number, at, "fail"), Fault(number, at, "delay")]
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
        return tuple(self.random.choices(self._known, k=1 + (self.random.random() < 0.5)))
