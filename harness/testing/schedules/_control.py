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

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from types import FrameType
from typing import Any
from zlib import crc32

import attrs

from harness.testing.schedules._choosers import Chooser, Foreseeing
from harness.testing.schedules._schedule import Marks, Schedule
from harness.testing.schedules._strand import Strand, Strands, await_frames
from harness.testing.schedules._targets import Targets

PATIENCE = 250
"""How many decisions in a row may pass over a task before it must go on."""

PATIENCE_AT_MOST = 10_000
"""The same where there are many tasks; each then makes as many more decisions at its turn."""

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
    ready: dict[int, Strand] = attrs.field(factory=dict, init=False)
    """The strands that could go on, by number."""

    _ready_in_order: list[int] = attrs.field(factory=list[int], init=False)
    _ready_mixed: int = attrs.field(default=0, init=False)
    """The sum of their codes."""

    _passed_over_since: dict[int, int] = attrs.field(factory=dict[int, int], init=False)
    """By number, which decision was the first that a strand could have been picked at."""

    _was_forced: bool = attrs.field(default=False, init=False)
    """Whether the last decision wasn't the chooser's."""

    _forced_left: int = attrs.field(default=0, init=False)
    """How many more aren't, if it is about the same strand."""

    _hash: int = attrs.field(default=_HASH_SEED, init=False)
    _mixed: int = attrs.field(default=0, init=False)
    """What was mixed into it last, """
    _times: int = attrs.field(default=0, init=False)
    """and how often in a row; not in it yet."""
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
        self.numbers[strand] = number = len(self._codes)
        self.started_by.append(max(self._last, 0))
        # A hash that is the same in every process, unlike a str's. Sums of these tell sets apart.
        self._codes.append(_code(self.backend.code_name(strand), number))

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

    def add(self, strand: Strand) -> None:
        """Take note that a strand could go on; `pick` takes the one that does out again."""
        number = self.numbers[strand]
        if number not in self.ready:
            self.ready[number] = strand
            insort(self._ready_in_order, number)
            self._ready_mixed += self._codes[number]
            self._passed_over_since.setdefault(number, len(self.choices))

    def remove(self, strand: Strand) -> None:
        """Take note that a strand can't go on, if it could."""
        if (number := self.numbers[strand]) in self.ready:
            self._take_out(number)

    def _take_out(self, number: int) -> Strand:
        del self._ready_in_order[bisect_left(self._ready_in_order, number)]
        self._ready_mixed -= self._codes[number]
        return self.ready.pop(number)

    def pick(self, ready: Iterable[Strand] | None = None) -> Strand:
        """Return which of the strands that could go on does.

        What a step costs mustn't grow with the number of strands, so a backend best says with `add`
        what has changed.

        Args:
          ready: All that could go on now; at least one, in any order. By default those that were
            added.
        """
        if ready is not None:
            self._replace(ready)
        targets = self.targets
        stepped = targets.stepped
        if stepped is not None:
            targets.note_wait(
                goes_on=self.numbers[stepped[1]] in self.ready,
                is_live=self.backend.is_live(stepped[1]),
                decisions=len(self.choices),
            )
        order = self._ready_in_order
        number = order[0] if len(order) == 1 else self._decide(order.copy())
        strand = self._take_out(number)
        del self._passed_over_since[number]
        self._last = number
        self.order.append(number)
        self.steps += 1
        if self.steps >= self.most_steps:
            self.on_too_many_steps(self)
        if len(targets.by_number) > 1:
            targets.count_step(strand)
        if targets.strikes_tasks:
            targets.begin_task_step(number, strand)
        return strand

    def sure_steps(self) -> int:
        """Return how many more steps the strand that was picked is sure to be picked for.

        As long as nothing changes which others could go on; see `step_on`.
        """
        targets = self.targets
        if len(targets.by_number) > 1 or targets.stepped is not None or targets.strikes_tasks:
            return 0
        most = self.most_steps - self.steps - 1
        if self.ready:
            if not isinstance(self.chooser, Foreseeing):
                return 0
            most = min(most, self.chooser.stays())
            if self._was_forced:
                most = min(most, self._forced_left)
            else:
                since = next(
                    since
                    for number, since in self._passed_over_since.items()
                    if number in self.ready
                )
                most = min(most, since + _patience(len(self.ready) + 1) - len(self.choices))
        return max(most, 0)

    def step_on(self, steps: int) -> None:
        """Record steps that the strand which was picked last has made without being picked."""
        number = self._last
        self.order += [number] * steps
        self.steps += steps
        if self.ready:
            assert isinstance(self.chooser, Foreseeing)
            self.chooser.skip(steps)
            self._forced_left -= steps
            self.choices += [0] * steps
            self.widths += [len(self.ready) + 1] * steps
            self.picks += [number] * steps
            self._mix(self._ready_mixed + self._codes[number], steps)

    def _replace(self, ready: Iterable[Strand]) -> None:
        """Have just these strands as those that could go on."""
        wanted = {self.numbers[strand]: strand for strand in ready}
        for number in self.ready.keys() - wanted.keys():
            self._take_out(number)
        for strand in wanted.values():
            self.add(strand)

    def _decide(self, tasks: list[int]) -> int:
        """Choose one of several, given by number and in order."""
        self._mix(self._ready_mixed)
        if self._last in self.ready and tasks[0] != self._last:
            del tasks[bisect_left(tasks, self._last)]
            tasks.insert(0, self._last)
        if self._forced_left > 0 and tasks[0] == self._last:
            self._forced_left -= 1
            return tasks[self._choose(tasks, forced=True)]
        self._forced_left = 0
        starving = self._starving(len(tasks)) if len(self.choices) >= PATIENCE else None
        if starving is not None:
            tasks.remove(starving)
            tasks.insert(0, starving)
            self._forced_left = _patience(len(tasks)) // PATIENCE - 1
        return tasks[self._choose(tasks, forced=starving is not None)]

    def _starving(self, count: int) -> int | None:
        """Return the first of those that were passed over for the longest time, if for too long."""
        found, longest = None, len(self.choices) - _patience(count)
        for number, since in self._passed_over_since.items():  # In the order of time.
            if since > longest:
                break
            if number in self.ready and (found is None or number < found):
                found, longest = number, since
        return found

    def _choose(self, options: Sequence[int], *, forced: bool = False) -> int:
        """Make a decision and record it; ``forced`` means choice 0, whatever the chooser wants."""
        decision = len(self.choices)
        expected = self._expected.get(decision)
        if expected is not None and self.diverged_at is None and expected != self._mark():
            self.diverged_at = decision
        choice = self.chooser.choose(options)  # Even if it is forced: choosers count decisions.
        if forced:
            choice = 0
        self._was_forced = forced
        self.choices.append(choice)
        self.widths.append(len(options))
        self.picks.append(options[choice])
        if choice:
            self._hashes.append((decision, self._mark()))
        return choice

    def _mix(self, value: int, times: int = 1) -> None:
        """Mix something seen into the hash of everything seen."""
        if value != self._mixed:
            self._hash = self._all_mixed()
            self._mixed, self._times = value, 0
        self._times += times

    def _all_mixed(self) -> int:
        if not self._times:
            return self._hash
        mixed = (self._hash ^ self._mixed) * _HASH_PRIME & 0xFFFFFFFF
        return (mixed ^ self._times) * _HASH_PRIME & 0xFFFFFFFF

    def _mark(self) -> int:
        """Fold that hash into the 16 bits that a replay string shows."""
        mixed = self._all_mixed()
        return (mixed ^ mixed >> 16) & 0xFFFF

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
        self._mix(len(options))
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
        return None if marks.at_end == self._mark() else len(self.choices)

    def schedule(self) -> Schedule:
        """Return what was decided and what struck, as a value that can be replayed."""
        schedule = Schedule.of_choices(
            ((decision, self.choices[decision]) for decision, _ in self._hashes),
            self.targets.struck,
        )
        marks = Marks(tuple(mark for _, mark in self._hashes), len(self.choices), self._mark())
        return attrs.evolve(schedule, marks=marks)


@lru_cache(maxsize=10_000)
def _code(name: str, number: int) -> int:
    code, weight = (crc32(text.encode()) | 1 for text in (name, f"{number}"))
    return code * weight & 0xFFFFFFFF


def _patience(count: int) -> int:
    """Return for how many decisions in a row one of so many may be passed over.

    If each of a hundred had its turn as often as each of three, they would do little but take turns
    at single steps. So they have it less often, and make more steps then.
    """
    return min(max(PATIENCE, count * count), PATIENCE_AT_MOST)


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
