"""Look at one mutable thing, compare it with how it was, and restore it in place.

A part is a list, the attributes of an object, the globals that code uses: anything that can change
and keep its identity. What it holds is looked at one level deep; what hangs deeper has parts of its
own. Things are compared by identity, so a comparison never runs the user's code, and costs
nanoseconds per element.
"""

from __future__ import annotations

import abc
from collections import OrderedDict
from collections.abc import Callable, Collection
from enum import Enum
from operator import is_
from types import CellType, MemberDescriptorType
from typing import Any, ClassVar

from harness.testing.objects._places import Place


class Whole(Enum):
    """Stands for a whole part, where a key would name one thing in it."""

    WHOLE = "whole"


WHOLE = Whole.WHOLE


class Part(abc.ABC):
    """One mutable thing that runs may share.

    What `take` returns is a copy that nobody changes; `put` makes the thing hold it again.
    """

    __slots__ = ("advice", "kind", "place", "thing")

    names_things: ClassVar[bool] = False
    """Whether what is under its keys are things in their own right, such as attributes."""

    keys_are_names: ClassVar[bool] = True
    """Whether the keys of such things are names in code, so that lines can be seen loading them."""

    per_loop: ClassVar[bool] = False
    """Whether it belongs to one ``trio.run``, and is put back before each."""

    def __init__(self, place: Place, kind: str, thing: Any, advice: str = "") -> None:
        self.place = place
        self.kind = kind
        """What it is, in words: ``"list"``, ``"class attribute"``."""
        self.thing = thing
        """The object that it is a part of: the list, the instance, the globals of the module."""
        self.advice = advice
        """What to do if runs share it; empty if that depends on what they did with it."""

    @abc.abstractmethod
    def take(self) -> Any:
        """Return what the part holds now."""

    @abc.abstractmethod
    def put(self, contents: Any, keys: Collection[Any] | None = None) -> None:
        """Make the part hold ``contents`` again; if it has keys, only under ``keys``."""

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        """Return the keys under which two takes differ, or `WHOLE`, or nothing."""
        return () if before == after else (WHOLE,)

    def fresh(self, contents: Any) -> Any:
        """Return contents like ``contents`` for a run that should have the part to itself."""
        return contents

    def place_of(self, key: Any) -> Place:
        """Return the place of what is under ``key``."""
        return self.place


class WholePart(Part):
    """A part without keys: it either has changed or hasn't.

    Elements are compared by identity, unless each take makes new ones.

    Args:
      take: Returns what the thing holds.
      put: Makes the thing hold that again.
    """

    __slots__ = ("_by_value", "_put", "_take")

    def __init__(
        self,
        place: Place,
        kind: str,
        thing: Any,
        take: Callable[[Any], Any],
        put: Callable[[Any, Any], object],
        *,
        by_value: bool = False,
        advice: str = "",
    ) -> None:
        super().__init__(place, kind, thing, advice)
        self._by_value = by_value
        self._take = take
        self._put = put

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


class NamesPart(KeyedPart):
    """Names bound in a dict: the attributes of an object, or some globals of a module."""

    __slots__ = ("_get", "names")

    names_things = True

    def __init__(
        self,
        place: Place,
        kind: str,
        thing: Any,
        get: Callable[[], dict[str, Any]],
        names: set[str] | None = None,
    ) -> None:
        super().__init__(place, kind, thing)
        self._get = get  # Asked each time: what a threading.local holds depends on the thread.
        self.names = names

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


class SlotsPart(KeyedPart):
    """The slots of an object. Even a frozen one is put back: the slot is set, not the attribute."""

    __slots__ = ("_slots",)

    names_things = True

    def __init__(
        self, place: Place, kind: str, instance: object, slots: dict[str, MemberDescriptorType]
    ) -> None:
        super().__init__(place, kind, instance)
        self._slots = slots

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
        try:
            self._slots[key].__delete__(self.thing)
        except AttributeError:
            pass


class ClassPart(KeyedPart):
    """The attributes of a class, set whatever its metaclass says about that."""

    __slots__ = ()

    names_things = True

    def __init__(self, place: Place, cls: type[Any]) -> None:
        super().__init__(place, "class attribute", cls)

    def take(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self.thing).items() if not is_dunder(name)}

    def _set(self, key: Any, value: Any) -> None:
        type.__setattr__(self.thing, key, value)

    def _delete(self, key: Any) -> None:
        try:
            type.__delattr__(self.thing, key)
        except AttributeError:
            pass


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
        try:
            del self.thing.cell_contents
        except ValueError:
            pass


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
