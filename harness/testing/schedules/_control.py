"""Decide at every step of a controlled run which task goes on, and record the decisions.

A `Control` knows the tasks of one ``trio.run`` by number, in the order in which they were spawned;
under control that order is the same in every run of a schedule. It is told which tasks could go on,
asks its chooser, and returns one. How tasks are held back until then is a backend's business.

Three rules take precedence over every chooser:

- *Nobody starves.* A task passed over at `PATIENCE` decisions in a row goes first. Without that, a
  program in which one task polls until another has done something would look like an endless loop
  under a schedule that never switches.
- *Faults strike in time.* The steps of each run are counted (see `Targets`), and whatever the
  schedule says goes wrong at one of them does.
- *Nothing is endless.* After a maximum number of steps, the program is cut short and called a
livelock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any
from zlib import crc32

import attrs

from harness.testing.schedules._choosers import Chooser
from harness.testing.schedules._schedule import Marks, Schedule
from harness.testing.schedules._targets import Targets

if TYPE_CHECKING:
    from trio.lowlevel import Task
    from trio.testing import MockClock

PATIENCE = 250
"""How many decisions in a row may pass over a task before it must go on."""

STEPS_TO_END = 5_000
"""How many steps a program has to end, once it was cut short."""


class GiveUp(BaseException):
    """Thrown into the tasks of a program that was cut short and ignores its cancel."""


_HASH_SEED = 0x811C9DC5
_HASH_PRIME = 0x01000193


TIME_PASSES = -(1 << 30)
"""Stands, among the replies that could arrive, for none of them."""


@attrs.frozen(eq=False)
class HeldReply:
    """A reply of a model or tool that is held back until its turn to arrive."""

    number: int
    """Its number, in the order in which replies were asked for."""

    label: str
    """What was asked, in words that are the same in every run."""

    deliver: Callable[[], None]


@attrs.define(eq=False)
class Control:
    """The decisions of one controlled run."""

    chooser: Chooser
    most_steps: int
    on_too_many_steps: Callable[[Control], None]
    """Cuts the program short."""

    targets: Targets = attrs.field(factory=Targets)
    """What can be made to go wrong, and when it is."""

    plan: Schedule | None = None
    """The schedule being replayed, if any; its marks are compared along the way."""

    numbers: dict[Task, int] = attrs.field(factory=dict, init=False)
    coroutines: dict[Task, Any] = attrs.field(factory=dict, init=False)
    """What the tasks run, if that isn't what trio thinks they run."""

    cut_short: bool = attrs.field(default=False, init=False)
    """Whether the program is being ended: what it does now isn't its own doing."""

    steps: int = attrs.field(default=0, init=False)
    order: list[int] = attrs.field(factory=list[int], init=False)
    """The task of every step that was picked."""

    choices: list[int] = attrs.field(factory=list[int], init=False)
    widths: list[int] = attrs.field(factory=list[int], init=False)
    picks: list[int] = attrs.field(factory=list[int], init=False)
    """The task that was picked at every decision."""

    diverged_at: int | None = attrs.field(default=None, init=False)
    pending: list[HeldReply] = attrs.field(factory=list, init=False)
    """The held-back replies, in the order in which they were asked for."""

    arrivals: set[int] = attrs.field(factory=set[int], init=False)
    """The decisions about which reply arrives."""

    _replies: int = attrs.field(default=0, init=False)
    _codes: list[int] = attrs.field(factory=list[int], init=False)
    _last: int = attrs.field(default=-1, init=False)
    _passed_over_since: dict[int, int] = attrs.field(factory=dict[int, int], init=False)
    _hash: int = attrs.field(default=_HASH_SEED, init=False)
    _hashes: list[tuple[int, int]] = attrs.field(factory=list[tuple[int, int]], init=False)
    """The decisions that switched, each with the hash up to it."""

    _expected: dict[int, int] = attrs.field(factory=dict[int, int], init=False)

    def __attrs_post_init__(self) -> None:
        if self.plan is not None and self.plan.marks is not None:
            marks = self.plan.marks.at_deviations
            position = -1
            for (gap, _), mark in zip(self.plan.deviations, marks, strict=True):
                position += gap + 1
                self._expected[position] = mark

    # Tasks --------------------------------------------------------------------------------------

    def admit(self, task: Task) -> None:
        """Give a task its number. From now on it is under control."""
        self.numbers[task] = len(self._codes)
        code = getattr(task.coro, "cr_code", None)
        name = code.co_qualname if code is not None else type(task.coro).__name__
        # Not the task's own name, which may hold an address or a random id. And a hash that is the
        # same in every process, unlike a str's.
        self._codes.append(crc32(name.encode()) | 1)

    def live_tasks(self) -> list[Task]:
        """Return the program's tasks that haven't ended."""
        return [task for task in self.numbers if getattr(task.coro, "cr_frame", None) is not None]

    def frames(self, task: Task) -> list[tuple[FrameType, int]]:
        """Return the frames of a suspended task with their lines, outermost first."""
        coro = self.coroutines.get(task)
        return list(task.iter_await_frames() if coro is None else _await_frames(coro))

    @property
    def giving_up(self) -> bool:
        """Whether the program was cut short long ago, and still goes on."""
        return self.steps >= self.most_steps + STEPS_TO_END

    @property
    def hopeless(self) -> bool:
        """Whether it goes on even though `GiveUp` was thrown into it again and again."""
        return self.steps >= self.most_steps + 2 * STEPS_TO_END

    # Decisions ----------------------------------------------------------------------------------

    def pick(self, ready: Iterable[Task]) -> Task:
        """Return which of the runnable tasks goes on.

        Args:
          ready: Tasks that were admitted, at least one, in any order.
        """
        numbers = self.numbers
        by_number = {numbers[task]: task for task in ready}
        stepped = self.targets.stepped
        if stepped is not None:
            self.targets.note_wait(
                goes_on=numbers[stepped[1]] in by_number, decisions=len(self.choices)
            )
        if len(by_number) == 1:
            ((number, task),) = by_number.items()
            self._passed_over_since.pop(number, None)
        else:
            number = self._decide(sorted(by_number))
            task = by_number[number]
        self._last = number
        self.order.append(number)
        self.steps += 1
        if self.steps >= self.most_steps:
            self.on_too_many_steps(self)
        if len(self.targets.by_number) > 1:
            self.targets.count_step(task)
        return task

    def _decide(self, tasks: list[int]) -> int:
        decision = len(self.choices)
        since = self._passed_over_since
        mixed = self._hash
        longest = decision
        for number in tasks:
            waited_since = since.setdefault(number, decision)
            if waited_since < longest:
                longest = waited_since
            mixed = (mixed ^ self._codes[number] ^ number) * _HASH_PRIME & 0xFFFFFFFF
        self._hash = mixed
        if self._last in since and self._last in tasks and tasks[0] != self._last:
            tasks.remove(self._last)
            tasks.insert(0, self._last)
        starving = decision - longest >= PATIENCE
        if starving:
            first = next(number for number in tasks if since[number] == longest)
            tasks.remove(first)
            tasks.insert(0, first)
        number = tasks[self._choose(tasks, forced=starving)]
        del since[number]
        return number

    def _choose(self, options: list[int], *, forced: bool = False) -> int:
        """Make a decision and record it; ``forced`` means choice 0, whatever the chooser wants."""
        decision = len(self.choices)
        self._mix(len(options))
        mark = _short(self._hash)
        if self._expected.get(decision, mark) != mark and self.diverged_at is None:
            self.diverged_at = decision
        choice = self.chooser.choose(options)  # Even if it is forced: choosers count decisions.
        if forced:
            choice = 0
        self.choices.append(choice)
        self.widths.append(len(options))
        self.picks.append(options[choice])
        if choice:
            self._hashes.append((decision, mark))
        return choice

    def _mix(self, value: int) -> None:
        """Mix something seen into the hash of everything seen."""
        self._hash = (self._hash ^ value) * _HASH_PRIME & 0xFFFFFFFF

    # Arrivals -----------------------------------------------------------------------------------

    def expect(self, label: str, deliver: Callable[[], None]) -> HeldReply:
        """Hold back a reply until its turn to arrive."""
        reply = HeldReply(self._replies, label, deliver)
        self._replies += 1
        self.pending.append(reply)
        return reply

    def deliver_one(self, *, time_could_pass: bool) -> bool:
        """Let one of the held-back replies arrive, when nothing else can go on.

        Args:
          time_could_pass: Whether the clock could move instead, and bring more replies.

        Returns:
          False if the clock should move, or there is no reply.
        """
        if not self.pending:
            return False
        # Replies have numbers below 0, so that they can't be confused with those of tasks.
        options = [~reply.number for reply in self.pending]
        for reply in self.pending:
            self._mix(crc32(reply.label.encode()))
        if time_could_pass:
            options.append(TIME_PASSES)
        choice = 0
        if len(options) > 1:
            self.arrivals.add(len(self.choices))
            choice = self._choose(options)
        if choice >= len(self.pending):
            return False
        self.pending.pop(choice).deliver()
        return True

    # The record ---------------------------------------------------------------------------------

    def divergence(self) -> int | None:
        """Return the decision at which a replay met different code; None if it never did.

        Ask once the run has ended and the number of decisions is known.
        """
        if self.diverged_at is not None:
            return self.diverged_at
        marks = self.plan.marks if self.plan is not None else None
        if marks is None:
            return None
        if marks.decisions != len(self.choices):
            return min(marks.decisions, len(self.choices))
        return None if marks.at_end == _short(self._hash) else len(self.choices)

    def schedule(self) -> Schedule:
        """Return what was decided and what struck, as a value that can be replayed."""
        schedule = Schedule.of_choices(
            ((decision, self.choices[decision]) for decision, _ in self._hashes),
            self.targets.struck,
        )
        marks = Marks(
            tuple(mark for _, mark in self._hashes), len(self.choices), _short(self._hash)
        )
        return attrs.evolve(schedule, marks=marks)


@attrs.frozen(eq=False)
class Controlled:
    """The controlled program that the current code is part of."""

    control: Control
    clock: MockClock
    """The clock of its ``trio.run``."""


controlled: ContextVar[Controlled | None] = ContextVar("harness.testing.controlled", default=None)


def frames_of(task: Task) -> list[tuple[FrameType, int]]:
    """Return the frames of a suspended task of a controlled program; none if it has ended."""
    if getattr(task.coro, "cr_frame", None) is None:
        return []
    here = task.context.get(controlled)
    return list(task.iter_await_frames()) if here is None else here.control.frames(task)


def is_cut_short(task: Task) -> bool:
    """Return whether a task's controlled program is being ended."""
    here = task.context.get(controlled)
    return here is not None and here.control.cut_short


def _short(mixed: int) -> int:
    """Fold a hash into the 16 bits that a replay string shows."""
    return (mixed ^ mixed >> 16) & 0xFFFF


def _await_frames(awaitable: Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a suspended coroutine, as `trio.lowlevel.Task.iter_await_frames` does."""
    while awaitable is not None:
        for prefix, following in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            frame = getattr(awaitable, f"{prefix}_frame", None)
            if frame is not None:
                yield frame, frame.f_lineno
                awaitable = getattr(awaitable, following, None)
                break
        else:
            return
