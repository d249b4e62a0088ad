"""Make a failing schedule as simple as possible, so that a person can read it.

Two ways take turns until neither helps:

- *Fewer deviations.* Leave out some of them, half at first, then fewer; leave out faults; choose 1
  instead of a larger choice; deviate earlier, then also with what follows moved along.
- *Fewer switches.* A run is written as blocks: a task, and at how many decisions in a row it went
  on. A block is joined to the nearest one of the same task before or after it. That addresses
  tasks, not decisions, so it makes progress even if leaving out one deviation changes what all
  later ones mean.

Hypothesis shrinks schedules too, for tests that draw them. Here it would have to find the failure a
second time; on the seven toy programs of the tests, both together took it 0.04 to 1.1 s. Finding
and shrinking here takes 0.01 to 0.15 s, and ends with as few deviations or fewer.

What counts is the `Schedule.size` of what really ran, so every accepted run is simpler, and the
loop ends. A simpler run must fail in the same way.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import attrs

from harness.testing.schedules._choosers import Chooser, Planned
from harness.testing.schedules._controlled import ScheduleRun
from harness.testing.schedules._schedule import Fault
from harness.testing.schedules._search import Probe

MOST_RUNS = 600
"""How many runs are spent on one failure."""

MOST_SECONDS = 1.5
"""Seconds of CPU time spent on one failure, so that a busy machine shrinks as far."""

MOST_BLOCKS_TO_REARRANGE = 24
"""Up to how many blocks two changes are tried at once."""


class _EnoughError(Exception):
    """As much has been spent as is to be spent."""


@attrs.define(eq=False)
class Blocks:
    """Lets the tasks of blocks go on, the earliest block whose task can."""

    blocks: list[tuple[int, int]]
    """Pairs of a task's number, and at how many decisions it goes on."""

    def choose(self, tasks: Sequence[int]) -> int:
        """Return the index of the task of the first block that can go on; 0 if there is none."""
        for place, (task, decisions) in enumerate(self.blocks):
            if task in tasks:
                if decisions > 1:
                    self.blocks[place] = (task, decisions - 1)
                else:
                    del self.blocks[place]
                return tasks.index(task)
        return 0


@attrs.define(eq=False)
class Shrinking:
    """A failing run, and the simplest one found in its place."""

    run: Callable[[Probe], ScheduleRun]
    fails: Callable[[ScheduleRun], bool]
    """Whether a run fails in the same way."""

    best: ScheduleRun
    runs: int = attrs.field(default=0, init=False)
    _tried: set[object] = attrs.field(factory=set[object], init=False)
    _until: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._until = time.thread_time() + MOST_SECONDS

    def shrink(self) -> ScheduleRun:
        """Return the simplest failing run that can be found in reasonable time."""
        with suppress(_EnoughError):
            while self._leave_out() or self._join_blocks() or self._lower() or self._rearrange():
                pass
        return self.best

    # Deviations ---------------------------------------------------------------------------------

    def _leave_out(self) -> bool:
        """Leave out faults and deviations, many at a time while that works."""
        improved = False
        for fault in self.best.schedule.faults:
            faults = tuple(other for other in self.best.schedule.faults if other != fault)
            improved |= self._try_choices(self._choices(), faults)
        size = len(self._choices())
        while size:
            place = 0
            while place < len(choices := self._choices()):
                if self._try_choices(choices[:place] + choices[place + size :]):
                    improved = True
                else:
                    place += size
            size //= 2
        return improved

    def _lower(self) -> bool:
        """Choose 1 in the place of a larger choice, deviate earlier, strike earlier."""
        improved = _at_each_place(self._choices, _lowered, self._try_choices)
        for fault in self.best.schedule.faults:
            others = tuple(other for other in self.best.schedule.faults if other != fault)
            for at in (1, fault.at // 2, fault.at - 1):
                if 0 < at < fault.at and self._try_choices(
                    self._choices(), (*others, attrs.evolve(fault, at=at))
                ):
                    improved = True
                    break
        return improved

    def _choices(self) -> list[tuple[int, int]]:
        return sorted(self.best.schedule.choices().items())

    def _try_choices(
        self, choices: list[tuple[int, int]], faults: tuple[Fault, ...] | None = None
    ) -> bool:
        faults = self.best.schedule.faults if faults is None else faults
        return self._try((tuple(choices), faults), lambda: Planned(dict(choices)), faults)

    # Switches -----------------------------------------------------------------------------------

    def _join_blocks(self) -> bool:
        """Join blocks of the same task, until no two can be joined."""
        return _at_each_place(lambda: _blocks(self.best.picks), _joined, self._try_blocks)

    def _rearrange(self) -> bool:
        """Join two pairs of blocks at once, or move a block elsewhere, if one step won't do."""
        blocks = _blocks(self.best.picks)
        if self.best.schedule.switches < 2 or len(blocks) > MOST_BLOCKS_TO_REARRANGE:
            return False
        return any(self._try_blocks(other) for other in _moved(blocks)) or any(
            self._try_blocks(twice)
            for place in range(len(blocks))
            for once in _joined(blocks, place)
            for other in range(place, len(once))
            for twice in _joined(once, other)
        )

    def _try_blocks(self, blocks: list[tuple[int, int]]) -> bool:
        faults = self.best.schedule.faults
        return self._try(("blocks", tuple(blocks), faults), lambda: Blocks(list(blocks)), faults)

    # Both ---------------------------------------------------------------------------------------

    def _try(self, what: object, chooser: Callable[[], Chooser], faults: tuple[Fault, ...]) -> bool:
        """Run it, unless that was done before; keep it if it fails and is simpler."""
        if self.runs >= MOST_RUNS or time.thread_time() > self._until:
            # An endless program has so many steps that even to think of more changes takes long.
            raise _EnoughError
        if what in self._tried:
            return False
        self._tried.add(what)
        self.runs += 1
        run = self.run(Probe(chooser(), faults))
        if run.schedule.size >= self.best.schedule.size or not self.fails(run):
            return False
        self.best = run
        return True


def _at_each_place(
    pairs: Callable[[], list[tuple[int, int]]],
    changed: Callable[[list[tuple[int, int]], int], Iterator[list[tuple[int, int]]]],
    attempt: Callable[[list[tuple[int, int]]], bool],
) -> bool:
    """Try the changes at one place after the other, at each as long as one helps."""
    improved = False
    place = 0
    while place < len(now := pairs()):
        if any(attempt(other) for other in changed(now, place)):
            improved = True
        else:
            place += 1
    return improved


def _lowered(choices: list[tuple[int, int]], place: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the choices with one of them lower or earlier."""
    decision, choice = choices[place]
    before, after = choices[:place], choices[place + 1 :]
    earliest = before[-1][0] + 1 if before else 0
    if choice > 1:
        yield [*before, (decision, 1), *after]
    for earlier in sorted({earliest, (earliest + decision) // 2, decision - 1}):
        if earliest <= earlier < decision:
            yield [*before, (earlier, choice), *after]
            shift = decision - earlier
            if after:
                moved = [(later - shift, other) for later, other in after]
                yield [*before, (earlier, choice), *moved]


def _blocks(picks: Sequence[int]) -> list[tuple[int, int]]:
    """Return which task went on, and at how many decisions in a row."""
    return [(task, len(list(run))) for task, run in itertools.groupby(picks)]


def _joined(blocks: list[tuple[int, int]], place: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the blocks with one joined to the next of its task, to the last, or put at the end."""
    task, decisions = blocks[place]
    for step in (1, -1):
        other = place + step
        while 0 <= other < len(blocks) and blocks[other][0] != task:
            other += step
        if 0 <= other < len(blocks):
            joined = list(blocks)
            joined[other] = (task, blocks[other][1] + decisions)
            del joined[place]
            yield joined
    yield blocks[:place] + blocks[place + 1 :]  # It goes on by default.


def _moved(blocks: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield the blocks with one of them moved elsewhere."""
    for place, block in enumerate(blocks):
        others = blocks[:place] + blocks[place + 1 :]
        for other in range(len(blocks)):
            if other != place:
                yield [*others[:other], block, *others[other:]]
