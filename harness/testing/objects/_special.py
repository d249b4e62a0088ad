"""Put back what is no plain container: caches, counters, and the state of the whole process.

Each has its own way. A cache of `functools` can only be emptied, a counter of `itertools` can only
be replaced where it hangs, a generator of random numbers hands out its state, and the environment
must be told to the operating system as well.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import random
import re
import warnings
from collections.abc import Collection
from operator import is_
from typing import Any

import trio

from harness.limits import Limiter
from harness.testing.objects._parts import WHOLE, KeyedPart, Part, WholePart
from harness.testing.objects._places import Place

LruCache = functools._lru_cache_wrapper


class CachePart(Part):
    """An `functools.lru_cache`: how much is in it. It is put back by emptying it.

    For somebody who shall have it to himself another cache hangs in its place for a while.
    """

    __slots__ = ("_cache", "_holder", "_key")

    def __init__(self, place: Place, cache: LruCache[Any], holder: KeyedPart, key: Any) -> None:
        super().__init__(place, "functools cache", cache)
        self._cache = cache
        self._holder = holder
        self._key = key

    def take(self) -> tuple[LruCache[Any], int]:
        cache: LruCache[Any] = self._holder.take().get(self._key, self._cache)
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
        settings = self._cache.cache_parameters()
        cache = functools.lru_cache(settings["maxsize"], settings["typed"])(self._cache.__wrapped__)
        return cache, 0


class CountPart(Part):
    """An `itertools.count`, which can't be set: another one hangs in its place when put back."""

    __slots__ = ("_holder", "_key")

    def __init__(self, place: Place, holder: KeyedPart, key: Any) -> None:
        super().__init__(place, "itertools.count", holder.take().get(key))
        self._holder = holder
        self._key = key

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

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        return () if before == after else (WHOLE,)


class LimiterPart(Part):
    """A limiter, which belongs to one ``trio.run``: it begins anew in each.

    What it counts is shared on purpose, so it is never found guilty.
    """

    __slots__ = ("_limiter",)

    def __init__(self, place: Place, limiter: Limiter) -> None:
        super().__init__(place, "limiter", limiter)
        self._limiter = limiter

    def take(self) -> None:
        return None

    def put(self, contents: Any, keys: Collection[Any] | None = None) -> None:
        self._limiter.reset()

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        return ()


class OpaquePart(Part):
    """An object that can't be looked into: only who uses it can be told."""

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

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        return ()


def array_part(place: Place, array: Any) -> Part:
    """Return the part of an array of numpy, which is compared and kept by its bytes."""

    def put(data: bytes) -> None:
        array[...] = type(array)(array.shape, array.dtype, bytearray(data))

    return WholePart(place, "numpy array", array, array.tobytes, put)


def buffer_part(place: Place, buffer: Any) -> Part:
    """Return the part of a file in memory: what is in it, and where the next read or write is."""

    def put(contents: tuple[Any, int]) -> None:
        text, position = contents
        buffer.seek(0)
        buffer.truncate()
        buffer.write(text)
        buffer.seek(position)

    return WholePart(
        *(place, type(buffer).__name__, buffer, lambda: (buffer.getvalue(), buffer.tell()), put),
        by_value=True,
    )


def random_part(place: Place, generator: random.Random) -> Part:
    """Return the part of a generator of random numbers: where it stands in its sequence."""
    return WholePart(
        *(place, "random generator", generator, generator.getstate, generator.setstate),
        by_value=True,
    )


def global_random_part() -> Part:
    """Return the part of the generator behind the functions of the module `random`."""
    return WholePart(
        *(Place("random"), "random generator", random, random.getstate, random.setstate),
        by_value=True,
    )


def working_directory_part() -> Part:
    """Return the part that is the working directory of the process."""
    return WholePart(Place("os.getcwd()"), "working directory", os, os.getcwd, os.chdir)


class WarningFiltersPart(Part):
    """Which warnings are shown: a list, which ``warnings.catch_warnings`` binds anew."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(Place("warnings.filters"), "filters of warnings", warnings)

    def take(self) -> tuple[Any, list[Any]]:
        return warnings.filters, list(warnings.filters)

    def put(self, contents: Any, keys: Collection[Any] | None = None) -> None:
        held, filters = contents
        held[:] = filters
        with warnings.catch_warnings():  # Has Python forget which warnings it has let pass.
            pass
        warnings.filters = held

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        return () if before[1] == after[1] else (WHOLE,)

    def fresh(self, contents: Any) -> Any:
        return list(contents[1]), contents[1]


def logger_part(place: Place, logger: logging.Logger) -> Part:
    """Return the part of a logger that says which lines it lets pass."""

    def take() -> tuple[int, bool, bool]:
        return logger.level, logger.disabled, logger.propagate

    def put(contents: tuple[int, bool, bool]) -> None:
        level, logger.disabled, logger.propagate = contents
        logger.setLevel(level)

    return WholePart(place, "logger", logger, take, put, by_value=True)


class RunVariablePart(Part):
    """A variable that each ``trio.run`` has its own value of; outside of one there is none."""

    __slots__ = ("_unset", "_variable")

    def __init__(self, place: Place, variable: trio.lowlevel.RunVar[Any]) -> None:
        super().__init__(place, "variable of a trio.run", variable)
        self._variable = variable
        self._unset: trio.lowlevel.RunVarToken[Any] | None = None

    def take(self) -> tuple[Any, ...]:
        try:
            return (self._variable.get(),)
        except LookupError:
            if self._unset is None:
                # Nothing but such a token can take a value away again.
                self._unset = self._variable.set(None)
                self._reset(self._unset)
            return ()
        except RuntimeError:
            return ()

    def put(self, contents: Any, keys: Collection[Any] | None = None) -> None:
        try:
            if contents:
                self._variable.set(contents[0])
            elif self.take() and self._unset is not None:
                self._reset(self._unset)
        except RuntimeError:
            pass  # The loop has ended, and its values with it.

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        same = len(before) == len(after) and all(map(is_, before, after))
        return () if same else (WHOLE,)

    def _reset(self, unset: trio.lowlevel.RunVarToken[Any]) -> None:
        self._variable.reset(unset)
        unset.redeemed = False  # It is needed more than once.


class EnvironmentPart(KeyedPart):
    """The environment variables of the process."""

    __slots__ = ()

    names_things = True

    def __init__(self) -> None:
        super().__init__(Place("os.environ"), "environment", os.environ)

    def take(self) -> dict[str, Any]:
        return os.environ.copy()

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        # By value: each look decodes the variables anew.
        if before == after:
            return ()
        keys = before.keys() | after.keys()
        return tuple(sorted(key for key in keys if before.get(key) != after.get(key)))

    def place_of(self, key: Any) -> Place:
        return self.place if key is WHOLE else self.place.item(key)

    def _set(self, key: Any, value: Any) -> None:
        os.environ[key] = value

    def _delete(self, key: Any) -> None:
        os.environ.pop(key, None)
