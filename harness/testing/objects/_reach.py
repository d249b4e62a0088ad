"""Find what an agent function can reach, and that other runs of it reach as well.

From the function: the globals that its code names, what it closes over, its default arguments and
the object it is bound to; from these on through the user's functions, classes, objects and modules.
An object of somebody else's class that hangs from one of the user's is looked into as well, since
a shared client is where many a leak sits; somebody else's classes and modules are not, but for what
the user's code writes there (``library.setting = ...``).

The walk goes level by level, so an object that can be reached in two ways gets the shorter path.
"""

from __future__ import annotations

import array
import contextvars
import functools
import io
import itertools
import logging
import os
import random
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from enum import Enum
from typing import Any

import trio

from harness.limits import Limiter
from harness.runs import Run, RunLocal
from harness.testing.objects._code import (
    is_users_class,
    is_users_function,
)
from harness.testing.objects._named import Named
from harness.testing.objects._parts import (
    CellPart,
    ClassPart,
    KeyedPart,
    MappingPart,
    NamesPart,
    Part,
    SlotsPart,
    is_dunder,
    items_part,
)
from harness.testing.objects._places import Place, function_name, place_of_definition
from harness.testing.objects._special import (
    CachePart,
    CountPart,
    LimiterPart,
    LruCache,
    OpaquePart,
    RunVariablePart,
    array_part,
    buffer_part,
    logger_part,
    random_part,
)

OBJECTS_AT_MOST = 20_000
"""Objects that are looked at before the walk ends; what lies beyond is reported as not seen."""

ITEMS_AT_MOST = 1_000
"""Elements of one container that are looked into. All of them are compared and put back."""

FOREIGN_LEVELS = 6
"""How deep the walk goes into an object of somebody else's class."""

_ATOMS: frozenset[type[Any]] = frozenset(
    {
        *(int, float, complex, str, bytes, bool, type(None), type(...), type(NotImplemented)),
        *(object, range, slice, types.CodeType, types.GenericAlias, types.UnionType),
        *(types.MethodDescriptorType, types.WrapperDescriptorType, types.MemberDescriptorType),
        *(types.GetSetDescriptorType, types.ClassMethodDescriptorType, types.MethodWrapperType),
    }
)

_LEFT_ALONE: tuple[type[Any], ...] = (
    *(os.PathLike, weakref.ref, types.FrameType, types.TracebackType),
    *(contextvars.Context, contextvars.Token),
    *(type(threading.Lock()), type(threading.RLock()), threading.Thread),
    *(trio.lowlevel.Task, trio.Nursery, trio.CancelScope, trio.lowlevel.TrioToken, Run),
)
"""Not looked into: what holds nothing of a run's, or would lead into the machinery."""

_HARMLESS_MODULES = (
    *("builtins", "re", "datetime", "decimal", "fractions", "uuid", "zoneinfo"),
    *("typing", "operator", "_operator", "_struct", "functools", "_thread", "_abc"),
)
"""Modules whose objects, where they can't be looked into, don't change either; iterators do."""


class Reached:
    """What a walk has found; `add` walks on from more roots."""

    def __init__(self, *, may_import: bool = False) -> None:
        """Begin a walk.

        Args:
          may_import: Whether modules of the user's that functions import themselves are imported
            for that. Not for a test: it may set something up before it imports.
        """
        self.parts: list[Part] = []
        self.opaque: list[OpaquePart] = []
        """What can't be looked into, so can't be put back."""
        self.cut_short = False
        """Whether there was more than is looked at."""
        self.seen: dict[int, Any] = {}
        """The objects themselves, kept alive so that their ids stay theirs."""
        self._pending: deque[tuple[Any, Place, int]] = deque()
        self._named = Named(self, may_import=may_import)

    def add(self, place: Place, thing: Any) -> None:
        """Walk from ``thing``, which hangs at ``place``."""
        self.push(thing, place, 0)
        self._walk()

    def add_code(self, code: types.CodeType, names: dict[str, Any]) -> None:
        """Walk from the globals that some code names; ``names`` are those of its module."""
        self._named.in_code(code, names)
        self._walk()

    def namespaces(self) -> dict[str, dict[str, Any]]:
        """Return the globals of the modules whose code was walked through, by name."""
        return self._named.namespaces()

    def push(self, thing: Any, place: Place, foreign_levels: int) -> None:
        """Look at an object later, when nothing is left that hangs less deep."""
        if type(thing) not in _ATOMS and id(thing) not in self.seen:
            self._pending.append((thing, place, foreign_levels))

    def _walk(self) -> None:
        while self._pending:
            thing, place, levels = self._pending.popleft()
            if id(thing) in self.seen:
                continue
            if len(self.seen) >= OBJECTS_AT_MOST:
                self.cut_short = True
                self._pending.clear()
                return
            self.seen[id(thing)] = thing
            try:
                self._look_at(thing, place, levels)
            except Exception:  # Its class does something odd when it is looked at.
                self.opaque.append(OpaquePart(place, thing))

    # What kind of thing it is --------------------------------------------------------------------

    def _look_at(self, thing: Any, place: Place, levels: int) -> None:
        cls = type(thing)
        if self._named.by_function(thing):
            return
        for kind, look in _LOOKS:
            if issubclass(cls, kind):
                look(self, thing, place, levels)
                return
        if issubclass(cls, _LEFT_ALONE):
            return
        self._instance(thing, place, levels)

    def _function(self, function: types.FunctionType, place: Place, levels: int) -> None:
        if not is_users_function(function):
            # A wrapper made by a library still closes over the user's function.
            self._closure(function, place, levels, bindings=False)
            return
        place = place_of_definition(function)
        self._named.in_code(function.__code__, function.__globals__)
        self._closure(function, place, levels, bindings=True)
        for index, default in enumerate(function.__defaults__ or ()):
            self.push(default, place.attribute("__defaults__").item(index), levels)
        for name, default in (function.__kwdefaults__ or {}).items():
            self.push(default, place.attribute("__kwdefaults__").item(name), levels)
        attributes = vars(function)
        self.parts.append(NamesPart(place, "function attribute", function, lambda: attributes))
        for name, value in list(attributes.items()):
            self.push(value, place if name == "__wrapped__" else place.attribute(name), levels)

    def _closure(
        self, function: types.FunctionType, place: Place, levels: int, *, bindings: bool
    ) -> None:
        # The code's own name: functools.wraps gives a function that of the one it wraps.
        owner = function_name(function.__code__.co_qualname.rpartition(".<locals>")[0])
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                value = cell.cell_contents
            except ValueError:
                value = None
            here = Place(name, local_of=owner)
            if bindings and name != "__class__" and id(cell) not in self.seen:
                self.seen[id(cell)] = cell
                if not isinstance(value, types.FunctionType | type | types.ModuleType):
                    self.parts.append(CellPart(here, name, cell))
            if isinstance(value, types.ModuleType):
                self._named.in_module(value, function.__code__)
            else:
                self.push(value, local_place(name, value, owner), levels)

    def _module(self, module: types.ModuleType, place: Place, levels: int) -> None:
        self._named.in_module(module)

    def _method(self, method: types.MethodType, place: Place, levels: int) -> None:
        self.push(method.__self__, place, levels)
        self.push(method.__func__, place, levels)

    def _builtin(self, function: types.BuiltinFunctionType, place: Place, levels: int) -> None:
        owner = function.__self__
        if isinstance(owner, random.Random) and owner is getattr(random, "_inst", None):
            self._named.in_process("random", "seed")
        elif not isinstance(owner, types.ModuleType):
            self.push(owner, place, levels)

    def _descriptor(self, descriptor: Any, place: Place, levels: int) -> None:
        for name in ("__func__", "fget", "fset", "fdel", "func"):
            self.push(getattr(descriptor, name, None), place, levels)

    def _partial(self, partial: functools.partial[Any], place: Place, levels: int) -> None:
        self.push(partial.func, place, levels)
        for index, argument in enumerate(partial.args):
            self.push(argument, place.attribute("args").item(index), levels)
        for name, argument in partial.keywords.items():
            self.push(argument, place.attribute("keywords").item(name), levels)

    def _class(self, cls: type[Any], place: Place, levels: int) -> None:
        if not is_users_class(cls):
            return
        place = place_of_definition(cls)
        if issubclass(cls, Enum):
            for name, member in cls.__members__.items():
                self.push(member, place.attribute(name), levels)
        part = ClassPart(place, cls)
        self.parts.append(part)
        for name, value in list(vars(cls).items()):
            if not is_dunder(name):
                self.held(part, name, value, place.attribute(name))
            if not is_dunder(name) or isinstance(value, types.FunctionType):
                self.push(value, place.attribute(name), levels)
        for base in cls.__bases__:
            self.push(base, place, levels)
        self.push(type(cls), place, levels)

    def _mapping(self, mapping: dict[Any, Any], place: Place, levels: int) -> None:
        part = MappingPart(place, mapping)
        self.parts.append(part)
        for key, value in itertools.islice(part.take().items(), ITEMS_AT_MOST):
            self.held(part, key, value, place.item(key))
            self.push(key, place, levels)
            self.push(value, place.item(key), levels)
        if type(mapping) is not dict:
            self._attributes(mapping, place, levels)

    def _items(self, items: Any, place: Place, levels: int) -> None:
        part = items_part(place, items)
        self.parts.append(part)
        if isinstance(items, list | deque):
            for index, value in enumerate(itertools.islice(part.take(), ITEMS_AT_MOST)):
                self.push(value, place.item(index), levels)
        elif isinstance(items, set):
            for value in itertools.islice(part.take(), ITEMS_AT_MOST):
                self.push(value, place, levels)
        if type(items) not in (list, deque, set, bytearray, array.array):
            self._attributes(items, place, levels)

    def _fixed_items(self, items: Iterable[Any], place: Place, levels: int) -> None:
        names = getattr(type(items), "_fields", ())  # Of a named tuple.
        for index, value in enumerate(itertools.islice(items, ITEMS_AT_MOST)):
            named = place.attribute(names[index]) if index < len(names) else place.item(index)
            self.push(value, named, levels)
        if type(items) is not tuple:
            self._attributes(items, place, levels)

    def _proxy(self, proxy: types.MappingProxyType[Any, Any], place: Place, levels: int) -> None:
        for key, value in itertools.islice(proxy.items(), ITEMS_AT_MOST):
            self.push(value, place.item(key), levels)

    def _variable(self, variable: contextvars.ContextVar[Any], place: Place, levels: int) -> None:
        """Look at the value that every run inherits: the caller's, and the default."""
        for context in (contextvars.copy_context(), contextvars.Context()):
            try:
                value = context.run(variable.get)
            except LookupError:
                continue
            self.push(value, place.attribute("get").called(), levels)

    def _enum_member(self, member: Enum, place: Place, levels: int) -> None:
        if is_users_class(type(member)):
            self.push(member.value, place.attribute("value"), levels)
            self._attributes(member, place, levels)
            self.push(type(member), place, levels)

    def _run_variable(self, variable: trio.lowlevel.RunVar[Any], place: Place, levels: int) -> None:
        self.parts.append(RunVariablePart(place, variable))

    def _memoryview(self, view: memoryview, place: Place, levels: int) -> None:
        self.push(view.obj, place.attribute("obj"), levels)

    def _run_local(self, local: RunLocal[Any], place: Place, levels: int) -> None:
        """Look at the functions that make the values: the values are each run's own."""
        for function in (local._factory, local._fork):
            self.push(function, place, levels)

    def _cache(self, cache: LruCache[Any], place: Place, levels: int) -> None:
        self.push(cache.__wrapped__, place, levels)

    def _buffer(self, buffer: Any, place: Place, levels: int) -> None:
        self.parts.append(buffer_part(place, buffer))

    def _random(self, generator: random.Random, place: Place, levels: int) -> None:
        if type(generator) is random.SystemRandom:
            return
        if generator is getattr(random, "_inst", None):
            self._named.in_process("random", "seed")
        else:
            self.parts.append(random_part(place, generator))

    def _logger(self, logger: logging.Logger, place: Place, levels: int) -> None:
        """Look at where it writes to: a handler that a run adds gets the lines of all."""
        self.parts.append(logger_part(place, logger))
        for name, held in (("handlers", logger.handlers), ("filters", logger.filters)):
            self.push(held, place.attribute(name), levels)

    def _handler(self, handler: logging.Handler, place: Place, levels: int) -> None:
        if is_users_class(type(handler)):
            self._instance(handler, place, levels)

    def _limiter(self, limiter: Limiter, place: Place, levels: int) -> None:
        self.parts.append(LimiterPart(place, limiter))

    def _environment(self, environment: object, place: Place, levels: int) -> None:
        self._named.in_process("os", "environ")

    def held(self, holder: KeyedPart, key: Any, value: Any, place: Place) -> None:
        """Look at what can be put back only by way of what holds it."""
        if isinstance(value, LruCache) and id(value) not in self.seen:
            self.parts.append(CachePart(place, value, holder, key))
        elif type(value) is itertools.count and id(value) not in self.seen:
            self.seen[id(value)] = value
            self.parts.append(CountPart(place, holder, key))

    # Objects with attributes ---------------------------------------------------------------------

    def _instance(self, thing: Any, place: Place, levels: int) -> None:
        if _is_array(thing):
            self.parts.append(array_part(place, thing))
            return
        users = is_users_class(type(thing))
        if not users:
            levels += 1
            if levels > FOREIGN_LEVELS:
                return
            place = place.of_foreign_object()
        has_attributes = self._attributes(thing, place, levels)
        if users:
            self.push(type(thing), place, levels)
        elif not has_attributes and not _is_harmless(thing):
            self.opaque.append(OpaquePart(place, thing))

    def _attributes(self, thing: Any, place: Place, levels: int) -> bool:
        """Look at an object's attributes, and return whether it can have any."""
        cls = type(thing)
        slots: dict[str, types.MemberDescriptorType] = {}
        for base in cls.__mro__:
            if "__slots__" in vars(base):
                for name, value in vars(base).items():
                    if isinstance(value, types.MemberDescriptorType):
                        slots.setdefault(name, value)
        found: list[KeyedPart] = []
        if slots:
            found.append(SlotsPart(place, "attribute", thing, slots))
        if _own_attributes(thing) is not None:
            found.append(NamesPart(place, "attribute", thing, lambda: _own_attributes(thing) or {}))
        for part in found:
            self.parts.append(part)
            for name, value in part.take().items():
                here = place.attribute(name)
                self.held(part, name, value, here)
                self.push(value, here, levels)
        return bool(found) or any("__slots__" in vars(base) for base in cls.__mro__)


def _own_attributes(thing: Any) -> dict[str, Any] | None:
    """Return the dict of an object's attributes, past whatever its class says about access."""
    try:
        if issubclass(type(thing), threading.local):
            attributes = thing.__dict__  # The current thread's.
        else:
            attributes = object.__getattribute__(thing, "__dict__")
    except Exception:  # Usually that there are none; but a class may define even this.
        return None
    return attributes if isinstance(attributes, dict) else None


def _is_array(thing: Any) -> bool:
    """Return whether this is an array of numpy with plain numbers in it."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(thing) is numpy.ndarray and not thing.dtype.hasobject


def _is_harmless(thing: Any) -> bool:
    """Return whether an object that can't be looked into can't change, either."""
    return type(thing).__module__ in _HARMLESS_MODULES and not isinstance(
        thing, Iterator | AsyncIterator
    )


def local_place(name: str, value: Any, function: str) -> Place:
    """Return the place of a value that a local variable holds."""
    if is_plain(value) or not is_users_class(type(value)):
        return Place(name, local_of=function)
    return Place(function_name(type(value).__qualname__), local_of=function)


def is_plain(value: Any) -> bool:
    """Return whether a value is one of Python's own containers, which say nothing by their type."""
    return type(value).__module__ in ("builtins", "collections")


_LOOKS: list[tuple[Any, Callable[[Reached, Any, Place, int], None]]] = [
    (types.FunctionType, Reached._function),
    (types.ModuleType, Reached._module),
    (types.MethodType, Reached._method),
    (types.BuiltinFunctionType, Reached._builtin),
    ((staticmethod, classmethod, property, functools.cached_property), Reached._descriptor),
    ((functools.partial, functools.partialmethod), Reached._partial),
    (LruCache, Reached._cache),
    (type, Reached._class),
    (dict, Reached._mapping),
    ((list, deque, set, bytearray, array.array), Reached._items),
    ((tuple, frozenset), Reached._fixed_items),
    (types.MappingProxyType, Reached._proxy),
    (contextvars.ContextVar, Reached._variable),
    (trio.lowlevel.RunVar, Reached._run_variable),
    (RunLocal, Reached._run_local),
    (Enum, Reached._enum_member),
    (memoryview, Reached._memoryview),
    (random.Random, Reached._random),
    (Limiter, Reached._limiter),
    ((io.StringIO, io.BytesIO), Reached._buffer),
    (logging.Logger, Reached._logger),
    (logging.Handler, Reached._handler),
    (type(os.environ), Reached._environment),
]
"""How things are looked at, by type; the first that fits."""
