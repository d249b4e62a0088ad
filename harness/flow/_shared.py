"""Let all calls of one object in one ``trio.run`` share what bounds them.

A limit applies to everything under it at once. The items of a `run` have that run in common; calls
``await pipeline(item)`` have no scope in common except trio's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import trio

OwnerT = TypeVar("OwnerT")
T = TypeVar("T")


class SharedByCalls(Generic[OwnerT, T]):
    """One value per owner and ``trio.run``, made when first asked for."""

    def __init__(self, name: str, make: Callable[[OwnerT], T]) -> None:
        self._values: trio.lowlevel.RunVar[WeakKeyDictionary[OwnerT, T]] = trio.lowlevel.RunVar(
            name
        )
        self._make = make

    def get(self, owner: OwnerT) -> T:
        """Return the value for ``owner`` in this trio run; it goes when either does."""
        try:
            values = self._values.get()
        except LookupError:
            values = WeakKeyDictionary()
            self._values.set(values)
        value = values.get(owner)
        if value is None:
            value = values[owner] = self._make(owner)
        return value
