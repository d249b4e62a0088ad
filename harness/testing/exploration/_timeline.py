"""Tell a schedule as a story: which task went on, and how far.

A replay string is for machines. What a person wants to read is which task made how many steps, in
which order, and where each was when the next took over.
"""

from __future__ import annotations

import attrs

from harness.runs._frames import describe_wait
from harness.testing.schedules import Strand
from harness.testing.schedules._blocked import told_apart
from harness.testing.schedules._control import frames_of, is_cut_short

LINES_AT_MOST = 24
"""How many lines a story has; a longer one loses its middle."""


@attrs.define
class _Turn:
    """Consecutive steps of one task."""

    task: Strand
    steps: int
    stands_in: str


@attrs.define(eq=False)
class Timeline:
    """Watches a run, and can tell what happened."""

    _over: bool = attrs.field(default=False, init=False)
    _turns: list[_Turn] = attrs.field(factory=list[_Turn], init=False)

    def before_step(self, task: Strand) -> None:
        """Count a step."""
        self._over = is_cut_short(task)
        if self._over:
            return
        if not self._turns or self._turns[-1].task is not task:
            self._turns.append(_Turn(task, 0, ""))
        self._turns[-1].steps += 1

    def after_step(self, task: Strand) -> None:
        """Note where the task is."""
        if self._over:
            return
        frames = frames_of(task)
        turn = self._turns[-1]
        turn.stands_in = f"to {describe_wait(frames)}" if frames else "to its end"

    def lines(self) -> list[str]:
        """Return the story, a line for each turn."""
        names = told_apart(turn.task for turn in self._turns)
        told = [
            f"{names[turn.task]!r} goes on for {turn.steps} step{'s'[: turn.steps != 1]}, "
            f"{turn.stands_in}"
            for turn in self._turns
        ]
        if len(told) > LINES_AT_MOST:
            half = LINES_AT_MOST // 2
            told[half:-half] = [f"... {len(told) - 2 * half} more ..."]
        return told
