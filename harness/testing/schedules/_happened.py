"""Tell which steps of a run had to come in their order, and so which orders are the same.

A step comes after another if its task made both, if the other started it or let it go on, or if
both touched the same place and one wrote. Two orders that differ only elsewhere are one and the
same: no assertion can tell them apart (Mazurkiewicz's traces). Steps are compared by clocks: by
task, how many of its steps came before.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property

import attrs

from harness.testing.schedules._effects import ANY
from harness.testing.schedules._watch import Step

Clock = dict[int, int]

STATES_AT_MOST = 20_000
"""How many states are kept side by side to count orders."""


def _join(clock: Clock, other: Mapping[int, int]) -> None:
    for task, count in other.items():
        if count > clock.get(task, 0):
            clock[task] = count


@attrs.define(eq=False)
class Happened:
    """What had to happen before what in a run."""

    steps: Sequence[Step]
    started_by: Sequence[int]
    clocks: list[Clock] = attrs.field(factory=list, init=False)
    """By step: how many steps of each task came before it, and itself."""

    synchronized: list[Clock] = attrs.field(factory=list, init=False)
    """The same, but for what both touched."""

    races: list[tuple[int, int]] = attrs.field(factory=list, init=False)
    """Pairs of steps that could have come in the other order, with another outcome."""

    _places: list[int] = attrs.field(factory=list, init=False)
    """By step: how many its task had made before."""

    def __attrs_post_init__(self) -> None:
        made: dict[int, int] = {}
        touching: dict[int, list[int]] = {}
        concern_all: list[int] = []
        everything: Clock = {}
        before: Clock = {}
        phase, phase_began = 0, 0
        for here, step in enumerate(self.steps):
            if step.phase != phase:
                phase, phase_began, before = step.phase, here, dict(everything)
                touching.clear()
                concern_all.clear()
            place = made[step.task] = made.get(step.task, 0) + 1
            self._places.append(place)
            clock, synchronized = dict(before), dict(before)
            for earlier in step.after:
                if earlier < here:
                    _join(clock, self.clocks[earlier])
                    _join(synchronized, self.synchronized[earlier])
            touched = step.effects.touched
            if step.effects.depends_on_all or ANY in touched:
                candidates = set(range(phase_began, here))
            else:
                found = [touching.get(thing, ()) for thing in (ANY, *touched)]
                candidates = {*concern_all}.union(*found)
            given_back: list[Clock] = []
            for earlier in sorted(candidates, reverse=True):
                other = self.steps[earlier]
                if not self._is_in(earlier, clock) and step.effects.conflicts_with(other.effects):
                    if step.needs in other.effects.gives_back:
                        # It can't come before this. But it can before whoever took that lock.
                        given_back.append(self.clocks[earlier])
                        continue
                    self.races.append((earlier, here))
                    _join(clock, self.clocks[earlier])
            for one in given_back:
                _join(clock, one)
            for one in (clock, synchronized, everything):
                one[step.task] = place
            self.clocks.append(clock)
            self.synchronized.append(synchronized)
            for thing in touched:
                touching.setdefault(thing, []).append(here)
            if step.effects.depends_on_all:
                concern_all.append(here)

    def _is_in(self, step: int, clock: Clock) -> bool:
        return clock.get(self.steps[step].task, 0) >= self._places[step]

    def is_before(self, earlier: int, later: int) -> bool:
        """Tell whether a step had to come before another."""
        return self._is_in(earlier, self.clocks[later])

    def is_synchronized(self, earlier: int, later: int) -> bool:
        """Tell whether it had to, whatever both touched."""
        return self._is_in(earlier, self.synchronized[later])

    def first_in_reverse(self, earlier: int, later: int) -> set[int]:
        """Return the tasks that could go on first for a later step to come before an earlier."""
        between = [one for one in range(earlier + 1, later) if not self.is_before(earlier, one)]
        found: set[int] = set()
        passed: list[int] = []
        for one in (*between, later):
            task = self.steps[one].task
            if task not in found and not any(self.is_before(other, one) for other in passed):
                found.add(task)
            passed.append(one)
        return found

    @cached_property
    def key(self) -> Hashable:
        """What two orders have in common that nothing can tell apart."""
        names: list[Hashable] = []
        children: dict[int, int] = {}
        for number, parent in enumerate(self.started_by):
            # The numbers of tasks depend on the order; who started whom, and as which, doesn't.
            nth = children[parent] = children.get(parent, 0) + 1
            names.append((names[parent] if number else (), nth))
        ids = {name: number for number, name in enumerate(sorted(names, key=repr))}
        renamed = [ids[name] for name in names]
        return hash(
            tuple(
                sorted(
                    (
                        renamed[step.task],
                        place,
                        step.phase,
                        tuple(sorted((renamed[task], count) for task, count in clock.items())),
                    )
                    for step, place, clock in zip(
                        self.steps, self._places, self.clocks, strict=True
                    )
                )
            )
        )

    def orders(self) -> int | None:
        """Return how many orders of its steps are the same as this one; None if it's too many."""
        product, before = 1, Clock()
        begin = 0
        while begin < len(self.steps):
            end = begin
            while end < len(self.steps) and self.steps[end].phase == self.steps[begin].phase:
                end += 1
            count = self._orders_between(begin, end, before)
            if count is None:
                return None
            product *= count
            for step in range(begin, end):
                _join(before, self.clocks[step])
            begin = end
        return product

    def _orders_between(self, begin: int, end: int, before: Clock) -> int | None:
        tasks = sorted({step.task for step in self.steps[begin:end]})
        column = {task: number for number, task in enumerate(tasks)}
        needs: list[list[list[tuple[int, int]]]] = [[] for _ in tasks]
        for step in range(begin, end):
            task = self.steps[step].task
            needs[column[task]].append(
                [
                    (column[other], count - before.get(other, 0))
                    for other, count in self.clocks[step].items()
                    if other != task and other in column
                ]
            )
        states = {(0,) * len(tasks): 1}
        for _ in range(begin, end):
            following: dict[tuple[int, ...], int] = {}
            for state, count in states.items():
                for number, own in enumerate(needs):
                    made = state[number]
                    if made < len(own) and all(state[other] >= least for other, least in own[made]):
                        reached = (*state[:number], made + 1, *state[number + 1 :])
                        following[reached] = following.get(reached, 0) + count
            if len(following) > STATES_AT_MOST:
                return None
            states = following
        return sum(states.values())
