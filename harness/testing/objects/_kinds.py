"""List all that is known about kinds of objects: to add one, add an entry here.

For objects of some types, `KINDS` says what can change in them and how it is put back, what hangs
from them and at which path, and what to do when runs share one. `STATES` says the same for the
states of the whole process, and through which names and functions code gets at them.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import contextvars
import functools
import gc
import io
import itertools
import locale
import logging
import os
import random
import re
import signal
import socket
import sys
import threading
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from operator import is_
from typing import Any, ClassVar, Protocol

import attrs
import trio

from harness.limits import Limiter
from harness.runs import Run, RunLocal
from harness.testing.objects._code import is_users_class, is_users_function
from harness.testing.objects._parts import (
    WHOLE,
    CellPart,
    ClassPart,
    KeyedPart,
    MappingPart,
    NamesPart,
    Part,
    WholePart,
    is_dunder,
)
from harness.testing.objects._places import Place, function_name, local_place, place_of_definition
from harness.testing.schedules._thread_locks import LOCK_TYPES, ControlledLock, ControlledRLock

ATOMS: frozenset[type[Any]] = frozenset(
    {
        *(int, float, complex, str, bytes, bool, type(None), type(...), type(NotImplemented)),
        *(object, range, slice, types.CodeType, types.GenericAlias, types.UnionType),
        *(types.MethodDescriptorType, types.WrapperDescriptorType, types.MemberDescriptorType),
        *(types.GetSetDescriptorType, types.ClassMethodDescriptorType, types.MethodWrapperType),
    }
)
"""Types of objects that neither change nor lead anywhere."""

HARMLESS_MODULES = (
    *("builtins", "re", "datetime", "decimal", "fractions", "uuid", "zoneinfo"),
    *("typing", "operator", "_operator", "_struct", "functools", "_thread", "_abc"),
)
"""Modules whose objects don't change if they can't be looked into; iterators do."""

LruCache = functools._lru_cache_wrapper

_ONE_PER_PROCESS = "pass it as an argument; there is only one of it in the whole process"


class Walker(Protocol):
    """What kinds of objects know of the walk through objects."""

    parts: list[Part]
    seen: dict[int, Any]
    run_locals: list[tuple[Place, RunLocal[Any]]]

    def push(self, thing: Any, place: Place, levels: int, /) -> None:
        """Look at an object later."""

    def hang(self, holder: KeyedPart, key: Any, value: Any, place: Place, levels: int, /) -> None:
        """Look later at what hangs from a part under a key."""

    def spread(self, elements: Iterator[None], place: Place, /) -> None:
        """Look at the first elements of a container now, and at the rest later."""

    def instance(self, thing: Any, place: Place, levels: int, /) -> None:
        """Look at an object of no known kind."""

    def attributes(self, thing: Any, place: Place, levels: int, /) -> bool:
        """Look at an object's attributes, and return whether it can have any."""
        ...

    def in_code(self, code: types.CodeType, names: dict[str, Any], /) -> None:
        """Look at what some code names; ``names`` are the globals of its module."""

    def in_module(self, module: Any, code: types.CodeType | None = None, /) -> None:
        """Look into a module: at what ``code`` uses of it, or at everything."""


Held = Iterable[tuple[Any, Place]]
"""Objects, and where they hang."""


@attrs.frozen(eq=False)  # Old attrs know no exception from kw_only.
class Kind:
    """What is known about objects of some types."""

    types: tuple[type[Any], ...] = ()

    name: str = attrs.field(default="", kw_only=True)
    """The full name of one more type, which needn't have been imported."""

    part: Callable[[Place, Any], Part] | None = attrs.field(default=None, kw_only=True)
    """Returns what can change in one and be put back; None if nothing can."""

    held_part: Callable[[Place, Any, KeyedPart, Any], Part] | None = attrs.field(
        default=None, kw_only=True
    )
    """The same, if one is put back through the part that holds it, under a key."""

    holds: Callable[[Any, Place], Held] = attrs.field(default=lambda thing, place: (), kw_only=True)
    """Returns what hangs from one."""

    attributes: bool = attrs.field(default=False, kw_only=True)
    """Whether objects of derived classes have attributes to look at."""

    look: Callable[[Walker, Any, Place, int], None] | None = attrs.field(default=None, kw_only=True)
    """Looks at one, if it takes more than all this."""


@attrs.frozen(kw_only=True, eq=False)
class ProcessState:
    """A state of the whole process, and how code gets at it."""

    module: types.ModuleType

    names: tuple[str, ...] = ()
    """The names in its module through which code gets at it; all of them if none are given."""

    things: tuple[Any, ...] = ()
    """Other objects through which code gets at it."""

    part: Callable[[], Part] | None = None
    """Returns what watches it and puts it back; None if it is a global like any other."""


# How they are put back ---------------------------------------------------------------------------


def _whole(
    take: Callable[[Any], Any],
    put: Callable[[Any, Any], object],
    kind: str = "",
    *,
    by_value: bool = False,
    advice: str = "",
) -> Callable[[Place, Any], Part]:
    """Return what makes parts without keys; ``kind`` is the type's name unless given."""

    def part(place: Place, thing: Any) -> Part:
        words = kind or type(thing).__name__
        return WholePart(place, words, thing, take, put, by_value=by_value, advice=advice)

    return part


def _refill(clear: Callable[..., object], fill: Callable[..., object]) -> Callable[..., object]:
    """Return what empties a container and refills it, using these methods of the plain class."""

    def put(items: Any, contents: Any) -> None:
        clear(items)
        fill(items, contents)

    return put


def _rewrite(buffer: Any, contents: tuple[Any, int]) -> None:
    text, position = contents
    buffer.seek(0)
    buffer.truncate()
    buffer.write(text)
    buffer.seek(position)


def _put_logger(logger: logging.Logger, contents: tuple[int, bool, bool]) -> None:
    level, logger.disabled, logger.propagate = contents
    logger.setLevel(level)


def _put_numbers(numbers: Any, data: bytes) -> None:
    numbers[...] = type(numbers)(numbers.shape, numbers.dtype, bytearray(data))


_numbers_part = _whole(lambda numbers: numbers.tobytes(), _put_numbers, "numpy array")


class GeneratorPart(WholePart):
    """A generator of random numbers, or the module `random` for the one that is everybody's."""

    __slots__ = ()

    def __init__(self, place: Place, generator: Any) -> None:
        super().__init__(
            *(place, "random generator", generator),
            *(
                lambda generator: generator.getstate(),
                lambda generator, held: generator.setstate(held),
            ),
            by_value=True,
            advice="give each run a generator of its own: random.Random(seed)",
        )

    def seeded(self, *seeds: object) -> Any:
        """Return what it holds when it is seeded with these; None for a kind of its own."""
        state = random.Random(repr((str(self.place), *seeds))).getstate()
        held = self.take()
        return state if type(held) is tuple and held[:1] == state[:1] else None


class LimiterPart(WholePart):
    """A limiter, which belongs to one ``trio.run``: it starts over in each.

    What it counts is shared on purpose, so it is never reported.
    """

    __slots__ = ()

    per_loop = True

    def __init__(self, place: Place, limiter: Limiter) -> None:
        super().__init__(
            *(place, "limiter", limiter, lambda _: None, lambda limiter, _: limiter.reset())
        )


class _HungPart(Part):
    """What is put back by way of the part that holds it, under a key."""

    __slots__ = ("_holder", "_key")

    kind_words: ClassVar[str]
    advice_words: ClassVar[str] = ""

    def __init__(self, place: Place, thing: Any, holder: KeyedPart, key: Any) -> None:
        super().__init__(place, self.kind_words, thing, advice=self.advice_words)
        self._holder = holder
        self._key = key


class CachePart(_HungPart):
    """An `functools.lru_cache`: how much is in it. It is put back by emptying it.

    For a run that should have it to itself, another cache is put in its place for a while.
    """

    __slots__ = ()

    kind_words = "functools cache"
    advice_words = (
        "don't cache what runs change, or return a copy; and give the cached function everything "
        "that its result depends on as an argument"
    )

    def take(self) -> tuple[LruCache[Any], int]:
        cache: LruCache[Any] = self._holder.take().get(self._key, self.thing)
        return cache, cache.cache_info().misses

    def put(self, contents: Any, keys: Collection[Any] | None = None) -> None:
        cache, misses = contents
        if self._holder.take().get(self._key) is not cache:
            self._holder.put({self._key: cache}, [self._key])
        if cache.cache_info().misses != misses:
            cache.cache_clear()

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        return () if before[0] is after[0] and before[1] == after[1] else (WHOLE,)

    def fresh(self, contents: Any) -> Any:
        settings = self.thing.cache_parameters()
        cache = functools.lru_cache(settings["maxsize"], settings["typed"])(self.thing.__wrapped__)
        return cache, 0


class CountPart(_HungPart):
    """An `itertools.count`, which can't be set: another one hangs in its place when put back."""

    __slots__ = ()

    kind_words = "itertools.count"

    def take(self) -> str:
        return repr(self._holder.take().get(self._key))

    def put(self, contents: Any, keys: Collection[Any] | None = None) -> None:
        if self.take() == contents:
            return
        numbers = re.fullmatch(r"count\((.+?)(?:, (.+))?\)", contents)
        if numbers is None:
            return
        start, step = (float(text) if text else 1 for text in numbers.groups())
        start, step = (int(number) if number == int(number) else number for number in (start, step))
        self._holder.put({self._key: itertools.count(start, step)}, [self._key])


class RunVariablePart(Part):
    """A variable that has a value of its own in each ``trio.run``, and none outside one."""

    __slots__ = ("_unset",)

    def __init__(self, place: Place, variable: trio.lowlevel.RunVar[Any]) -> None:
        super().__init__(place, "variable of a trio.run", variable)
        self._unset: trio.lowlevel.RunVarToken[Any] | None = None

    def take(self) -> tuple[Any, ...]:
        try:
            return (self.thing.get(),)
        except LookupError:
            if self._unset is None:
                # Only such a token can remove a value again.
                self._unset = unset = self.thing.set(None)
                self._reset(unset)
            return ()
        except RuntimeError:
            return ()

    def put(self, contents: Any, keys: Collection[Any] | None = None) -> None:
        with contextlib.suppress(RuntimeError):  # The loop has ended, and its values with it.
            if contents:
                self.thing.set(contents[0])
            elif self.take() and self._unset is not None:
                self._reset(self._unset)

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        same = len(before) == len(after) and all(map(is_, before, after))
        return () if same else (WHOLE,)

    def _reset(self, unset: trio.lowlevel.RunVarToken[Any]) -> None:
        self.thing.reset(unset)
        unset.redeemed = False  # It is needed more than once.


class EnvironmentPart(KeyedPart):
    """The environment variables of the process."""

    __slots__ = ()

    names_things = True
    keys_are_names = False

    def __init__(self) -> None:
        place = Place("os.environ")
        super().__init__(place, "environment", os.environ, advice=_ONE_PER_PROCESS)

    def take(self) -> dict[str, Any]:
        return os.environ.copy()

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        # By value: each look decodes the variables again.
        if before == after:
            return ()
        keys = before.keys() | after.keys()
        return tuple(sorted(key for key in keys if before.get(key) != after.get(key)))

    def _set(self, key: Any, value: Any) -> None:
        os.environ[key] = value

    def _delete(self, key: Any) -> None:
        os.environ.pop(key, None)


class WarningFiltersPart(Part):
    """Which warnings are shown: a list, which ``warnings.catch_warnings`` rebinds."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(Place("warnings.filters"), "filters of warnings", warnings)

    def take(self) -> tuple[Any, list[Any]]:
        return warnings.filters, list(warnings.filters)

    def put(self, contents: Any, keys: Collection[Any] | None = None) -> None:
        held, filters = contents
        held[:] = filters
        with warnings.catch_warnings():  # Makes Python forget which warnings it has let pass.
            pass
        warnings.filters = held

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        return () if before[1] == after[1] else (WHOLE,)

    def fresh(self, contents: Any) -> Any:
        return list(contents[1]), contents[1]


class SysModulesPart(KeyedPart):
    """What stands in for modules. What was really imported isn't a run's, and stays."""

    __slots__ = ()

    names_things = True
    keys_are_names = False

    def __init__(self) -> None:
        super().__init__(Place("sys.modules"), "module", sys, advice=_ONE_PER_PROCESS)

    def take(self) -> dict[str, Any]:
        return sys.modules.copy()

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        keys = super().changed(before, after)
        return tuple(
            key
            for key in keys
            if key in before or getattr(after.get(key), "__spec__", None) is None
        )

    def _replace(self, contents: dict[Any, Any]) -> None:
        self.put(contents, self.changed(contents, self.take()))

    def _set(self, key: Any, value: Any) -> None:
        sys.modules[key] = value

    def _delete(self, key: Any) -> None:
        sys.modules.pop(key, None)


class SignalsPart(KeyedPart):
    """The handlers of signals, which only the main thread can set."""

    __slots__ = ()

    names_things = True

    def __init__(self) -> None:
        super().__init__(Place("signal"), "signal handler", signal, advice=_ONE_PER_PROCESS)

    def take(self) -> dict[Any, Any]:
        return {number: signal.getsignal(number) for number in _SIGNALS}

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        return tuple(key for key in before if before[key] != after[key])

    def place_of(self, key: Any) -> Place:
        return Place(f"signal.getsignal({signal.Signals(key).name})")

    def _replace(self, contents: dict[Any, Any]) -> None:
        self.put(contents, self.changed(contents, self.take()))

    def _set(self, key: Any, value: Any) -> None:
        signal.signal(key, value)

    def _delete(self, key: Any) -> None:
        """Do nothing: there is always some handler."""


_SIGNALS = tuple(
    number
    for number in signal.valid_signals()
    if isinstance(number, signal.Signals) and signal.getsignal(number) is not None
)


class ThreadLocalsPart(Part):
    """What a `threading.local` holds in threads that began after the check did."""

    __slots__ = ("_before",)

    def __init__(self, place: Place, local: threading.local) -> None:
        super().__init__(
            *(place, "thread-local in worker threads", local),
            advice=(
                "pass it as an argument, or keep it in a harness.RunLocal: a thread works for one "
                "run after the other"
            ),
        )
        self._before = {id(held): held for held in self._of_threads()}

    def _of_threads(self) -> list[dict[str, Any]]:
        """Return the attributes in each thread; only the garbage collector can tell."""
        return [
            held
            for table in gc.get_referents(self.thing)
            if type(table) is dict
            for key, held in tuple(table.items())
            if type(key) is not str and type(held) is dict
        ]

    def take(self) -> tuple[tuple[dict[str, Any], dict[str, Any]], ...]:
        own = vars(self.thing)
        return tuple(
            (held, dict(held))
            for held in self._of_threads()
            if held and held is not own and id(held) not in self._before
        )

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        same = len(before) == len(after) and all(
            one is other and was.keys() == now.keys() and all(map(is_, was.values(), now.values()))
            for (one, was), (other, now) in zip(before, after, strict=True)
        )
        return () if same else (WHOLE,)

    def put(self, contents: Any, keys: Collection[Any] | None = None) -> None:
        for held, _ in self.take():
            held.clear()
        for held, attributes in contents:
            held.update(attributes)


# What hangs from them ----------------------------------------------------------------------------


def _function(walk: Walker, function: types.FunctionType, place: Place, levels: int) -> None:
    if not is_users_function(function):
        # A wrapper made by a library still closes over the user's function, and may keep notes.
        _closure(walk, function, levels, bindings=False)
        _function_attributes(walk, function, place, levels)
        return
    place = place_of_definition(function)
    walk.in_code(function.__code__, function.__globals__)
    _closure(walk, function, levels, bindings=True)
    for index, default in enumerate(function.__defaults__ or ()):
        walk.push(default, place.attribute("__defaults__").item(index), levels)
    for name, default in (function.__kwdefaults__ or {}).items():
        walk.push(default, place.attribute("__kwdefaults__").item(name), levels)
    _function_attributes(walk, function, place, levels)


def _function_attributes(
    walk: Walker, function: types.FunctionType, place: Place, levels: int
) -> None:
    attributes = vars(function)
    if attributes or is_users_function(function):
        walk.parts.append(NamesPart(place, "function attribute", function, lambda: attributes))
    for name, value in list(attributes.items()):
        walk.push(value, place if name == "__wrapped__" else place.attribute(name), levels)


def _closure(walk: Walker, function: types.FunctionType, levels: int, *, bindings: bool) -> None:
    code = function.__code__
    # The code's own name: functools.wraps gives a function the name of the one it wraps.
    owner = function_name(code.co_qualname.rpartition(".<locals>")[0])
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            value = None
        if bindings and name != "__class__" and id(cell) not in walk.seen:
            walk.seen[id(cell)] = cell
            if not isinstance(value, types.FunctionType | type | types.ModuleType):
                walk.parts.append(CellPart(Place(name, local_of=owner), name, cell))
        if isinstance(value, types.ModuleType):
            walk.in_module(value, code)
        else:
            walk.push(value, local_place(name, value, owner), levels)


def _class(walk: Walker, cls: type[Any], place: Place, levels: int) -> None:
    if not is_users_class(cls) and not _is_made_by_a_call(cls):
        return
    place = place_of_definition(cls) if is_users_class(cls) else place
    if issubclass(cls, Enum):
        for name, member in cls.__members__.items():
            walk.push(member, place.attribute(name), levels)
    part = ClassPart(place, cls)
    walk.parts.append(part)
    for name, value in list(vars(cls).items()):
        if not is_dunder(name):
            walk.hang(part, name, value, place.attribute(name), levels)
        elif isinstance(value, types.FunctionType):
            walk.push(value, place.attribute(name), levels)
    for base in (*cls.__bases__, type(cls)):
        walk.push(base, place, levels)


def _is_made_by_a_call(cls: type[Any]) -> bool:
    """Return whether a library made a class for whoever asked, so that no module has it by name."""
    module = sys.modules.get(cls.__module__)
    return module is not None and not hasattr(module, cls.__qualname__.partition(".")[0])


def _mapping(walk: Walker, mapping: dict[Any, Any], place: Place, levels: int) -> None:
    part = MappingPart(place, mapping)
    walk.parts.append(part)

    def entries() -> Iterator[None]:
        for key, value in part.take().items():
            walk.push(key, place, levels)
            if type(value) not in ATOMS:
                walk.hang(part, key, value, place.item(key), levels)
                yield

    walk.spread(entries(), place)
    if type(mapping) is not dict:
        walk.attributes(mapping, place, levels)


def _thread_local(walk: Walker, local: threading.local, place: Place, levels: int) -> None:
    walk.instance(local, place, levels)
    walk.parts.append(ThreadLocalsPart(place, local))


def _enum_member(walk: Walker, member: Enum, place: Place, levels: int) -> None:
    if is_users_class(type(member)):
        walk.push(member.value, place.attribute("value"), levels)
        walk.attributes(member, place, levels)
        walk.push(type(member), place, levels)


def _handler(walk: Walker, handler: logging.Handler, place: Place, levels: int) -> None:
    if is_users_class(type(handler)):
        walk.instance(handler, place, levels)


def _numbers(walk: Walker, numbers: Any, place: Place, levels: int) -> None:
    """Look at a numpy array, which is compared and kept by its bytes."""
    if numbers.dtype.hasobject:
        walk.instance(numbers, place, levels)
    else:
        walk.parts.append(_numbers_part(place, numbers))


def _numbered(items: Iterable[Any], place: Place) -> Held:
    for index, value in enumerate(tuple(items)):
        if type(value) not in ATOMS:
            yield value, place.item(index)


def _fixed(items: Iterable[Any], place: Place) -> Held:
    names = getattr(type(items), "_fields", ())  # For a named tuple.
    for index, value in enumerate(items):
        if type(value) not in ATOMS:
            yield value, place.attribute(names[index]) if index < len(names) else place.item(index)


def _arguments(partial: functools.partial[Any], place: Place) -> Held:
    yield partial.func, place
    for index, argument in enumerate(partial.args):
        yield argument, place.attribute("args").item(index)
    for name, argument in partial.keywords.items():
        yield argument, place.attribute("keywords").item(name)


def _inherited(variable: contextvars.ContextVar[Any], place: Place) -> Held:
    """Yield the values that every run inherits: the caller's, and the default."""
    for context in (contextvars.copy_context(), contextvars.Context()):
        with contextlib.suppress(LookupError):
            yield context.run(variable.get), place.attribute("get").called()


def _at(*names: str, named: bool = False) -> Callable[[Any, Place], Held]:
    """Return what finds these attributes; unnamed ones get the place of their owner."""

    def holds(thing: Any, place: Place) -> Held:
        for name in names:
            yield getattr(thing, name, None), place.attribute(name) if named else place

    return holds


# The registry ------------------------------------------------------------------------------------


def _run_local(walk: Walker, local: Any, place: Place, levels: int) -> None:
    """Note it: the values are each run's own, so the walk doesn't meet them."""
    walk.run_locals.append((place, local))
    for held, where in _at("_factory", "_fork")(local, place):
        walk.push(held, where, levels)


def _umask() -> int:
    """Return the umask. It can be read only by setting it: for an instant it is a strict one."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _setting(
    module: types.ModuleType,
    words: str,
    names: tuple[str, ...],
    get: Callable[[], Any],
    put: Callable[[Any], object],
) -> ProcessState:
    """Return a state of the process that two functions get and set."""

    def part() -> Part:
        return WholePart(
            *(Place(words), "setting of the process", module),
            *(lambda _: get(), lambda _, value: put(value)),
            by_value=True,
            advice=_ONE_PER_PROCESS,
        )

    return ProcessState(module=module, names=names, part=part)


KINDS = (
    Kind((types.FunctionType,), look=_function),
    Kind((types.ModuleType,), look=lambda walk, module, *_: walk.in_module(module)),
    Kind((types.MethodType,), holds=_at("__self__", "__func__")),
    Kind(
        (types.BuiltinFunctionType,),
        holds=lambda function, place: (
            () if isinstance(function.__self__, types.ModuleType) else ((function.__self__, place),)
        ),
    ),
    Kind(
        (staticmethod, classmethod, property, functools.cached_property),
        holds=_at("__func__", "fget", "fset", "fdel", "func"),
    ),
    Kind((functools.partial, functools.partialmethod), holds=_arguments),
    Kind((LruCache,), held_part=CachePart, holds=_at("__wrapped__")),
    Kind((type,), look=_class),
    Kind((dict,), look=_mapping),
    Kind(
        (list,),
        part=_whole(
            lambda items: tuple(list.__iter__(items)),
            lambda items, held: list.__setitem__(items, slice(None), held),
        ),
        holds=lambda items, place: _numbered(list.__iter__(items), place),
        attributes=True,
    ),
    Kind(
        (deque,),
        part=_whole(lambda items: tuple(deque.__iter__(items)), _refill(deque.clear, deque.extend)),
        holds=lambda items, place: _numbered(deque.__iter__(items), place),
        attributes=True,
    ),
    Kind(
        (set,),
        part=_whole(lambda items: frozenset(set.__iter__(items)), _refill(set.clear, set.update)),
        holds=lambda items, place: (
            (value, place) for value in frozenset(set.__iter__(items)) if type(value) not in ATOMS
        ),
        attributes=True,
    ),
    Kind(
        (bytearray,),
        part=_whole(bytes, lambda items, held: bytearray.__setitem__(items, slice(None), held)),
        attributes=True,
    ),
    Kind(
        (array.array,),
        part=_whole(
            lambda items: items[:], lambda items, held: items.__setitem__(slice(None), held)
        ),
        attributes=True,
    ),
    Kind((tuple, frozenset), holds=_fixed, attributes=True),
    Kind(
        (types.MappingProxyType,),
        holds=lambda proxy, place: (
            (value, place.item(key))
            for key, value in tuple(proxy.items())
            if type(value) not in ATOMS
        ),
    ),
    Kind((contextvars.ContextVar,), holds=_inherited),
    Kind((trio.lowlevel.RunVar,), part=RunVariablePart),
    Kind((RunLocal,), look=_run_local),
    Kind((Enum,), look=_enum_member),
    Kind((threading.local,), look=_thread_local),
    Kind((memoryview,), holds=_at("obj", named=True)),
    Kind((random.SystemRandom,)),
    Kind((random.Random,), part=GeneratorPart),
    Kind((itertools.count,), held_part=CountPart, look=lambda walk, *at: walk.instance(*at)),
    Kind((Limiter,), part=LimiterPart),
    Kind(
        (io.StringIO, io.BytesIO),
        part=_whole(lambda held: (held.getvalue(), held.tell()), _rewrite, by_value=True),
    ),
    Kind(
        (logging.Logger,),
        part=_whole(
            lambda logger: (logger.level, logger.disabled, logger.propagate),
            _put_logger,
            "logger",
            by_value=True,
        ),
        # Where it writes to: a handler added by one run gets the lines of all.
        holds=_at("handlers", "filters", named=True),
    ),
    Kind((logging.Handler,), look=_handler),
    Kind(name="numpy.ndarray", look=_numbers),
    # Not looked into: what holds nothing of a run's, or would lead into the machinery.
    Kind((os.PathLike, weakref.ref, types.FrameType, types.TracebackType)),
    Kind((contextvars.Context, contextvars.Token)),
    Kind((*LOCK_TYPES, ControlledLock, ControlledRLock, threading.Thread)),
    Kind((trio.lowlevel.Task, trio.Nursery, trio.CancelScope, trio.lowlevel.TrioToken, Run)),
    Kind((asyncio.Future, asyncio.Handle, asyncio.AbstractEventLoop)),
)
"""What is known; the first entry that fits counts. Other objects have at most attributes."""

STATES = (
    ProcessState(
        module=random,
        things=(getattr(random, "_inst", None),),
        part=lambda: GeneratorPart(Place("random"), random),
    ),
    ProcessState(
        module=os, names=("environ", "getenv", "putenv", "unsetenv"), part=EnvironmentPart
    ),
    ProcessState(
        module=os,
        names=("getcwd", "chdir", "fchdir"),
        things=(contextlib.chdir,),
        part=lambda: WholePart(
            *(Place("os.getcwd()"), "working directory", os),
            *(lambda module: module.getcwd(), lambda module, path: module.chdir(path)),
            advice=_ONE_PER_PROCESS,
        ),
    ),
    ProcessState(module=sys, names=("modules",), part=SysModulesPart),
    ProcessState(module=signal, names=("signal", "getsignal"), part=SignalsPart),
    _setting(os, "os.umask()", ("umask",), _umask, os.umask),
    _setting(
        *(gc, "gc.isenabled()", ("enable", "disable", "isenabled"), gc.isenabled),
        lambda enabled: gc.enable() if enabled else gc.disable(),
    ),
    _setting(
        *(gc, "gc.get_threshold()", ("set_threshold", "get_threshold"), gc.get_threshold),
        lambda threshold: gc.set_threshold(*threshold),
    ),
    _setting(
        *(socket, "socket.getdefaulttimeout()", ("setdefaulttimeout", "getdefaulttimeout")),
        *(socket.getdefaulttimeout, socket.setdefaulttimeout),
    ),
    _setting(
        *(locale, "locale.setlocale(LC_ALL)", ("setlocale", "getlocale", "localeconv")),
        lambda: locale.setlocale(locale.LC_ALL),
        lambda name: locale.setlocale(locale.LC_ALL, name),
    ),
    _setting(
        *(logging, "logging.root.manager.disable", ("disable",)),
        *(lambda: logging.root.manager.disable, logging.disable),
    ),
    _setting(
        *(sys, "sys.getrecursionlimit()", ("setrecursionlimit", "getrecursionlimit")),
        *(sys.getrecursionlimit, sys.setrecursionlimit),
    ),
    ProcessState(
        module=warnings,
        names=(*("filters", "catch_warnings", "simplefilter", "filterwarnings", "resetwarnings"),),
        part=WarningFiltersPart,
    ),
    ProcessState(module=sys, names=("stdout",), things=(contextlib.redirect_stdout,)),
    ProcessState(module=sys, names=("stderr",), things=(contextlib.redirect_stderr,)),
    *(ProcessState(module=sys, names=(name,)) for name in ("stdin", "path", "argv")),
)


HELD = {
    cls: (kind.held_part, kind.holds)
    for kind in KINDS
    if kind.held_part is not None
    for cls in kind.types
}
"""What is put back through what holds it, by type."""


def kind_of(cls: type[Any]) -> Kind | None:
    """Return the kind of the objects of a class, if it is known."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    return next((one for one in KINDS if issubclass(cls, one.types) or one.name == name), None)


BY_THING = {
    id(thing): (thing, state)
    for state in STATES
    for thing in (*state.things, *map(vars(state.module).get, state.names if state.part else ()))
    if thing is not None
}
"""States by the ids of objects, which are held here so that no other object gets their ids."""
