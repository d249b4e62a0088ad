"""Note what one step of a program reads and writes, as the basis for saying which orders differ.

A place is an object and a key: the name of an attribute or variable, an element, or all of it. The
same place in two steps, written by one of them, makes their order matter. Where a value can't be
known, `ANY` stands for its object and conflicts with every object of the right kind; what runs
outside of Python, and isn't known, is *unseen*: such a step depends on every other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Final

import attrs

WHOLE: Final = "<all of it>"
"""The key of everything in an object."""

ANY: Final = 0
"""The number of an object that could be any."""

ORDER: Final = "<the order of its keys>"

Line = tuple[str, int]
"""A file and a line of the user's code."""


@attrs.define
class Access:
    """How a step touched a place."""

    writes: bool
    at: dict[tuple[Line | None, bool], None]
    """The lines that did so, each with whether it wrote."""


@attrs.define(eq=False)
class Effects:
    """What a step read and wrote."""

    touched: dict[int, dict[Hashable, Access]] = attrs.field(factory=dict)
    """By the number of the object and the key."""

    unseen: str | None = None
    """What it did that can't be seen; None if everything was."""

    gives_back: set[int] = attrs.field(factory=set)
    """The locks of threads that were held before it, and free after it."""

    depends_on_all: bool = False
    """Whether its order with any other step matters, as for a cancel."""

    def add(self, thing: int, key: Hashable, writes: bool, line: Line | None) -> None:
        """Note an access."""
        keys = self.touched.setdefault(thing, {})
        access = keys.get(key)
        if access is None:
            access = keys[key] = Access(writes, {})
        access.writes |= writes
        access.at[line, writes] = None

    def merge(self, other: Effects) -> None:
        """Add what another step read and wrote, as far as that is known."""
        for thing, keys in other.touched.items():
            if thing == ANY:
                continue
            for key, access in keys.items():
                for line, writes in access.at:
                    self.add(thing, key, writes, line)

    def conflicts_with(self, other: Effects) -> bool:
        """Tell whether the order of both could matter."""
        return (
            self.depends_on_all
            or other.depends_on_all
            or next(self.conflicts(other), None) is not None
        )

    def conflicts(self, other: Effects) -> Iterator[tuple[int, Hashable, Access, Access]]:
        """Yield the places that both touched and one wrote, with both accesses."""
        for thing, mine, theirs in self._shared(other):
            for key, access in mine.items():
                for their_key, their_access in theirs.items():
                    if (access.writes or their_access.writes) and (
                        key == their_key or key is WHOLE or their_key is WHOLE
                    ):
                        yield thing, their_key if key is WHOLE else key, access, their_access

    def _shared(
        self, other: Effects
    ) -> Iterator[tuple[int, dict[Hashable, Access], dict[Hashable, Access]]]:
        for thing in self.touched.keys() & other.touched.keys():
            yield thing, self.touched[thing], other.touched[thing]
        if ANY in self.touched:
            for thing, theirs in other.touched.items():
                if thing != ANY:
                    yield thing, self.touched[ANY], theirs
        if ANY in other.touched:
            for thing, mine in self.touched.items():
                if thing != ANY:
                    yield thing, mine, other.touched[ANY]


@attrs.define(eq=False)
class Things:
    """The objects that a run touches, numbered in that order and kept, so that ids stay theirs."""

    _numbers: dict[int, int] = attrs.field(factory=dict)
    kept: list[Any] = attrs.field(factory=lambda: [None])

    def number(self, thing: Any) -> int:
        """Return the number of an object."""
        found = self._numbers.get(id(thing))
        if found is None:
            found = self._numbers[id(thing)] = len(self.kept)
            self.kept.append(thing)
        return found
