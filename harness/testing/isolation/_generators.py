"""Give each run random numbers of its own, if it draws them from a generator that it doesn't seed.

Such numbers are meant to be chance, so that others come when other runs draw, too, is no leak: a
simulated model that fails now and then may do so. They are the same each time for the same seed of
the check. A run that seeds a generator counts on the numbers that follow. For it nothing is
changed: what other runs draw in between is a leak.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.testing.objects import GeneratorPart, Part, Suspect


class Generators:
    """The generators that a function reaches, seeded for the length of a check.

    Args:
      parts: What the function reaches.
      seed: What the numbers are drawn from.
    """

    def __init__(self, parts: Iterable[Part], seed: int) -> None:
        self.drawn: list[Suspect] = []
        """Those that some run draws from without seeding them."""
        self._seed = seed
        self._held = {
            part: part.take()
            for part in parts
            if isinstance(part, GeneratorPart) and part.seeded() is not None
        }
        for part in self._held:
            part.put(part.seeded(seed))

    def begin(self, *which: object) -> None:
        """Let a run that is alone draw numbers of its own."""
        for part in self._held:
            part.put(part.seeded(self._seed, *which))

    def fresh(self, part: Part, run: int, contents: Any) -> Any:
        """Return contents for a run that should have a part to itself."""
        if isinstance(part, GeneratorPart) and part in self._held:
            return part.seeded(self._seed, run)
        return part.fresh(contents)

    def changed(self, run: int) -> dict[GeneratorPart, Any]:
        """Return what a run that was alone has left in those that it used."""
        held = {part: part.take() for part in self._held}
        return {p: now for p, now in held.items() if now != p.seeded(self._seed, run)}

    def note_drawn(self, left: dict[GeneratorPart, Any]) -> None:
        """Note those of ``left`` that another start leaves otherwise: nobody seeds them."""
        noted = {suspect.part for suspect in self.drawn}
        self.drawn += [
            Suspect(part) for part, was in left.items() if part not in noted and part.take() != was
        ]

    def put_back(self) -> None:
        """Make each hold what it held before the check."""
        for part, held in self._held.items():
            part.put(held)
