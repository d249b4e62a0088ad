"""Look at one mutable thing, compare it with how it was, and restore it in place.

A part is a list, the attributes of an object, the globals that code uses: anything that can change
and keep its identity. What it holds is looked at one level deep; what hangs deeper has parts of its
own. Things are compared by identity, so a comparison never runs the user's code, and costs
nanoseconds per element.
"""

from __future__ import annotations

import abc
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from enum import Enum
from operator import is_
from types import CellType, MemberDescriptorType
from typing import Any, ClassVar

import attrs

from harness.testing.objects._places import Place


class Whole(Enum):
    """Stands for a whole part, where a key would name one thing in it."""

    WHOLE = "whole"


WHOLE = Whole.WHOLE


@attrs.define(eq=False, repr=False)
class Part(abc.ABC):
    """One mutable thing that runs may share.

    What `take` returns is a copy that nobody changes; `put` makes the thing hold it again.
    """

    place: Place
    kind: str
    """What it is, in words: ``"list"``, ``"class attribute"``."""
    thing: Any
    """The object that it is a part of: the list, the instance, the globals of the module."""
    advice: str = attrs.field(default="", kw_only=True)
    """What to do where runs share it; empty if that depends on what they did with it."""

    names_things: ClassVar[bool] = False
    """Whether what is under its keys are things in their own right, such as attributes."""

    keys_are_names: ClassVar[bool] = True
    """Whether the keys of such things are names in code, so that lines can be seen loading them."""

    per_loop: ClassVar[bool] = False
    """Whether it belongs to one ``trio.run``, and is put back before each."""

    @abc.abstractmethod
    def take(self) -> Any:
        """Return what the part holds now."""

    @abc.abstractmethod
    def put(self, contents: Any, keys: Collection[Any] | None = None) -> None:
        """Make the part hold ``contents`` again; if it has keys, only under ``keys``."""

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        """Return the keys under which two takes differ, or `WHOLE`, or nothing."""
        return () if before == after else (WHOLE,)

    def changed_since(self, before: Any) -> tuple[Any, ...]:
        """Return what `changed` returns of an earlier take and of what the part holds now."""
        return self.changed(before, self.take())

    def fresh(self, contents: Any) -> Any:
        """Return contents like ``contents`` for a run that should have the part to itself."""
        return contents

    def place_of(self, key: Any) -> Place:
        """Return the place of what is under ``key``."""
        return self.place

    def close_up(self, contents: Any, keys: Collection[Any]) -> Iterable[tuple[Part, Any]]:
        """Return what to follow closely once ``keys`` have changed, with what it held at first."""
        return ((self, contents),)


@attrs.define(eq=False, repr=False)
class WholePart(Part):
    """A part without keys: it either has changed or hasn't.

    Elements are compared by identity, unless each take makes new ones.

    Args:
      take: Returns what the thing holds.
      put: Makes the thing hold that again.
    """

    _take: Callable[[Any], Any]
    _put: Callable[[Any, Any], object]
    _by_value: bool = attrs.field(default=False, alias="by_value", kw_only=True)

    def take(self) -> Any:
        return self._take(self.thing)

    def put(self, contents: Any, keys: Collection[Any] | None = None) -> None:
        self._put(self.thing, contents)

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        if type(before) is not tuple or self._by_value:
            return super().changed(before, after)
        return () if len(before) == len(after) and all(map(is_, before, after)) else (WHOLE,)


class KeyedPart(Part):
    """A part that holds things under keys or names; its contents are a dict."""

    __slots__ = ()

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        if (
            len(before) == len(after)
            and all(map(is_, before.values(), after.values()))
            and all(map(is_, before, after))
        ):
            return ()
        keys = [key for key in after if key not in before or before[key] is not after[key]]
        keys += [key for key in before if key not in after]
        return tuple(keys) or (WHOLE,)  # The same things in another order.

    def put(self, contents: Any, keys: Collection[Any] | None = None) -> None:
        if keys is None:
            self._replace(contents)
            return
        for key in keys:
            if key in contents:
                self._set(key, contents[key])
            else:
                self._delete(key)

    def _replace(self, contents: dict[Any, Any]) -> None:
        now = self.take()
        for key in now:
            if key not in contents:
                self._delete(key)
        for key, value in contents.items():
            if key not in now or now[key] is not value:
                self._set(key, value)

    def place_of(self, key: Any) -> Place:
        if key is WHOLE:
            return self.place
        named = self.names_things and self.keys_are_names
        return self.place.attribute(str(key)) if named else self.place.item(key)

    @abc.abstractmethod
    def _set(self, key: Any, value: Any) -> None: ...

    @abc.abstractmethod
    def _delete(self, key: Any) -> None:
        """Remove ``key``, if it is there."""


class MappingPart(KeyedPart):
    """What a dict holds, through the plain class's methods: no override may run."""

    __slots__ = ("_cls",)

    def __init__(self, place: Place, mapping: dict[Any, Any]) -> None:
        super().__init__(place, type(mapping).__name__, mapping)
        self._cls: type[dict[Any, Any]] = OrderedDict if isinstance(mapping, OrderedDict) else dict

    def take(self) -> dict[Any, Any]:
        mapping = self.thing
        return dict(mapping) if type(mapping) is dict else dict(self._cls.items(mapping))

    def _replace(self, contents: dict[Any, Any]) -> None:
        self._cls.clear(self.thing)  # So that the order is restored, too.
        for key, value in contents.items():
            self._set(key, value)

    def _set(self, key: Any, value: Any) -> None:
        self._cls.__setitem__(self.thing, key, value)

    def _delete(self, key: Any) -> None:
        self._cls.pop(self.thing, key, None)


@attrs.define(eq=False, repr=False)
class NamesPart(KeyedPart):
    """Names bound in a dict: the attributes of an object, or some globals of a module."""

    names_things = True

    _get: Callable[[], dict[str, Any]]
    """Asked each time: what a threading.local holds depends on the thread."""
    names: set[str] | None = None

    def take(self) -> dict[str, Any]:
        bound = self._get()
        if self.names is None:
            return dict(bound)
        return {name: bound[name] for name in self.names if name in bound}

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        keys = super().changed(before, after)
        return () if keys == (WHOLE,) else keys  # The order of names has no meaning.

    def _set(self, key: Any, value: Any) -> None:
        self._get()[key] = value

    def _delete(self, key: Any) -> None:
        self._get().pop(key, None)


@attrs.define(eq=False, repr=False)
class SlotsPart(KeyedPart):
    """The slots of an object. Even a frozen one is put back: the slot is set, not the attribute."""

    names_things = True

    _slots: dict[str, MemberDescriptorType]

    def take(self) -> dict[str, Any]:
        held = {}
        for name, slot in self._slots.items():
            try:
                held[name] = slot.__get__(self.thing)
            except AttributeError:
                pass  # Empty.
        return held

    def _set(self, key: Any, value: Any) -> None:
        self._slots[key].__set__(self.thing, value)

    def _delete(self, key: Any) -> None:
        with suppress(AttributeError):
            self._slots[key].__delete__(self.thing)


class ClassPart(KeyedPart):
    """The attributes of a class, set whatever its metaclass says about that."""

    __slots__ = ("names",)

    names_things = True

    def __init__(self, place: Place, cls: type[Any], names: set[str] | None = None) -> None:
        super().__init__(place, "class attribute", cls)
        self.names = names

    def take(self) -> dict[str, Any]:
        bound = vars(self.thing)
        if self.names is None:
            return {name: value for name, value in bound.items() if not is_dunder(name)}
        return {name: bound[name] for name in self.names if name in bound}

    def _set(self, key: Any, value: Any) -> None:
        type.__setattr__(self.thing, key, value)

    def _delete(self, key: Any) -> None:
        with suppress(AttributeError):
            type.__delattr__(self.thing, key)


class CellPart(KeyedPart):
    """A variable of a function that functions inside it share, and may rebind."""

    __slots__ = ("name",)

    names_things = True

    def __init__(self, place: Place, name: str, cell: CellType) -> None:
        super().__init__(place, "variable", cell)
        self.name = name

    def take(self) -> dict[str, Any]:
        try:
            return {self.name: self.thing.cell_contents}
        except ValueError:  # Not bound yet.
            return {}

    def place_of(self, key: Any) -> Place:
        return self.place

    def _set(self, key: Any, value: Any) -> None:
        self.thing.cell_contents = value

    def _delete(self, key: Any) -> None:
        with suppress(ValueError):
            del self.thing.cell_contents


class OpaquePart(Part):
    """An object that can't be looked into: all one can tell is who uses it."""

    __slots__ = ()

    def __init__(self, place: Place, thing: Any) -> None:
        cls = type(thing)
        super().__init__(place, f"{cls.__module__}.{cls.__qualname__}", thing)

    def __str__(self) -> str:
        return f"{self.place} ({self.kind})"

    def take(self) -> None:
        return None

    def put(self, contents: Any, keys: Collection[Any] | None = None) -> None:
        pass


def is_dunder(name: str) -> bool:
    """Return whether a name is Python's own, such as ``__module__``."""
    return name.startswith("__") and name.endswith("__")
