"""Write a schedule as a value: which task goes on if several could, and what goes wrong.

Between two checkpoints a task runs undisturbed, so all that can differ from one run of a program to
the next is which task goes on at each step. A step at which several tasks could go on is a
*decision*. There the tasks are in a fixed order, the one that ran last first; 0 picks that one, so
a schedule of only zeros never switches away from a task that can go on. The notation is sparse: how
many zeros, then a choice that isn't one.

A schedule prints as a short string, and the string runs it again::

    h1:4x1~9c3e,11x2~07fb:c1@3:57~52d0

After the version come the deviations (``4x1``: four zeros, then choice 1), the faults (``c1@3``:
run 1 is cancelled at its 3rd step), and how many decisions there were. After each ``~`` comes a
mark: a hash of which tasks could have gone on at every decision so far. A replay that meets a
different mark is running different code, and says at which decision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Literal, get_args

import attrs

VERSION = "h1"
"""What every replay string begins with. It changes when old strings would mean something else."""

FaultKind = Literal["cancel", "cancel_waking", "cancel_task", "cancel_task_waking", "fail", "delay"]

_LETTERS: dict[str, FaultKind] = {
    "c": "cancel",
    "w": "cancel_waking",
    "t": "cancel_task",
    "u": "cancel_task_waking",
    "f": "fail",
    "d": "delay",
}
_LETTER_OF = {kind: letter for letter, kind in _LETTERS.items()}

_DEVIATION = re.compile(r"(\d{1,9})x(\d{1,9})(?:~([0-9a-f]{4}))?")
_FAULT = re.compile(r"([cwtufd])(\d{1,9})@(\d{1,9})")
_END = re.compile(r"(\d{1,9})~([0-9a-f]{4})")


def _at_least(minimum: int) -> Callable[[object, attrs.Attribute[int], int], None]:
    def check(instance: object, attribute: attrs.Attribute[int], value: int) -> None:
        name = f"{type(instance).__name__}.{attribute.name}"
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be an int, not {value!r}")
        if value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, not {value}")

    return check


def _is_known(instance: object, attribute: attrs.Attribute[FaultKind], value: FaultKind) -> None:
    if value not in get_args(FaultKind):
        kinds = ", ".join(get_args(FaultKind))
        raise ValueError(f"Fault.kind must be one of {kinds}, not {value!r}")


@attrs.frozen(order=True)
class Fault:
    """Something made to go wrong in one of a program's runs."""

    run: int = attrs.field(validator=_at_least(0))
    """Which run, as numbered by `faultable`; for a cancel of a task, which task, in the order of
    starting, from 0."""

    at: int = attrs.field(validator=_at_least(1))
    """When, counting from 1: for a cancel, the run's or task's step; for ``"fail"`` and
    ``"delay"``, its call of functions wrapped by `faulty`."""

    kind: FaultKind = attrs.field(default="cancel", validator=_is_known)
    """``"cancel"``: the run is cancelled right after the step, so the wait that follows is cut
    short. ``"cancel_waking"``: right before it, when the wait is over but the task hasn't resumed,
    so the next checkpoint meets the cancel. ``"cancel_task"`` and ``"cancel_task_waking"``: the
    same for a single task. ``"fail"``: the call raises instead. ``"delay"``: the call takes
    longer."""

    def __str__(self) -> str:
        return f"{_LETTER_OF[self.kind]}{self.run}@{self.at}"

    @property
    def cancels_task(self) -> bool:
        """Whether it cancels a task, rather than something in a run."""
        return self.kind in ("cancel_task", "cancel_task_waking")

    def in_words(self) -> str:
        """Return what it does, as a sentence for a report."""
        if self.kind == "cancel_task":
            return f"task {self.run} is cancelled while it waits after its step {self.at}"
        if self.kind == "cancel_task_waking":
            return f"task {self.run} is cancelled as it wakes for its step {self.at}"
        if self.kind == "cancel":
            return f"run {self.run} is cancelled while it waits after its step {self.at}"
        if self.kind == "cancel_waking":
            return f"run {self.run} is cancelled as it wakes for its step {self.at}"
        verb = "fails" if self.kind == "fail" else "is delayed"
        return f"call {self.at} of run {self.run} {verb}"


@attrs.frozen
class Marks:
    """What a run of a schedule saw, so that a replay can tell whether it sees the same."""

    at_deviations: tuple[int, ...]
    """For each deviation, the hash of all decisions up to it."""

    decisions: int
    """How many decisions the whole run had."""

    at_end: int
    """The hash of all of them."""


def _pairs(deviations: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    pairs: tuple[tuple[int, int], ...] = tuple(deviations)
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(part, int) and part >= 0 for part in pair):
            raise ValueError(
                f"a deviation is a pair (gap, choice) of ints that are not negative, not {pair!r}"
            )
    return pairs


def _in_order(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(set(faults)))


@attrs.frozen
class Schedule:
    """Which task goes on at every decision, and what goes wrong; fixed before the run.

    Two schedules are equal if they say the same; what an earlier run of one saw doesn't count.
    """

    deviations: tuple[tuple[int, int], ...] = attrs.field(default=(), converter=_pairs)
    """Pairs of a gap and a choice: that many decisions without a switch, then this choice."""

    faults: tuple[Fault, ...] = attrs.field(default=(), converter=_in_order)
    """What goes wrong, without duplicates, in the order of the runs."""

    marks: Marks | None = attrs.field(default=None, eq=False, kw_only=True, repr=False)
    """What a run of it saw; None if it was never run."""

    def __str__(self) -> str:
        marks = self.marks
        parts: list[str] = []
        for number, (gap, choice) in enumerate(self.deviations):
            mark = f"~{marks.at_deviations[number]:04x}" if marks is not None else ""
            parts.append(f"{gap}x{choice}{mark}")
        faults = ",".join(map(str, self.faults))
        end = f"{marks.decisions}~{marks.at_end:04x}" if marks is not None else "-"
        return f"{VERSION}:{','.join(parts) or '-'}:{faults or '-'}:{end}"

    @property
    def size(self) -> tuple[int, int, int, int]:
        """How much it differs from the plain run, for telling which of two is simpler."""
        return (
            len(self.faults) + self.switches,
            sum(gap + 1 for gap, _ in self.deviations),
            sum(choice for _, choice in self.deviations),
            sum(fault.at for fault in self.faults),
        )

    @property
    def switches(self) -> int:
        """How many deviations really choose; choice 0 doesn't count."""
        return sum(1 for _, choice in self.deviations if choice)

    def choices(self) -> dict[int, int]:
        """Return the choices other than 0, by the number of the decision, from 0."""
        chosen: dict[int, int] = {}
        position = 0
        for gap, choice in self.deviations:
            position += gap
            if choice:
                chosen[position] = choice
            position += 1
        return chosen

    @classmethod
    def of_choices(
        cls, choices: Iterable[tuple[int, int]], faults: Iterable[Fault] = ()
    ) -> Schedule:
        """Return the schedule that makes these choices.

        Args:
          choices: Pairs of the number of a decision, from 0, and what is chosen there.
          faults: What goes wrong.
        """
        deviations: list[tuple[int, int]] = []
        following = 0
        for position, choice in sorted(choices):
            if choice:
                deviations.append((position - following, choice))
                following = position + 1
        return cls(tuple(deviations), tuple(faults))

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Return the schedule that a replay string stands for.

        Args:
          text: What ``str(schedule)`` gave, as reports print it.

        Raises:
          ValueError: if it isn't a replay string, or is from another version.
        """
        if not isinstance(text, str):
            raise TypeError(f"a replay string was expected, not {text!r}")
        parts = text.strip().split(":")
        version = parts[0]
        if version != VERSION and re.fullmatch(r"h\d+", version):
            raise ValueError(
                f"the replay string {text!r} is of version {version}, and this harness reads "
                f"{VERSION}; search again to get a new one"
            )
        if version != VERSION or len(parts) != 4:
            raise ValueError(
                f"{text!r} is not a replay string; one looks like 'h1:4x1~9c3e:-:57~52d0' and is "
                "printed by every failure"
            )
        deviations: list[tuple[int, int]] = []
        at_deviations: list[int] = []
        for part in _items(parts[1]):
            found = _DEVIATION.fullmatch(part)
            if found is None:
                raise ValueError(f"in the replay string {text!r}, {part!r} isn't a deviation")
            deviations.append((int(found[1]), int(found[2])))
            if found[3] is not None:
                at_deviations.append(int(found[3], 16))
        faults: list[Fault] = []
        for part in _items(parts[2]):
            found = _FAULT.fullmatch(part)
            if found is None:
                raise ValueError(f"in the replay string {text!r}, {part!r} isn't a fault")
            faults.append(Fault(int(found[2]), int(found[3]), _LETTERS[found[1]]))
        marks = None
        if parts[3] != "-":
            found = _END.fullmatch(parts[3])
            if found is None or len(at_deviations) != len(deviations):
                raise ValueError(f"the replay string {text!r} is cut or was changed by hand")
            marks = Marks(tuple(at_deviations), int(found[1]), int(found[2], 16))
        return cls(tuple(deviations), tuple(faults), marks=marks)


def _items(part: str) -> list[str]:
    return [] if part == "-" else part.split(",")
