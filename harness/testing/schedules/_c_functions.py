"""Know what functions that are written in C read and write: nothing can look inside of them.

Only what is listed here is known; a call of anything else counts as unseen.
"""

from __future__ import annotations

import builtins
import gc
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from contextvars import ContextVar
from enum import Enum
from fractions import Fraction
from typing import Any

import attrs

from harness.testing.schedules._effects import ORDER, WHOLE
from harness.testing.schedules._values import FRESH, UNKNOWN

DEEP_AT_MOST = 1_000
"""How many objects inside of one another are looked at for a single call."""

ATOMS = (
    *(int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), range, slice),
    *(type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType),
    *(Enum, Fraction, BaseException, ContextVar, types.GenericAlias, types.CoroutineType),
    *(types.MethodType, types.MethodDescriptorType, types.WrapperDescriptorType),
)
"""Types of what doesn't change, or has nothing in it that C code reads for a call."""

CONTAINERS = (list, dict, set, deque, bytearray)
_FROZEN = (tuple, frozenset)
VIEWS: tuple[type[Any], ...] = (
    type({}.keys()),
    type({}.values()),
    type({}.items()),
    types.MappingProxyType,
)

_READERS = {
    list: {"index", "count", "copy", "__len__", "__getitem__", "__contains__", "__iter__"},
    dict: {"get", "keys", "values", "items", "copy", "__len__", "__getitem__", "__contains__"},
    set: {
        *("copy", "union", "intersection", "difference", "symmetric_difference", "issubset"),
        *("issuperset", "isdisjoint", "__len__", "__contains__"),
    },
    deque: {"index", "count", "copy", "__len__"},
    bytearray: {"decode", "find", "hex", "startswith", "endswith"},
}

_KEEPS_ARGUMENTS = {"append", "appendleft", "add", "insert"}
"""Methods that put what they are given into a container without looking into it."""

_FUNCTIONS = {
    *("len", "isinstance", "issubclass", "min", "max", "sum", "sorted", "abs", "round", "repr"),
    *("any", "all", "hash", "id", "callable", "chr", "ord", "divmod", "pow", "bin", "hex", "oct"),
    *("format", "ascii", "iter", "aiter", "__build_class__"),
}
_MODULES = {
    "math",
    "_operator",
    "itertools",
    "_struct",
    "binascii",
    "zlib",
    "_bisect",
    "_abc",
    "_random",
}
_WRITE_THE_FIRST = {"heappush", "heappop", "heapify", "heapreplace", "heappushpop", "next", "anext"}
_NAMED = {"getattr": False, "hasattr": False, "setattr": True, "delattr": True}
"""Functions for an attribute by its name, each with whether it writes."""

_LOOK_AROUND = {
    *("get_running_loop", "_get_running_loop", "current_task", "exc_info", "getrecursionlimit"),
    *("_getframe", "get_ident"),
}
"""Functions that tell where they are called."""

_OWN_STATE = {
    *("_collections", "collections", "itertools", "functools", "_functools"),
    *("_asyncio", "asyncio", "_thread", "threading", "datetime", "re", "decimal", "_operator"),
    *("enum", "types", "_struct", "uuid", "weakref", "_contextvars"),
}
"""Modules of types whose methods change nothing but the object itself."""

_ALWAYS_FRESH = {
    *("len", "isinstance", "issubclass", "abs", "round", "repr", "any", "all", "hash", "id"),
    *("sorted", "time", "monotonic", "perf_counter"),
    *("callable", "chr", "ord", "bin", "hex", "oct", "format", "ascii", "hasattr"),
    *("index", "count", "append", "appendleft", "add", "insert", "extend", "clear", "update"),
    *("discard", "remove", "sort", "reverse"),
}


@attrs.frozen
class Touched:
    """Something that a call reads or writes."""

    thing: Any
    key: Hashable
    writes: bool


@attrs.frozen
class Over:
    """Stands for an iterator of C, by what it goes through."""

    things: tuple[Any, ...]
    gives_tuples: bool = False
    """Whether what it gives is made for whoever asks."""


class UnseenError(Exception):
    """What a call does can't be told; the message says which."""


def is_atom(thing: Any) -> bool:
    """Tell whether nothing in an object can change."""
    return isinstance(thing, ATOMS)


def is_plain_key(key: Any) -> bool:
    """Tell whether a key is compared without looking at anything that changes."""
    if key is FRESH:  # It could be any.
        return False
    return isinstance(key, str | int | bytes | float | type(None)) or (
        type(key) is tuple and all(map(is_plain_key, key))
    )


def inside(thing: Any) -> Iterator[Touched]:
    """Yield what C code reads of an object when it compares, formats or copies it."""
    pending, seen = [thing], set[int]()
    while pending:
        one = pending.pop()
        if one is UNKNOWN:
            yield Touched(UNKNOWN, WHOLE, False)
        if isinstance(one, types.BuiltinMethodType) and isinstance(one.__self__, CONTAINERS):
            yield from _method(one.__self__, one.__name__, ())  # It is going to be called.
        if is_atom(one) or id(one) in seen:
            continue
        seen.add(id(one))
        if len(seen) > DEEP_AT_MOST:
            raise UnseenError(f"a look into more than {DEEP_AT_MOST:,} objects")
        if isinstance(one, CONTAINERS):
            yield Touched(one, WHOLE, False)
        elif isinstance(one, VIEWS):
            pending.append(_behind(one))
            continue
        elif not isinstance(one, _FROZEN):
            _refuse_opaque(one)  # The methods of others say what they read.
            continue
        pending += [*one.keys(), *one.values()] if isinstance(one, dict) else list(one)


def surface(thing: Any) -> Iterator[Touched]:
    """Yield what is read to see how long an object is, or to go through it."""
    if isinstance(thing, CONTAINERS):
        yield Touched(thing, WHOLE, False)
    elif isinstance(thing, VIEWS):
        yield Touched(_behind(thing), WHOLE, False)
    elif isinstance(thing, Over):
        for one in thing.things:
            yield from surface(one)
    elif thing is UNKNOWN:
        yield Touched(UNKNOWN, WHOLE, False)
    elif not is_atom(thing):
        _refuse_opaque(thing)
        if hasattr(type(thing), "__next__"):
            yield Touched(thing, WHOLE, True)
            if not isinstance(thing, types.GeneratorType) and not is_of_python(type(thing)):
                for held in gc.get_referents(thing):
                    yield from surface(held)


def _refuse_opaque(thing: Any) -> None:
    """Refuse to guess what C code reads of an object that only C code can look into."""
    kind = type(thing)
    known = kind.__module__ in ("builtins", *_OWN_STATE) and kind is not memoryview
    if not (known or is_of_python(kind) or thing is UNKNOWN or isinstance(thing, Over)):
        raise UnseenError(f"{kind.__module__}.{kind.__qualname__}")


def _behind(view: Any) -> Any:
    found = view if isinstance(view, types.MappingProxyType) else view.mapping
    while isinstance(found, types.MappingProxyType):
        found = found | {}
    return found


def item(container: Any, key: Any, *, writes: bool, deletes: bool = False) -> Iterator[Touched]:
    """Yield what is touched to get at what is under a key."""
    if not isinstance(container, CONTAINERS):
        if is_atom(container) or isinstance(container, _FROZEN) or is_of_python(type(container)):
            return
        raise UnseenError(f"{type(container).__name__}[...]")
    if not is_plain_key(key):
        yield from inside(key)
        yield Touched(container, WHOLE, writes)
    elif isinstance(container, dict):
        is_there = dict.__contains__(container, key)
        yield Touched(container, ("item", key), writes)
        if writes and (deletes or not is_there):
            yield Touched(container, ORDER, True)
        elif not is_there and isinstance(container, defaultdict):
            yield Touched(container, WHOLE, True)
    elif deletes or isinstance(key, slice):
        yield Touched(container, WHOLE, writes)
    else:
        yield Touched(container, ("item", key), writes)
        if key < 0:
            yield Touched(container, WHOLE, writes)


def is_of_python(cls: type[Any]) -> bool:
    """Tell whether a class may have been written in Python."""
    # Py_TPFLAGS_HEAPTYPE, and not Py_TPFLAGS_IMMUTABLETYPE.
    return cls.__flags__ & (1 << 9 | 1 << 8) == 1 << 9


def call(function: Any, arguments: Sequence[Any]) -> Iterator[Touched]:
    """Yield what a call of a C function touches.

    Raises:
      UnseenError: if that isn't known.
    """
    own = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if isinstance(function, weakref.ref):
        return
    if isinstance(function, type):
        known = function.__module__ in ("builtins", *_OWN_STATE, *_MODULES)
        if not known and not issubclass(function, (*ATOMS, *CONTAINERS)):
            raise UnseenError(f"{function.__module__}.{function.__qualname__}")
        for argument in arguments:
            yield from inside(argument)
            yield from surface(argument)
        return
    if isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType):
        if not arguments:
            raise UnseenError(name)
        yield from _method(arguments[0], name, arguments[1:])
    elif isinstance(own, types.ModuleType) or own is None:
        yield from _function(own, name, arguments)
    elif isinstance(own, type):
        for argument in arguments:
            yield from inside(argument)
    else:
        yield from _method(own, name, arguments)


def _function(module: Any, name: str, arguments: Sequence[Any]) -> Iterator[Touched]:
    first = arguments[0] if arguments else None
    if name == "print" and module is builtins:
        yield Touched(sys.stdout, WHOLE, True)
        for argument in arguments:
            yield from inside(argument)
        return
    if name in _NAMED and module is builtins:
        if is_plain_key(arguments[1]):
            yield Touched(first, arguments[1], _NAMED[name])
        else:
            yield Touched(first, WHOLE, _NAMED[name])
        return
    if name in _WRITE_THE_FIRST or name.startswith("insort"):
        yield Touched(first, WHOLE, True)
    elif not (
        (module is builtins and name in _FUNCTIONS)
        or getattr(module, "__name__", "") in _MODULES
        or name in _LOOK_AROUND
    ):
        raise UnseenError(f"{getattr(module, '__name__', '?')}.{name}".removeprefix("builtins."))
    for argument in arguments:
        yield from surface(argument)
        if name != "len":
            yield from inside(argument)


def _method(own: Any, name: str, arguments: Sequence[Any]) -> Iterator[Touched]:
    if isinstance(own, CONTAINERS):
        base = next(kind for kind in CONTAINERS if isinstance(own, kind))
        plain = bool(arguments) and is_plain_key(arguments[0])
        if name in ("get", "__contains__", "__getitem__") and base is dict and plain:
            yield from item(own, arguments[0], writes=False)
        else:
            reads = name in _READERS[base] and type(own) is not OrderedDict
            yield Touched(own, WHOLE, not reads)
            for argument in arguments:
                yield from surface(argument)
                if name not in _KEEPS_ARGUMENTS:
                    yield from inside(argument)
        return
    if isinstance(own, ContextVar):
        return  # Each task has its own context.
    if is_future(own):
        writes = name not in ("done", "result", "exception", "cancelled", "get_name", "get_coro")
        yield Touched(own, WHOLE if writes else "result", writes)
        return
    if not (is_atom(own) or isinstance(own, (*_FROZEN, *VIEWS))):
        if type(own).__module__ not in _OWN_STATE and name not in _OF_EVERY_OBJECT:
            raise UnseenError(f"{type(own).__qualname__}.{name}")
        yield Touched(own, WHOLE, True)
    for argument in (own, *arguments):
        yield from inside(argument)


_OF_EVERY_OBJECT = {"__init__", "__setattr__", "__delattr__", "__init_subclass__"}


def is_future(thing: Any) -> bool:
    """Tell whether an object is a future or a task of asyncio."""
    return hasattr(type(thing), "_asyncio_future_blocking")


def result_of(function: Any, arguments: Sequence[Any]) -> Any:
    """Return what a call of a C function is going to return, as far as that can be told."""
    name = getattr(function, "__name__", "")
    if name in ("enumerate", "zip", "reversed", "iter", "filter", "map"):
        return Over(tuple(arguments), name in ("enumerate", "zip"))
    if name in ("items", "keys", "values") and arguments and isinstance(arguments[0], dict):
        return Over((arguments[0],), name == "items")
    own = getattr(function, "__self__", None)
    fresh = name in _ALWAYS_FRESH or isinstance(own, str | bytes | int)
    if fresh or (isinstance(function, type) and issubclass(function, (*ATOMS, *CONTAINERS))):
        return FRESH
    return UNKNOWN
