"""Keep what runs share as it was at the beginning, and put it back before every run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from harness._words import error_in_words
from harness.testing.objects._parts import WHOLE, Part
from harness.testing.objects._places import Place
from harness.testing.objects._reach import Reached


@attrs.frozen(eq=False)
class Suspect:
    """A part that several runs touch, or what is in it under one key."""

    part: Part
    key: Any = WHOLE

    @property
    def place(self) -> Place:
        """Where it hangs."""
        return self.part.place_of(self.key)

    @property
    def path(self) -> str:
        """Where it hangs, in words."""
        return str(self.place)


class SharedState:
    """The parts that a walk has found, with what they held then.

    What can't be put back is listed in `not_put_back`, each at most once.
    """

    def __init__(self, reached: Reached) -> None:
        self.reached = reached
        self.parts: list[Part] = []
        self.initial: list[Any] = []
        self.not_put_back: list[str] = [str(part) for part in reached.opaque]
        for part in reached.parts:
            self.add(part)

    def add(self, part: Part) -> None:
        """Hold one more part, as it is now."""
        try:
            contents = part.take()
        except Exception as error:
            self.not_put_back.append(f"{part.place} ({error_in_words(error)})")
        else:
            self.parts.append(part)
            self.initial.append(contents)

    def put_back(self) -> None:
        """Make every part hold again what it held at first, keeping identities."""
        for part, initial in zip(self.parts, self.initial, strict=True):
            if part.changed(initial, part.take()):
                try:
                    part.put(initial)
                except Exception as error:
                    self._complain(f"{part.place} ({error_in_words(error)})")

    def begin_run(self) -> None:
        """Reset what belongs to one ``trio.run``, before another."""
        for part in self.parts:
            if part.per_loop:
                part.put(None)

    def _complain(self, words: str) -> None:
        if words not in self.not_put_back:
            self.not_put_back.append(words)

    def left_behind(self) -> list[Suspect]:
        """Return what differs from how it was at first."""
        return [
            suspect
            for part, initial in zip(self.parts, self.initial, strict=True)
            for suspect in suspects_of(part, initial, part.take())
        ]

    def initial_of(self, part: Part) -> Any:
        """Return what a part held at first."""
        return self.initial[self.parts.index(part)]


def suspects_of(part: Part, before: Any, after: Any) -> Iterator[Suspect]:
    """Yield what has changed in a part between two takes.

    Each attribute and each global is a suspect of its own, and so is an element of a dict if only
    one changed; otherwise a container is one suspect, however much of it changed.
    """
    keys = part.changed(before, after)
    if part.names_things or len(keys) == 1:
        for key in keys:
            yield Suspect(part, key)
    elif keys:
        yield Suspect(part)
