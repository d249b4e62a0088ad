"""Find the lines that write and read shared things, in a replay.

The runs' steps are traced line by line. Before each line, the things are compared with how they
were one line earlier: if they differ, the line in between wrote them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CellType, CodeType, FrameType
from typing import Any

import attrs

from harness.runs._frames import place
from harness.testing.isolation._watch import member_of
from harness.testing.objects import WHOLE, LineTrace, Spot, Suspect, Touch, touches
from harness.testing.schedules import Strand


@attrs.frozen(eq=False)
class Access:
    """A line that wrote or read one of the things."""

    suspect: Suspect
    member: int
    step: int
    """Which step of the program, from 1, as in `Step`."""

    where: str
    """Function, file and line, in words."""

    is_write: bool

    code: CodeType | None = None
    """The code that the line is in; None if that is a library's."""


class LineWatch:
    """An observer that traces steps and collects who wrote and who read ``suspects``."""

    def __init__(self, suspects: Sequence[Suspect]) -> None:
        self.accesses: list[Access] = []
        self._suspects = list(suspects)
        self._last: list[Any] = []
        self._steps = 0
        self._member: int | None = None
        self._trace = LineTrace(self._note_writes, self._note_reads)

    def begin(self) -> None:
        """Take everything as it is now, as the state before the first step."""
        self._last = [suspect.part.take() for suspect in self._suspects]

    def before_step(self, task: Strand) -> None:
        """Start tracing, if the step is a run's."""
        self._member = member_of(task)
        if self._member is not None:
            self._steps += 1
            self._last = [suspect.part.take() for suspect in self._suspects]
            self._trace.begin(task)

    def after_step(self, task: Strand) -> None:
        """Stop tracing."""
        if self._member is not None:
            self._trace.end()

    def _note_writes(self) -> None:
        for index, suspect in enumerate(self._suspects):
            now = suspect.part.take()
            keys = suspect.part.changed(self._last[index], now)
            if not keys:
                continue
            self._last[index] = now
            if suspect.key is WHOLE or suspect.key in keys:
                self._note(suspect, self._trace.line, is_write=True)

    def _note_reads(self, frame: FrameType, spot: Spot) -> None:  # pragma: no cover - see LineTrace
        for touch in touches(frame, spot):
            for suspect in self._suspects:
                if _is_touched(suspect, touch, frame):
                    self._note(suspect, (frame.f_code, spot.line), is_write=False)

    def _note(self, suspect: Suspect, line: tuple[CodeType, int] | None, *, is_write: bool) -> None:
        where = "code of a library" if line is None else place(*line)
        member = self._member
        assert member is not None
        code = None if line is None else line[0]
        self.accesses.append(Access(suspect, member, self._steps, where, is_write, code))


def _is_touched(
    suspect: Suspect, touch: Touch, frame: FrameType
) -> bool:  # pragma: no cover - see LineTrace
    thing = suspect.part.thing
    if suspect.part.names_things and suspect.key is not WHOLE:
        if isinstance(thing, CellType):
            # Nothing says which cell a variable is kept in, so compare what the two hold.
            code = frame.f_code
            names = code.co_freevars + code.co_cellvars
            held = suspect.part.take().get(suspect.key)
            return touch.owner is code and touch.name in names and touch.value is held
        if suspect.place.sealed:
            return _hangs_there(suspect, touch)
        return touch.name == suspect.key and touch.owner is thing
    return touch.value is thing or (suspect.place.sealed and _hangs_there(suspect, touch))


def _hangs_there(suspect: Suspect, touch: Touch) -> bool:  # pragma: no cover - see LineTrace
    """Tell whether a line loads the object, of a class from elsewhere, that a thing is inside."""
    last = str(suspect.place).partition(" (local of")[0].rpartition(".")[2]
    return touch.name == last
