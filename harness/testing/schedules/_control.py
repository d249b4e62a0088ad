"""Decide at every step of a controlled run which strand goes on, and record the decisions.

A `Control` knows the strands of one program by number, in the order in which they were started;
under control that order is the same in every run of a schedule. It is told which of them could go
on, asks its chooser, and returns one. How the others are held back is a backend's business.

Three rules take precedence over every chooser:

- *Nobody starves.* A strand passed over at `PATIENCE` decisions in a row goes first. Without that,
  a program in which one task polls until another has done something would look like an endless loop
  under a schedule that never switches.
- *Faults strike in time.* The steps of each run are counted (see `Targets`), and whatever the
  schedule says goes wrong at one of them does.
- *Nothing is endless.* After a maximum number of steps, the program is cut short and called a
livelock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import Any
from zlib import crc32

import attrs

from harness.testing.schedules._choosers import Chooser
from harness.testing.schedules._schedule import Marks, Schedule
from harness.testing.schedules._strand import Strand, Strands, await_frames
from harness.testing.schedules._targets import Targets

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

    backend: Strands
    chooser: Chooser
    most_steps: int
    on_too_many_steps: Callable[[Control], None]
    """Cuts the program short."""

    targets: Targets = attrs.field(factory=Targets)
    """What can be made to go wrong, and when it is."""

    plan: Schedule | None = None
    """The schedule being replayed, if any; its marks are compared along the way."""

    numbers: dict[Strand, int] = attrs.field(factory=dict, init=False)
    coroutines: dict[Strand, Any] = attrs.field(factory=dict, init=False)
    """What the strands run, if that isn't what their loop thinks they run."""

    relieve: Callable[[], bool] = attrs.field(default=lambda: False, init=False)
    """Asked before the program is cut short: whether something was done to make it go on."""

    threads: dict[Strand, Any] = attrs.field(factory=dict, init=False)
    """By strand, the thread that makes its steps, if that isn't the loop's."""

    ending: Any = attrs.field(default=None, init=False)
    """How the program ends other than by itself."""

    crew: Any = attrs.field(default=None, init=False)
    """The threads that a loop's program works in; None before the first."""

    cut_short: bool = attrs.field(default=False, init=False)
    """Whether the program is being ended: what it does now isn't its own doing."""

    idles: int = attrs.field(default=0, init=False)
    """How often nothing could go on, so that a reply arrived or a clock moved."""

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

    started_by: list[int] = attrs.field(factory=list[int], init=False)
    """For each task, by number, the one whose step started it; the main one for itself."""

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

    # Strands ------------------------------------------------------------------------------------

    def admit(self, strand: Strand) -> None:
        """Give a strand its number. From now on it is under control."""
        self.numbers[strand] = len(self._codes)
        self.started_by.append(max(self._last, 0))
        # A hash that is the same in every process, unlike a str's.
        self._codes.append(crc32(self.backend.code_name(strand).encode()) | 1)

    def live(self) -> list[Strand]:
        """Return the program's strands that haven't ended."""
        return [strand for strand in self.numbers if self.backend.is_live(strand)]

    def frames(self, strand: Strand) -> Sequence[tuple[FrameType, int]]:
        """Return the frames of a suspended strand with their lines, outermost first."""
        thread = self.threads.get(strand)
        if thread is None or thread is strand:
            return self.loop_frames(strand)
        return [*self.loop_frames(strand), *thread.frames()]

    def loop_frames(self, strand: Strand) -> Sequence[tuple[FrameType, int]]:
        """Return the same without those of a thread that it waits for."""
        coro = self.coroutines.get(strand)
        return self.backend.frames(strand) if coro is None else list(await_frames(coro))

    @property
    def giving_up(self) -> bool:
        """Whether the program was cut short long ago, and still goes on."""
        return self.steps >= self.most_steps + STEPS_TO_END

    @property
    def hopeless(self) -> bool:
        """Whether it goes on even though `GiveUp` was thrown into it again and again."""
        return self.steps >= self.most_steps + 2 * STEPS_TO_END

    # Decisions ----------------------------------------------------------------------------------

    def pick(self, ready: Iterable[Strand]) -> Strand:
        """Return which of the strands that could go on does.

        Args:
          ready: Strands that were admitted, at least one, in any order.
        """
        numbers = self.numbers
        by_number = {numbers[strand]: strand for strand in ready}
        stepped = self.targets.stepped
        if stepped is not None:
            self.targets.note_wait(
                goes_on=numbers[stepped[1]] in by_number,
                is_live=self.backend.is_live(stepped[1]),
                decisions=len(self.choices),
            )
        if len(by_number) == 1:
            ((number, strand),) = by_number.items()
            self._passed_over_since.pop(number, None)
        else:
            number = self._decide(sorted(by_number))
            strand = by_number[number]
        self._last = number
        self.order.append(number)
        self.steps += 1
        if self.steps >= self.most_steps:
            self.on_too_many_steps(self)
        if len(self.targets.by_number) > 1:
            self.targets.count_step(strand)
        if self.targets.strikes_tasks:
            self.targets.begin_task_step(number, strand)
        return strand

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
        self.idles += 1
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


controlled: ContextVar[Control | None] = ContextVar("harness.testing.controlled", default=None)
"""What controls the program that the current code is part of."""


def frames_of(strand: Strand) -> Sequence[tuple[FrameType, int]]:
    """Return the frames of a suspended strand of a controlled program; none if it has ended."""
    control = strand.context.get(controlled)
    if control is None or not control.backend.is_live(strand):
        return []
    return control.frames(strand)


def thread_of(strand: Strand) -> Any:
    """Return the thread that makes a strand's next step; None if that is its loop's."""
    control = strand.context.get(controlled)
    return None if control is None else control.threads.get(strand)


def parent_of(strand: Strand) -> Strand | None:
    """Return the strand that started one of a controlled program; None for its main one."""
    control = strand.context.get(controlled)
    return None if control is None else control.backend.parent(strand)


def is_cut_short(strand: Strand) -> bool:
    """Return whether a strand's controlled program is being ended."""
    control = strand.context.get(controlled)
    return control is not None and control.cut_short


def _short(mixed: int) -> int:
    """Fold a hash into the 16 bits that a replay string shows."""
    return (mixed ^ mixed >> 16) & 0xFFFF
