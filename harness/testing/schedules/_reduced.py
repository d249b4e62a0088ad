"""Run a program once for each order that could matter, and no order twice if that can be avoided.

Two steps that touch nothing in common can be swapped, and nobody notices. So after each run only
those pairs of its steps are turned round that did touch the same place, and weren't ordered
otherwise: a partial-order reduction by source sets and sleep sets (Abdulla, Aronis, Jonsson,
Sagonas, "Optimal dynamic partial order reduction", 2014). What is left out is the same, for every
assertion, as something that was run.

A sleep set holds tasks whose next step would only lead to what was run before. What such a step
touches was seen in another run, with other objects: those that had been touched before both runs
parted are told apart by their number, and of others it is assumed that those of one type are one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import attrs

from harness.testing.schedules._controlled import ScheduleRun
from harness.testing.schedules._effects import ANY, WHOLE
from harness.testing.schedules._happened import Happened
from harness.testing.schedules._orders_seen import Seen
from harness.testing.schedules._search import Probe, Search
from harness.testing.schedules._watch import Step, Watch


@attrs.frozen(eq=False)
class _Asleep:
    """What a task's next step does, seen in another run that parted from this one later."""

    known: int
    """How many objects had been touched before."""
    touched: dict[int | str, dict[Hashable, bool]] | None
    """By object, what was touched and whether it was written; None for anything."""

    @classmethod
    def of(cls, step: Step, known: int, things: Sequence[Any]) -> _Asleep:
        if step.effects.depends_on_all:
            return cls(known, None)
        touched: dict[int | str, dict[Hashable, bool]] = {}
        for thing, keys in step.effects.touched.items():
            name = thing if thing < known else type(things[thing]).__qualname__
            own = touched.setdefault(name, {})
            for key, access in keys.items():
                own[key] = own.get(key, False) or access.writes
        return cls(known, touched)

    def may_conflict_with(self, step: Step, things: Sequence[Any]) -> bool:
        """Tell whether this step might have to be in order with a step of the current run."""
        other = _Asleep.of(step, self.known, things).touched
        if self.touched is None or other is None:
            return True
        return any(
            (writes or also_writes) and (key == other_key or WHOLE in (key, other_key))
            for name, keys in self.touched.items()
            for other_name, other_keys in other.items()
            if name == other_name or ANY in (name, other_name)
            for key, writes in keys.items()
            for other_key, also_writes in other_keys.items()
        )


@attrs.define(eq=False)
class _Node:
    """A decision on the way to the current run."""

    options: frozenset[int]
    so_far: int
    """What had been done before it, to notice a program that differs by chance."""
    place: int
    """How many steps had been made before it."""
    known: int
    chosen: int
    wanted: set[int]
    """What is to be chosen here, in some run."""
    asleep: dict[int, _Asleep]
    done: dict[int, _Asleep] = attrs.field(factory=dict)


def _so_far(watch: Watch) -> int:
    return hash(tuple((step.task, len(step.effects.touched)) for step in watch.steps))


@attrs.define(eq=False)
class _Guide:
    """Chooses what comes next: what is planned at first, then no task that is asleep."""

    nodes: list[_Node]
    watch: Watch
    depth: int = 0
    diverged: bool = False
    blocked_at: int | None = None
    """The step from which on everything has been run before."""
    _planned: int = attrs.field(init=False)
    _asleep: dict[int, _Asleep] = attrs.field(factory=dict)
    _looked: int = 0

    def __attrs_post_init__(self) -> None:
        self._planned = len(self.nodes)

    def choose(self, tasks: Sequence[int]) -> int:
        """Return the index of the task that goes on, or of the reply that arrives."""
        watch = self.watch
        is_arrival = tasks[0] < 0
        watch.note_options(tasks)
        self.look()
        if is_arrival:
            self._asleep = {}  # Everything before it has happened, whatever the order.
        place, depth = len(watch.steps), self.depth
        self.depth += 1
        if depth < self._planned:
            node = self.nodes[depth]
            same = node.options == frozenset(tasks) and node.so_far == _so_far(watch)
            if not same or self.diverged:
                self.diverged = True
                return 0
            if depth == self._planned - 1:
                self._asleep = {} if is_arrival else {**node.asleep, **node.done}
                self._asleep.pop(node.chosen, None)
                self._looked = place
            return tasks.index(node.chosen)
        if self.diverged or self.blocked_at is not None:
            return 0
        awake = [task for task in tasks if task not in self._asleep]
        if not awake:
            self.blocked_at = place
            return 0
        chosen = awake[0]
        self.nodes.append(
            _Node(
                frozenset(tasks),
                _so_far(watch),
                place,
                len(watch.things.kept),
                chosen,
                set(tasks) if is_arrival else {chosen},
                dict(self._asleep),
            )
        )
        return tasks.index(chosen)

    def look(self) -> None:
        """Wake who might be concerned by the steps that were made."""
        if self.depth < self._planned:
            return
        watch = self.watch
        for place in range(self._looked, len(watch.steps)):
            step = watch.steps[place]
            if step.task in self._asleep and self.blocked_at is None:
                self.blocked_at = place
            for task in list(self._asleep):
                if self._asleep[task].may_conflict_with(step, watch.things.kept):
                    del self._asleep[task]
        self._looked = len(watch.steps)


@attrs.define(eq=False)
class Reduced:
    """A search for every order that could matter: one change at a time, the latest first."""

    rest: Search
    """What goes on where there are too many orders to run them all."""
    most_runs: int
    """After how many runs there are."""
    exhausted: bool = attrs.field(default=False, init=False)
    """Whether every order that matters was run, as far as steps could be seen."""

    seen: Seen = attrs.field(factory=Seen, init=False)
    _nodes: list[_Node] = attrs.field(factory=list, init=False)
    _guide: _Guide | None = attrs.field(default=None, init=False)
    _first: Hashable = attrs.field(default=None, init=False)
    """What the first order has in common with those that are the same."""

    def probes(self) -> Iterator[Probe]:
        """Yield what to run next. Tell `learn` the outcome of each before asking for another."""
        while self.seen.runs < self.most_runs:
            watch = Watch()
            self._guide = guide = _Guide(self._nodes, watch)
            yield Probe(guide, observers=(watch,))
            if guide.diverged:
                self.seen.note_divergence()
                break
            if not self._go_back():
                # Once more the first one: if it isn't the same, something else decides as well.
                watch = Watch()
                self._guide = _Guide([], watch)
                yield Probe(self._guide, observers=(watch,))
                self.exhausted = True
                break
        self._guide = None
        yield from self.rest.faults() if self.exhausted else self.rest.probes()

    def learn(self, probe: Probe, run: ScheduleRun) -> None:
        """Learn which steps of a run are to be turned round."""
        self.rest.learn(probe, run)
        guide = self._guide
        if guide is None or guide.diverged:
            return
        watch = guide.watch
        guide.look()
        steps = watch.steps[: guide.blocked_at]
        happened = Happened(steps, watch.started_by())
        if not self._nodes and self.seen.runs:
            if happened.key != self._first:
                self.seen.note_divergence()
            return
        if not self.seen.runs:
            self._first = happened.key
        by_place = {node.place: node for node in self._nodes if min(node.options) >= 0}
        for earlier, later in happened.races:
            node = by_place.get(earlier)
            if node is not None:
                first = happened.first_in_reverse(earlier, later)
                if not first & node.wanted:
                    possible = first & node.options
                    node.wanted |= {min(possible)} if possible else node.options
        for node in self._nodes:
            if node.place < len(watch.steps):
                node.done[node.chosen] = _Asleep.of(
                    watch.steps[node.place], node.known, watch.things.kept
                )
            else:
                node.done[node.chosen] = _Asleep(0, None)
        self.seen.learn(watch, happened, is_new=guide.blocked_at is None)

    def _go_back(self) -> bool:
        """Choose otherwise at the last decision where something is left; False if nothing is."""
        while self._nodes:
            node = self._nodes[-1]
            left = node.wanted - node.done.keys() - node.asleep.keys()
            if left:
                node.chosen = min(left)
                return True
            self._nodes.pop()
        return False
