"""Choose which task goes on: from a schedule, or at random in one of several ways.

A chooser is asked at every decision. It gets the numbers of the tasks that could go on, in the
order in which a schedule counts them, and returns an index into them. The random ones have their
own generators, so the same seed goes the same way through the same program.

Which of them finds a fault depends on the fault, so a search takes turns:

- *walk*: any task with equal chance. Good at faults that many orders reveal, which most are.
- *sticky*: like a walk, but it switches only now and then. Good if one task must stay put while
  another gets far.
- *priorities* (PCT): each task draws a priority, the highest goes on, and at a few random decisions
  the task that goes on drops to the lowest. A fault that needs ``d`` things in order is found with
  a chance of at least 1 in ``tasks × decisions^(d-1)``, however rare it is in a walk.
- *steps* (POS): each step draws a priority that lasts until it has run. Good if many tasks race for
  one place.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol

import attrs


class Chooser(Protocol):
    """What is asked at every decision."""

    def choose(self, tasks: Sequence[int]) -> int:
        """Return the index of the task that goes on; 0 for no switch."""
        ...


@attrs.define(eq=False)
class Planned:
    """Makes the recorded choices, and never switches otherwise."""

    choices: Mapping[int, int]
    """Choices by the number of the decision."""

    decision: int = attrs.field(default=0, init=False)
    _switches: list[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._switches = sorted(self.choices)

    def choose(self, tasks: Sequence[int]) -> int:
        """Return the choice for this decision; the last task if there are fewer than expected."""
        choice = self.choices.get(self.decision, 0)
        self.decision += 1
        return min(choice, len(tasks) - 1)

    def stays(self) -> int:
        """Return how many decisions in a row are going to be 0."""
        following = bisect_left(self._switches, self.decision)
        return (*self._switches[following : following + 1], sys.maxsize)[0] - self.decision

    def skip(self, decisions: int) -> None:
        """Count decisions that were 0."""
        self.decision += decisions


@attrs.define(eq=False)
class Afterwards:
    """Follows a plan for a number of decisions, and then another chooser."""

    plan: Planned
    decisions: int
    then: Chooser

    def choose(self, tasks: Sequence[int]) -> int:
        """Return what the plan says or, later, what the other chooser says."""
        if self.plan.decision < self.decisions:
            return self.plan.choose(tasks)
        return self.then.choose(tasks)


@attrs.define(eq=False)
class ArrivalsOnly:
    """Asks another chooser about replies, and never switches between tasks."""

    chooser: Chooser

    def choose(self, tasks: Sequence[int]) -> int:
        """Return 0, unless it is about replies, which have numbers below 0."""
        return self.chooser.choose(tasks) if tasks[0] < 0 else 0


@attrs.define(eq=False)
class Uniform:
    """Picks any task with equal chance."""

    random: Random

    def choose(self, tasks: Sequence[int]) -> int:
        """Return any index."""
        return int(self.random.random() * len(tasks))


@attrs.define(eq=False)
class Sticky:
    """Stays with a task, and now and then switches to any other."""

    random: Random
    switching: float
    """The chance of a switch at a decision."""

    _stays: int = attrs.field(default=-1, init=False)
    """How often it stays before it switches; below 0 if that isn't drawn yet."""

    def choose(self, tasks: Sequence[int]) -> int:
        """Return 0, or now and then any other index."""
        left = self.stays()
        self._stays = left - 1
        return 0 if left else 1 + int(self.random.random() * (len(tasks) - 1))

    def stays(self) -> int:
        """Return how many decisions in a row are going to be 0."""
        if self._stays < 0:
            self._stays = 0
            while self.random.random() >= self.switching:
                self._stays += 1
        return self._stays

    def skip(self, decisions: int) -> None:
        """Count decisions at which it stayed."""
        self._stays -= decisions


@attrs.define(eq=False)
class Priorities:
    """Lets the highest priority go on; at a few decisions that task drops to the lowest."""

    random: Random
    falls: int
    """How many such decisions there are."""

    decisions: int
    """How many decisions the program is expected to have."""

    priority: dict[int, float] = attrs.field(factory=dict[int, float], init=False)
    decision: int = attrs.field(default=0, init=False)
    falls_to: dict[int, float] = attrs.field(init=False)
    """The priorities that tasks drop to, by the number of the decision: the last to drop needn't
    be the lowest, or some faults would never be found."""

    def __attrs_post_init__(self) -> None:
        most = max(self.decisions, self.falls, 1)
        at = self.random.sample(range(most), self.falls)
        self.falls_to = {decision: -1.0 - number for number, decision in enumerate(at)}

    def choose(self, tasks: Sequence[int]) -> int:
        """Return the index of the task with the highest priority."""
        priority = self.priority
        for task in tasks:
            if task not in priority:
                priority[task] = self.random.random()
        highest = max(tasks, key=priority.__getitem__)
        if self.decision in self.falls_to:
            priority[highest] = self.falls_to[self.decision]
            highest = max(tasks, key=priority.__getitem__)
        self.decision += 1
        return tasks.index(highest)

    def stays(self) -> int:
        """Return how many decisions are going to be like the last one, if the tasks are its."""
        falls = [one for one in self.falls_to if one >= self.decision]
        return min(falls, default=sys.maxsize) - self.decision

    def skip(self, decisions: int) -> None:
        """Count decisions at which the highest went on."""
        self.decision += decisions


@attrs.define(eq=False)
class StepPriorities:
    """Draws a priority for each step that could come next, and lets the highest go on."""

    random: Random
    priority: dict[int, float] = attrs.field(factory=dict[int, float], init=False)

    def choose(self, tasks: Sequence[int]) -> int:
        """Return the index of the task whose next step has the highest priority."""
        priority = self.priority
        for task in tasks:
            if task not in priority:
                priority[task] = self.random.random()
        highest = max(tasks, key=priority.__getitem__)
        del priority[highest]
        return tasks.index(highest)


Foreseeing = Planned | Sticky | Priorities
"""What can tell how long it won't switch, so that it needn't be asked until then."""
