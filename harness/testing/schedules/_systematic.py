"""Let a program's plain run deviate at one decision, each in turn; then at two.

Most faults need only one or two switches in the right places. Level by level, every set of
deviations is proposed once, in random order, because a level of a large program is never finished,
and the first decisions are no likelier to matter than the last. When no level is left, every order
of the program's steps has been run.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import attrs

Deviations = tuple[tuple[int, int], ...]
"""Choices other than 0, each with the number of its decision."""

MOST_WAITING = 50_000
"""How many deviations of the next level are kept. More are never tried in one search."""


@attrs.define(eq=False)
class Systematic:
    """What hasn't been tried yet, nearest to the plain run first."""

    random: Random
    complete: bool = attrs.field(default=True, init=False)
    """Whether everything that could be proposed was kept."""

    _level: list[Deviations] = attrs.field(factory=lambda: [()], init=False)
    _next_level: list[Deviations] = attrs.field(factory=list[Deviations], init=False)
    _proposed: int = attrs.field(default=0, init=False)

    def propose(self) -> Deviations | None:
        """Return what to try next; None if nothing is left, or a trial must end first."""
        if not self._level:
            self._level, self._next_level = self._next_level, []
            self.random.shuffle(self._level)
        if not self._level:
            return None
        self._proposed += 1
        return self._level.pop()

    def learn(self, deviations: Deviations, widths: Iterable[int]) -> None:
        """Learn how many tasks could go on at each decision of a run with deviations."""
        self._proposed -= 1
        after = deviations[-1][0] if deviations else -1
        for decision, width in enumerate(widths):
            if decision > after:
                for choice in range(1, width):
                    if len(self._next_level) >= MOST_WAITING:
                        self.complete = False
                        return
                    self._next_level.append((*deviations, (decision, choice)))

    @property
    def exhausted(self) -> bool:
        """Whether every order has been tried."""
        return self.complete and not (self._level or self._next_level or self._proposed)
