"""Find what an agent function can reach that other runs of it reach too.

From the function: the globals that its code names, what it closes over, its default arguments and
the object it is bound to; and on from there through the user's functions, classes, objects and
modules. An object of somebody else's class that hangs from one of the user's is looked into as
well, because many leaks are in a shared client; somebody else's classes and modules aren't, except
for what the user's code writes there (``library.setting = ...``).

The walk goes level by level, so an object that can be reached in two ways gets the shorter path.

What is near is looked at first, and only `go_on` looks at the rest. Where even that ends,
`not_looked_at` names the place.
"""

from __future__ import annotations

import logging
import threading
import types
from collections import deque
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any

from harness.runs import RunLocal
from harness.testing.objects._code import is_users_class
from harness.testing.objects._everywhere import LoggersPart, ModulesPart
from harness.testing.objects._kinds import ATOMS, HARMLESS_MODULES, HELD, Held, Kind, kind_of
from harness.testing.objects._named import Named
from harness.testing.objects._parts import KeyedPart, NamesPart, OpaquePart, Part, SlotsPart
from harness.testing.objects._places import Place

NEAR_AT_MOST = 20_000
"""How many objects are near; further ones are looked at by `Reached.go_on`."""

ITEMS_AT_MOST = 1_000
"""How many elements of one container are near. All of them are compared and put back."""

OBJECTS_AT_MOST = 200_000
"""How many objects are looked at in all; the rest is named as not looked at."""

PLACES_AT_MOST = 10
"""How many places where the walk ended are named one by one."""

FOREIGN_LEVELS = 6
"""How deep the walk goes into an object of somebody else's class."""


class Reached:
    """What a walk has found; `add` walks on from more roots."""

    def __init__(self, *, may_import: bool = False) -> None:
        """Begin a walk.

        Args:
          may_import: Whether to import those of the user's modules that functions import
            themselves. Not for a test: it may set something up before it imports.
        """
        self.parts: list[Part] = []
        self.opaque: list[OpaquePart] = []
        """What can't be looked into, so can't be put back."""
        self.run_locals: list[tuple[Place, RunLocal[Any]]] = []
        """The `RunLocal`s, whose values belong to runs."""
        self.seen: dict[int, Any] = {}
        """The objects themselves, kept alive so that no other object gets their ids."""
        self._pending: deque[tuple[Any, Place, int]] = deque()
        self._later: deque[tuple[Place, Iterator[None]]] = deque()
        """Containers, and what looks at one more of their elements whenever it is advanced."""
        self._too_deep: dict[str, None] = {}
        self._at_most = NEAR_AT_MOST
        self._kinds: dict[type[Any], Kind | None] = {}
        self._named = Named(self, may_import=may_import)

    def add(self, place: Place, thing: Any) -> None:
        """Walk from ``thing``, which hangs at ``place``."""
        self.push(thing, place, 0)
        self._walk()

    def add_code(self, code: types.CodeType, names: dict[str, Any]) -> None:
        """Walk from the globals that some code names; ``names`` are those of its module."""
        self.in_code(code, names)
        self._walk()

    def go_on(self) -> None:
        """Look at what was left for later: the rest of large containers, and what is far away."""
        self._at_most = OBJECTS_AT_MOST
        self._walk()
        while self._later and not self._pending:
            _, elements = self._later[0]
            if sum(1 for _ in islice(elements, ITEMS_AT_MOST)) < ITEMS_AT_MOST:
                self._later.popleft()
            self._walk()

    @property
    def cut_short(self) -> bool:
        """Whether there was more than has been looked at."""
        return bool(self._pending or self._later)

    def not_looked_at(self) -> list[str]:
        """Return where the walk ended, in words."""
        ends = [f"{place} (the last of its elements)" for place, _ in self._later]
        ends += [str(place) for thing, place, _ in self._pending if id(thing) not in self.seen]
        ends += [f"{path} (deeper than {FOREIGN_LEVELS} objects)" for path in self._too_deep]
        ends = list(dict.fromkeys(ends))
        if len(ends) > PLACES_AT_MOST:
            ends[PLACES_AT_MOST:] = [f"{len(ends) - PLACES_AT_MOST} more places"]
        return ends + self._named.not_looked_at()

    def everywhere_else(self) -> list[Part]:
        """Return parts for what runs may change though no code was seen to lead there."""
        loggers = {key for key, thing in self.seen.items() if isinstance(thing, logging.Logger)}
        modules = ModulesPart(self._named.followed())
        return [*self._named.other_states(), modules, LoggersPart(loggers)]

    def spread(self, elements: Iterator[None], place: Place) -> None:
        """Look at the first elements of a container now, and at the rest if the walk goes on.

        Args:
          elements: Pushes one more element whenever it is advanced.
          place: Where the container hangs.
        """
        if sum(1 for _ in islice(elements, ITEMS_AT_MOST)) == ITEMS_AT_MOST:
            self._later.append((place, elements))

    def namespaces(self) -> dict[str, dict[str, Any]]:
        """Return the globals of the modules whose code was walked through, by name."""
        return self._named.namespaces()

    def push(self, thing: Any, place: Place, foreign_levels: int) -> None:
        """Look at an object later, when nothing is left that hangs less deep."""
        if type(thing) not in ATOMS and id(thing) not in self.seen:
            self._pending.append((thing, place, foreign_levels))

    def _walk(self) -> None:
        while self._pending:
            thing, place, levels = self._pending[0]
            if id(thing) not in self.seen and len(self.seen) >= min(self._at_most, OBJECTS_AT_MOST):
                return
            self._pending.popleft()
            if id(thing) in self.seen:
                continue
            self.seen[id(thing)] = thing
            try:
                self._look_at(thing, place, levels)
            except Exception:  # Its class does something odd when looked at.
                self.opaque.append(OpaquePart(place, thing))

    def _look_at(self, thing: Any, place: Place, levels: int) -> None:
        if self._named.by_thing(thing):
            return
        kind = self._kind(type(thing))
        if kind is None:
            self.instance(thing, place, levels)
        elif kind.look is not None:
            kind.look(self, thing, place, levels)
        else:
            if kind.part is not None:
                self.parts.append(kind.part(place, thing))
            self.spread(self._each(kind.holds(thing, place), levels), place)
            if kind.attributes and type(thing) not in kind.types:
                self.attributes(thing, place, levels)

    def _each(self, held: Held, levels: int) -> Iterator[None]:
        for thing, where in held:
            self.push(thing, where, levels)
            yield

    def _kind(self, cls: type[Any]) -> Kind | None:
        if cls not in self._kinds:
            self._kinds[cls] = kind_of(cls)
        return self._kinds[cls]

    # What the kinds of things ask of the walk ----------------------------------------------------

    def in_code(self, code: types.CodeType, names: dict[str, Any]) -> None:
        """Look at what some code names; ``names`` are the globals of its module."""
        self._named.in_code(code, names)

    def in_module(self, module: Any, code: types.CodeType | None = None) -> None:
        """Look into a module: at what ``code`` uses of it, else at all."""
        self._named.in_module(module, code)

    def hang(self, holder: KeyedPart, key: Any, value: Any, place: Place, levels: int) -> None:
        """Look later at what hangs from a part under a key."""
        way = HELD.get(type(value))
        if way is None or id(value) in self.seen:
            self.push(value, place, levels)
            return
        self.seen[id(value)] = value
        part, holds = way
        self.parts.append(part(place, value, holder, key))
        for held, where in holds(value, place):
            self.push(held, where, levels)

    def instance(self, thing: Any, place: Place, levels: int) -> None:
        """Look at an object of no kind that is known."""
        users = is_users_class(type(thing))
        if not users:
            levels += 1
            if levels > FOREIGN_LEVELS:
                self._too_deep.setdefault(str(place))
                return
            place = place.of_foreign_object()
        has_attributes = self.attributes(thing, place, levels)
        if users:
            self.push(type(thing), place, levels)
        elif not has_attributes and not _is_harmless(thing):
            self.opaque.append(OpaquePart(place, thing))

    def attributes(self, thing: Any, place: Place, levels: int) -> bool:
        """Look at an object's attributes, and return whether it can have any."""
        slotted = [vars(cls) for cls in type(thing).__mro__ if "__slots__" in vars(cls)]
        slots = {
            name: value
            for names in reversed(slotted)  # So that the class itself has the last word.
            for name, value in names.items()
            if isinstance(value, types.MemberDescriptorType)
        }
        found: list[KeyedPart] = []
        if slots:
            found.append(SlotsPart(place, "attribute", thing, slots))
        if _own_attributes(thing) is not None:
            found.append(NamesPart(place, "attribute", thing, lambda: _attributes_of(thing)))
        for part in found:
            self.parts.append(part)
            for name, value in part.take().items():
                self.hang(part, name, value, place.attribute(name), levels)
        return bool(found or slotted)


def _own_attributes(thing: Any) -> dict[str, Any] | None:
    """Return the dict of an object's attributes, whatever its class says about access."""
    try:
        if issubclass(type(thing), threading.local):
            attributes = thing.__dict__  # The current thread's.
        else:
            attributes = object.__getattribute__(thing, "__dict__")
    except Exception:  # Usually there are none; but a class may define even this.
        return None
    return attributes if isinstance(attributes, dict) else None


def _attributes_of(thing: Any) -> dict[str, Any]:
    attributes = _own_attributes(thing)
    return {} if attributes is None else attributes  # An empty one is set, too.


def _is_harmless(thing: Any) -> bool:
    """Return whether an object that can't be looked into can't change either."""
    return type(thing).__module__ in HARMLESS_MODULES and not isinstance(
        thing, Iterator | AsyncIterator
    )
