"""Ways to choose who goes on: from a schedule, or at random in one of five manners.

A chooser is asked at every decision. It gets the numbers of the tasks that could go on, in the
order in which a schedule counts them, and returns an index into them. The random ones draw from a
generator of their own, so the same seed walks the same way through the same program.

Which manner finds a fault depends on the fault, so a search takes turns:

- *walk*: any task with equal chance. Good at faults that many orders show; most are found so.
- *sticky*: as a walk, but it switches only now and then. Good where one task must stand still
  while another gets far.
- *priorities* (PCT): each task draws a priority, the highest goes on, and at a few random
  decisions the one that goes on falls to the lowest. A fault that needs ``d`` things in order is
  found with a chance of at least 1 in ``tasks × decisions^(d-1)``, however rare it is in a walk.
- *steps* (POS): each step draws a priority that holds until it has run. Good where many tasks
  race for one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol

import attrs


class Chooser(Protocol):
    """Who is asked at every decision."""

    def choose(self, tasks: Sequence[int]) -> int:
        """Return the index of the task that goes on; 0 for no switch."""
        ...


@attrs.define(eq=False)
class Planned:
    """Makes the choices that were written down, and never switches otherwise."""

    choices: Mapping[int, int]
    """Choices by the number of the decision."""

    decision: int = attrs.field(default=0, init=False)

    def choose(self, tasks: Sequence[int]) -> int:
        """Return the choice for this decision; the last task if there are fewer than meant."""
        choice = self.choices.get(self.decision, 0)
        self.decision += 1
        return min(choice, len(tasks) - 1)


@attrs.define(eq=False)
class Afterwards:
    """Follows a plan for so many decisions, and then somebody else."""

    plan: Planned
    decisions: int
    then: Chooser

    def choose(self, tasks: Sequence[int]) -> int:
        """Return what the plan says, or later what the other one does."""
        if self.plan.decision < self.decisions:
            return self.plan.choose(tasks)
        return self.then.choose(tasks)


@attrs.define(eq=False)
class ArrivalsOnly:
    """Asks another chooser about replies, and never switches between tasks."""

    chooser: Chooser

    def choose(self, tasks: Sequence[int]) -> int:
        """Return 0, unless it is about replies: those have numbers below 0."""
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

    def choose(self, tasks: Sequence[int]) -> int:
        """Return 0, or now and then any other index."""
        if self.random.random() >= self.switching:
            return 0
        return 1 + int(self.random.random() * (len(tasks) - 1))


@attrs.define(eq=False)
class Priorities:
    """Lets the highest priority go on; at a few decisions that task falls to the lowest."""

    random: Random
    falls: int
    """How many such decisions there are."""

    decisions: int
    """How many decisions the program is thought to have."""

    priority: dict[int, float] = attrs.field(factory=dict[int, float], init=False)
    decision: int = attrs.field(default=0, init=False)
    falls_at: frozenset[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        most = max(self.decisions, self.falls, 1)
        self.falls_at = frozenset(self.random.sample(range(most), self.falls))

    def choose(self, tasks: Sequence[int]) -> int:
        """Return the index of the task with the highest priority."""
        priority = self.priority
        for task in tasks:
            if task not in priority:
                priority[task] = self.random.random()
        highest = max(tasks, key=priority.__getitem__)
        if self.decision in self.falls_at:
            priority[highest] = -1.0 - self.decision  # Below all that fell before.
            highest = max(tasks, key=priority.__getitem__)
        self.decision += 1
        return tasks.index(highest)


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
