"""Name the place where an object hangs, as reports print it.

``module.NAME.attr[key]`` begins at a module. Anything no module holds begins at a local variable of
a function: ``Type.attr (local of func)`` if it is an instance of one of the user's classes, or else
the variable itself, ``history (local of func)``.

What is behind a private attribute of an object of somebody else's class has no name of its own: it
is part of that object, and goes by that object's name.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import attrs

from harness._words import repr_of
from harness.testing.objects._code import is_users_class


@attrs.frozen
class Place:
    """Where an object hangs, step by step from a name that code uses."""

    text: str

    local_of: str | None = None
    """The function whose local variable the path begins with; None if it begins at a module."""

    foreign: bool = False
    """Whether the object that hangs here is of a class that isn't the user's."""

    sealed: bool = False
    """Whether this is inside such an object, and goes by the object's name."""

    def __str__(self) -> str:
        return self.text if self.local_of is None else f"{self.text} (local of {self.local_of})"

    def attribute(self, name: str) -> Place:
        """Return the place of an attribute of the object that hangs here."""
        if self.sealed:
            return self
        if self.foreign and name.startswith("_"):
            return attrs.evolve(self, sealed=True)
        return Place(f"{self.text}.{name}", self.local_of)

    def item(self, key: Any) -> Place:
        """Return the place of what is under ``key`` in the container that hangs here."""
        if self.sealed:
            return self
        return Place(f"{self.text}[{repr_of(key)}]", self.local_of)

    def called(self) -> Place:
        """Return the place of what calling the object that hangs here returns."""
        return self if self.sealed else Place(f"{self.text}()", self.local_of)

    def of_foreign_object(self) -> Place:
        """Return this place, marked as holding an object of somebody else's class."""
        return self if self.sealed else attrs.evolve(self, foreign=True)


def place_of_definition(thing: Any) -> Place:
    """Return the place of a class or function: where it was defined."""
    owner, _, name = str(thing.__qualname__).rpartition(".<locals>.")
    if owner:
        return Place(name, local_of=function_name(owner))
    return Place(f"{thing.__module__}.{name}")


def function_name(qualname: str) -> str:
    """Return a function's name as people use it: without what it is nested in."""
    return qualname.rpartition("<locals>.")[2]


def local_place(name: str, value: Any, function: str) -> Place:
    """Return the place of a local variable's value; names of Python's own types say too little.

    A bound method goes by the object that it is bound to, which is what it reads and writes.
    """
    if isinstance(value, MethodType):
        value = value.__self__
    if type(value).__module__ in ("builtins", "collections") or not is_users_class(type(value)):
        return Place(name, local_of=function)
    return Place(function_name(type(value).__qualname__), local_of=function)
