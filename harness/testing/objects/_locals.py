"""Name what the tasks of a failing test share when the objects are local variables.

A test makes its objects afresh each time it runs, so nothing can be walked before it begins. Here a
replay is watched: the variables of the test's functions are walked as they appear, and each line
that reads or writes what they reach is recorded for its task. We look for signs that a task acted
on what another task had changed behind its back.

This names suspects and proves nothing: a test makes its tasks share some objects on purpose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import is_
from types import FrameType
from typing import Any, Literal

import attrs
import trio

from harness._words import repr_of
from harness.runs._frames import place
from harness.testing._users_code import is_users_frame
from harness.testing.objects._loads import MISSING, Spot, touches
from harness.testing.objects._parts import WHOLE, CellPart
from harness.testing.objects._places import function_name, local_place
from harness.testing.objects._reach import Reached
from harness.testing.objects._shared_state import Suspect, suspects_of
from harness.testing.objects._tracing import LineTrace
from harness.testing.schedules import Strand
from harness.testing.schedules._control import frames_of, parent_of

FRAMES_AT_MOST = 1_000
"""How many calls of the user's functions have their variables walked."""

MAIN = "the test"
"""The name of the test's own task."""

STEPS_AT_MOST = 2_000
"""How many steps are watched; a shrunk schedule shows its failure in fewer."""

_WAITED_ON = (
    *(trio.Lock, trio.StrictFIFOLock, trio.Semaphore, trio.CapacityLimiter, trio.Condition),
    *(trio.Event, trio.lowlevel.ParkingLot),
    *(asyncio.Lock, asyncio.Semaphore, asyncio.Condition, asyncio.Event, asyncio.Future),
)


@attrs.frozen(eq=False)
class LocalAccess:
    """A line that read or wrote what tasks share."""

    path: str
    thing: tuple[int, str]
    """Which object, and which part of it: objects of two tasks may have the same path."""
    task: str
    step: int
    kind: Literal["read", "write"]
    where: str
    before: Any = None
    """What was there before a write, as far as it is kept; see `Part.take`."""
    after: Any = None
    waited_on: bool = False
    """Whether it is a lock or the like, which tasks may rightly change behind each other's back."""


@attrs.frozen
class LocalSuspect:
    """A shared object that may be behind a failure."""

    path: str
    lines: tuple[str, ...]
    """Who wrote and who read it, in words."""


class LocalsWatch:
    """An observer of a replay that collects which tasks read and write what, by line."""

    def __init__(self) -> None:
        self.accesses: list[LocalAccess] = []
        self._reached = Reached()
        self._frames: list[FrameType] = []
        """Kept so that no other frame gets the id of one already walked."""
        self._walked: set[int] = set()
        self._last: list[Any] = []
        self._by_thing: dict[int, list[int]] = {}
        self._cells: dict[str, list[int]] = {}
        self._waited_on: set[str] = set()
        self._steps = 0
        self._task = ""
        self._names: dict[Strand, str] = {}
        self._count: dict[str, int] = {}
        self._watching = False
        self._trace = LineTrace(self._note_writes, self._note_reads, self._enter)

    def before_step(self, task: Strand) -> None:
        """Walk the variables that exist, and start tracing."""
        self._steps += 1
        self._watching = self._steps <= STEPS_AT_MOST
        if self._watching:
            self._task = self._name_of(task)
            self._walk(task)
            self._trace.begin(task)

    def after_step(self, task: Strand) -> None:
        """Stop tracing, and walk the variables that have appeared."""
        if self._watching:
            self._trace.end()
            self._walk(task)

    def _name_of(self, task: Strand) -> str:
        """Return a name that tells this task from others of the same function."""
        name = self._names.get(task)
        if name is None:
            plain = MAIN if parent_of(task) is None else function_name(task.name)
            self._count[plain] = count = self._count.get(plain, 0) + 1
            name = self._names[task] = plain if count == 1 else f"{plain} #{count}"
        return name

    # Which objects there are -----------------------------------------------------------------

    def _walk(self, task: Strand) -> None:
        # The test's own function first: an object is best known by the name it has there.
        for one in reversed(list(_with_parents(task))):
            for frame, _ in frames_of(one):
                if is_users_frame(frame):
                    self._walk_frame(frame)
        self._keep_up()

    def _enter(self, frame: FrameType) -> None:  # pragma: no cover - see LineTrace
        self._walk_frame(frame)
        self._keep_up()

    def _walk_frame(self, frame: FrameType) -> None:
        if id(frame) not in self._walked:
            if len(self._frames) >= FRAMES_AT_MOST:
                return
            self._walked.add(id(frame))
            self._frames.append(frame)
            self._reached.add_code(frame.f_code, frame.f_globals)
        function = function_name(frame.f_code.co_qualname)
        variables = list(frame.f_locals.items())
        if frame.f_code.co_name == "__init__":
            variables = variables[1:]  # Whatever keeps the new object has a better name for it.
        for name, value in variables:
            self._reached.add(local_place(name, value, function), value)

    def _keep_up(self) -> None:
        """Note what the newly found parts hold."""
        for part in self._reached.parts[len(self._last) :]:
            self._by_thing.setdefault(id(part.thing), []).append(len(self._last))
            if isinstance(part.thing, _WAITED_ON):
                self._waited_on.add(str(part.place))
            if isinstance(part, CellPart):
                self._cells.setdefault(part.name, []).append(len(self._last))
            self._last.append(part.take())

    # Who does what with them -----------------------------------------------------------------

    def _note_writes(self) -> None:
        for index, before in enumerate(list(self._last)):
            part = self._reached.parts[index]
            after = part.take()
            for suspect in suspects_of(part, before, after):
                self._note(suspect, "write", before, after)
                self._walk_new(suspect, after)
            self._last[index] = after
        self._keep_up()

    def _walk_new(self, suspect: Suspect, after: Any) -> None:
        """Walk what was put in place of something else."""
        if suspect.key is not WHOLE and isinstance(after, dict) and suspect.key in after:
            self._reached.add(suspect.place, after[suspect.key])

    def _note_reads(self, frame: FrameType, spot: Spot) -> None:  # pragma: no cover - see LineTrace
        for touch in touches(frame, spot):
            for thing, key in ((touch.owner, touch.name), (touch.value, WHOLE)):
                for index in self._by_thing.get(id(thing), ()):
                    part = self._reached.parts[index]
                    if (part.names_things and part.keys_are_names) == (key is not WHOLE):
                        self._note(Suspect(part, key), "read")
            if touch.owner is frame.f_code:
                # Nothing tells which cell a variable is kept in; holding the same object has to do.
                for index in self._cells.get(touch.name, ()):
                    part = self._reached.parts[index]
                    if part.take().get(touch.name, MISSING) is touch.value:
                        self._note(Suspect(part, touch.name), "read")

    def _note(
        self,
        suspect: Suspect,
        kind: Literal["read", "write"],
        before: Any = None,
        after: Any = None,
    ) -> None:
        line = self._trace.line
        where = "code of a library" if line is None else place(*line)
        named = suspect.part.names_things and suspect.part.keys_are_names
        path = suspect.path if named else str(suspect.part.place)
        thing = (id(suspect.part.thing), str(suspect.key) if named else "")
        self.accesses.append(
            LocalAccess(
                *(path, thing, self._task, self._steps, kind, where, before, after),
                # What is inside one goes by its name.
                waited_on=str(suspect.place) in self._waited_on,
            )
        )


def _with_parents(task: Strand | None) -> Iterator[Strand]:
    """Yield a task and those above it, up to the test's own."""
    while task is not None:
        yield task
        task = parent_of(task)


def local_suspects(
    accesses: Sequence[LocalAccess], waiting: Iterable[str] = ()
) -> list[LocalSuspect]:
    """Return what tasks changed behind each other's back, only the worst kind found.

    Args:
      accesses: What a `LocalsWatch` has collected.
      waiting: In a deadlock, the functions that tasks wait in forever: then only what is read there
        counts.
    """
    by_thing: dict[tuple[int, str], list[LocalAccess]] = {}
    for access in accesses:
        by_thing.setdefault(access.thing, []).append(access)
    waiting = set(waiting)
    by_thing = {
        thing: own
        for thing, own in by_thing.items()
        if (_is_waited_for(own, waiting) if waiting else not own[0].waited_on)
    }
    looked_at = {thing: list(_without_additions(own)) for thing, own in by_thing.items()}
    rewritten = {thing: own for thing, own in looked_at.items() if _is_rewritten(own)}
    by_tasks = {thing: own for thing, own in looked_at.items() if not _is_of_the_test(own)}
    # What several tasks write is more suspect than what one of them leaves for the others; that is
    # more suspect than what the test has changed after handing it on, and a place where each just
    # puts its result is the least.
    for candidates, writers in ((by_tasks, 2), (by_tasks, 1), (rewritten, 1), (by_thing, 2)):
        worst = _worst(candidates, writers, at_least=1 if waiting else 0)
        if worst:
            break
    return [
        LocalSuspect(by_thing[thing][0].path, tuple(_in_words(by_thing[thing]))) for thing in worst
    ]


def _worst(
    by_thing: Mapping[tuple[int, str], Sequence[LocalAccess]], writers: int, *, at_least: int
) -> list[tuple[int, str]]:
    """Return, of the things with this many writers, those with which the worst was done."""
    scores: dict[tuple[int, str], int] = {}
    for thing, own in by_thing.items():
        wrote = {access.task for access in own if access.kind == "write"}
        if len(wrote) >= writers:
            scores[thing] = max(_score(own), default=0) + at_least
    worst = max(scores.values(), default=0)
    return [thing for thing, score in scores.items() if score == worst > 0]


def _is_of_the_test(accesses: Sequence[LocalAccess]) -> bool:
    """Tell whether only the test itself writes a thing."""
    return {access.task for access in accesses if access.kind == "write"} == {MAIN}


def _is_rewritten(accesses: Sequence[LocalAccess]) -> bool:
    """Tell whether the test itself writes a thing again, which it had given a value already."""
    return sum(access.kind == "write" and access.task == MAIN for access in accesses) > 1


def _is_waited_for(accesses: Sequence[LocalAccess], waiting: set[str]) -> bool:
    """Tell whether a thing is read or written in one of these functions."""
    functions = {where.partition(" (")[0] for where in waiting}
    return any(access.where.partition(" (")[0] in functions for access in accesses)


def _without_additions(accesses: Sequence[LocalAccess]) -> Iterator[LocalAccess]:
    """Leave out reads of a container that only serve to add something to it."""
    added = {
        (access.task, access.step, access.where)
        for access in accesses
        if access.kind == "write" and _only_adds(access)
    }
    for access in accesses:
        if access.kind == "write" or (access.task, access.step, access.where) not in added:
            yield access


def _only_adds(write: LocalAccess) -> bool:
    before, after = write.before, write.after
    if write.thing[1]:  # An attribute or a variable.
        return False
    if isinstance(before, tuple):
        return len(before) <= len(after) and all(map(is_, before, after))
    if isinstance(before, frozenset):
        return bool(before <= after)
    return isinstance(before, dict) and all(
        key in after and after[key] is value for key, value in before.items()
    )


def _score(accesses: Sequence[LocalAccess]) -> Iterator[int]:
    """Yield how bad each thing was that a task did.

    4: it undid what another task had done since its last look. 3: it wrote after a look that
    another task had made stale. 2: it saw something change between two looks. 1: it read what
    another task had left, or replaced it unseen.
    """
    writes = [access for access in accesses if access.kind == "write"]
    for between in writes:
        mine = [access for access in accesses if access.task != between.task]
        for act in mine:
            if act.step <= between.step or (act.kind == "read" and act.task == MAIN):
                continue  # The test itself looks at what its tasks have done.
            looks = [a for a in mine if a.task == act.task and a.step < between.step]
            if not looks:
                if act.kind == "read" or _undoes(act, between):
                    yield 1
            elif act.kind == "read":
                yield 2
            elif _undoes(act, between):
                yield 4
            elif not any(
                w.step == look.step and w.task == look.task for look in looks for w in writes
            ):
                yield 3


def _undoes(act: LocalAccess, between: LocalAccess) -> bool:
    """Tell whether a write took away what another had put there."""
    if isinstance(act.after, tuple | frozenset):
        put = [thing for thing in between.after if not _has(between.before, thing)]
        return any(_has(act.before, thing) and not _has(act.after, thing) for thing in put)
    if isinstance(act.after, dict):
        put_keys = [
            key
            for key, value in between.after.items()
            if key not in between.before or between.before[key] is not value
        ]
        return any(
            act.before.get(key) is between.after[key] and act.after.get(key) is not act.before[key]
            for key in put_keys
            if key in act.before
        )
    return False


def _has(things: Iterable[Any], thing: Any) -> bool:
    return any(one is thing for one in things)


def _in_words(accesses: Sequence[LocalAccess]) -> Iterator[str]:
    for kind in ("write", "read"):
        verb = "written" if kind == "write" else "read"
        done = dict.fromkeys((a.task, a.where) for a in accesses if a.kind == kind)
        written_at = {a.where for a in accesses if a.kind == "write"}
        for task, where in done:
            if kind == "write" or where not in written_at:
                yield f"{verb} by task {repr_of(task)} at {where}"
