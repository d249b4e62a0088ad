"""Keep what runs share as it was at the beginning, and put it back before every run."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import attrs

from harness._words import error_in_words
from harness.testing.objects._parts import WHOLE, Part
from harness.testing.objects._places import Place
from harness.testing.objects._reach import Reached

_LOOKS = frozenset(4**power for power in range(1, 12))
"""Before which runs to look at what is far away."""


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

    What is near is compared and put back before every run. The rest (see `follow_the_rest`) can be
    a hundred times as much, so it is looked at when a run fails, and otherwise ever more seldom:
    what a run changes there, the first look finds, and from then on it is near.

    What can't be put back is listed in `not_put_back`, each at most once.
    """

    def __init__(self, reached: Reached) -> None:
        self.reached = reached
        self.parts: list[Part] = []
        self.initial: list[Any] = []
        self.not_put_back: list[str] = [str(part) for part in reached.opaque]
        self._rest: list[tuple[Part, Any]] = []
        self._rounds = 0
        for part in reached.parts:
            self.add(part)

    def add(self, part: Part) -> None:
        """Hold one more part, as it is now."""
        for contents in self._taken(part):
            self._follow(part, contents)

    def follow_the_rest(self, *, apart_from: Container[int] = ()) -> None:
        """Hold what is far away, too, and what runs may change anywhere in the process.

        Args:
          apart_from: The ids of things to leave as they are.
        """
        near = len(self.reached.parts)
        opaque = len(self.reached.opaque)
        self.reached.go_on()
        self.not_put_back += [str(part) for part in self.reached.opaque[opaque:]]
        far = [part for part in self.reached.parts[near:] if id(part.thing) not in apart_from]
        for part in (*far, *self.reached.everywhere_else()):
            self._rest += [(part, contents) for contents in self._taken(part)]

    def look_closer(self) -> bool:
        """Look at the rest; follow closely what has changed, and return whether anything has."""
        rest, self._rest = self._rest, []
        followed = len(self.parts)
        for part, initial in rest:
            keys = part.changed_since(initial)
            closer = tuple(part.close_up(initial, keys)) if keys else ()
            for one, contents in closer:
                self._follow(one, contents)
            if all(one is not part for one, _ in closer):
                self._rest.append((part, initial))
        return len(self.parts) > followed

    def put_back(self, *, everything: bool = False) -> None:
        """Make every part hold again what it held at first, keeping identities.

        Args:
          everything: Whether to look at the rest as well, as at the end.
        """
        self._rounds += 1
        if everything or self._rounds in _LOOKS:
            self.look_closer()
        for part, initial in zip(self.parts, self.initial, strict=True):
            if part.changed(initial, part.take()):
                try:
                    part.put(initial)
                except Exception as error:
                    self._complain(f"{part.place} ({error_in_words(error)})")

    def _taken(self, part: Part) -> Iterator[Any]:
        """Yield what a part holds, unless it can't be asked."""
        try:
            yield part.take()
        except Exception as error:
            self.not_put_back.append(f"{part.place} ({error_in_words(error)})")

    def _follow(self, part: Part, contents: Any) -> None:
        self.parts.append(part)
        self.initial.append(contents)

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
