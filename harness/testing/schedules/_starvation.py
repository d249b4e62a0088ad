"""Notice a task that never gets on, because others take what it waits for again and again.

A deadlocked program stands still; a starved task only looks as if it had bad luck. It is stuck
while its steps change nothing and end where they began, or while it makes none; and it is starved
if meanwhile others make many steps, and write several times to what it looks at or waits in: a
flag, a count, a lock, a queue. A task that waits for something nobody touches isn't starved.

A thread makes several steps on each way through a loop. So it is stuck while it changes nothing and
comes only to where it was before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from types import FrameType
from typing import Any

import attrs

from harness.errors import StarvationError
from harness.runs._frames import describe_wait
from harness.testing.schedules._blocked import task_name, told_apart
from harness.testing.schedules._control import frames_of
from harness.testing.schedules._effects import WHOLE, Effects
from harness.testing.schedules._library_calls import LOCKS, primitives_of
from harness.testing.schedules._search import Probe
from harness.testing.schedules._strand import Strand
from harness.testing.schedules._watch import Watch

TAKEN_AT_LEAST = 3
"""How often others must have changed what a task waits for."""

STEPS_OF_OTHERS = 1_000
"""After how many steps of others a task counts as starved, where nobody says."""


@attrs.define(eq=False)
class _Stuck:
    """What a task has been doing since it last got on."""

    since: int
    where: set[Hashable]
    """Where it was since; several places for a thread alone."""
    looks_at: Effects
    taken: int = 0
    by: Strand | None = None


@attrs.define(eq=False)
class Starvation:
    """Ends a run with a `StarvationError` when a task is starved. Comes after its watch."""

    watch: Watch
    steps: int = STEPS_OF_OTHERS
    _stuck: dict[Strand, _Stuck] = attrs.field(factory=dict, init=False)
    _others: int = attrs.field(default=0, init=False)
    _seen: int = attrs.field(default=0, init=False)

    def before_step(self, strand: Strand) -> None:
        """Do nothing."""

    def after_step(self, strand: Strand) -> None:
        """Look who got on, and who hasn't for too long.

        Raises:
          StarvationError: if somebody is starved.
        """
        steps, control = self.watch.steps, self.watch.control
        if control is None or control.cut_short or len(steps) == self._seen:
            return
        self._seen = len(steps)
        made = steps[-1].effects
        stuck = self._stuck
        for other, its in stuck.items():
            if other is not strand and _changes(made, its.looks_at):
                its.taken += 1
                its.by = strand
        if steps[-1].ended:
            stuck.pop(strand, None)
            return
        frames = frames_of(strand)
        where = tuple((frame.f_code, frame.f_lasti) for frame, _ in frames)
        before = stuck.get(strand)
        thread = control.threads.get(strand)
        if thread is not None and thread.joins is not None:
            stuck.pop(strand, None)  # Nobody can take the end of another.
        elif (
            before is None or self._gets_on(made) or (thread is None and where not in before.where)
        ):
            stuck[strand] = _Stuck(self._seen, {where}, self._waited_in(frames, thread))
        elif thread is None:
            before.looks_at = made
        elif where in before.where:
            before.looks_at.merge(made)
        else:
            before.where.add(where)
            before.since, before.taken = self._seen, 0
        for other, its in stuck.items():
            if self._seen - its.since >= self.steps and its.taken >= TAKEN_AT_LEAST:
                raise StarvationError(self._in_words(other, its))

    def _gets_on(self, made: Effects) -> bool:
        """Tell whether a step changes anything but locks."""
        kept = self.watch.things.kept
        return made.depends_on_all or any(
            access.writes
            for thing, keys in made.touched.items()
            if thing <= 0 or not (thing in self.watch.primitives or isinstance(kept[thing], LOCKS))
            for access in keys.values()
        )

    def _waited_in(self, frames: Iterable[tuple[FrameType, int]], thread: Any) -> Effects:
        """Return the locks and the like that a task waits in."""
        found = Effects()
        if thread is not None and thread.lock is not None:
            found.add(self.watch.things.number(thread.lock), WHOLE, False, None)
        for frame, _ in frames:
            for one in primitives_of(frame):
                found.add(self.watch.things.number(one), WHOLE, False, None)
        return found

    def _in_words(self, task: Strand, its: _Stuck) -> str:
        control = self.watch.control
        assert control is not None
        names = told_apart(control.numbers)
        kind = "thread" if control.backend.kind == "threads" else "task"
        by = "" if its.by is None else f", last {kind} {names.get(its.by, task_name(its.by))!r}"
        return (
            f"{kind} {names[task]!r} is starved: others made {self._seen - its.since:,} steps "
            f"while it got no further than {describe_wait(frames_of(task))}, and changed what it "
            f"waits for {its.taken:,} times{by}"
        )


def _changes(made: Effects, looked_at: Effects) -> bool:
    return any(mine.writes for _, _, mine, _ in made.conflicts(looked_at))


def starving(probe: Probe, steps: int) -> Probe:
    """Return a probe that also looks whether a task is starved."""
    watched = [one for one in probe.observers if isinstance(one, Watch)]
    watch = watched[0] if watched else Watch()
    observers = probe.observers if watched else (watch,)
    return attrs.evolve(probe, observers=(*observers, Starvation(watch, steps)))
