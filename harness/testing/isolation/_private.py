"""Give each run contents of its own for some shared things, to prove that they are the cause.

A thing keeps its identity, so it doesn't matter who holds references to it: before another run's
step, its contents are swapped, as an operating system swaps a processor's registers. If a replay
of the failing schedule then gives every run the output it gives alone, nothing but these contents
can have made the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.testing.isolation._generators import Generators
from harness.testing.isolation._watch import member_of
from harness.testing.objects import WHOLE, SharedState, Suspect
from harness.testing.schedules import Strand


class PrivateContents:
    """An observer that swaps the contents of ``suspects`` whenever another run goes on."""

    def __init__(
        self, suspects: Sequence[Suspect], state: SharedState, generators: Generators
    ) -> None:
        self._suspects = list(suspects)
        self._initial = [state.initial_of(suspect.part) for suspect in suspects]
        self._generators = generators
        self._contents: dict[int, list[Any]] = {}
        self._loaded: int | None = None

    def before_step(self, task: Strand) -> None:
        """Swap in the contents of the run that goes on."""
        run = member_of(task)
        if run is not None:
            self.load(run)

    def after_step(self, task: Strand) -> None:
        """Do nothing: a run's contents stay until another run goes on."""

    def load(self, run: int) -> None:
        """Make the suspects hold what they hold for ``run``."""
        if run == self._loaded:
            return
        if self._loaded is not None:
            self._contents[self._loaded] = [suspect.part.take() for suspect in self._suspects]
        contents = self._contents.get(run)
        if contents is None:
            contents = [
                self._generators.fresh(suspect.part, run, initial)
                for suspect, initial in zip(self._suspects, self._initial, strict=True)
            ]
        for suspect, held in zip(self._suspects, contents, strict=True):
            suspect.part.put(held, None if suspect.key is WHOLE else [suspect.key])
        self._loaded = run
