"""Notice what runs change where no walk from their code leads: in any module, in any logger.

These parts are wide, and looking at one takes up to a millisecond, so it isn't done before every
run. Once something has changed there, it is followed closely, by itself.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from operator import is_
from types import ModuleType
from typing import Any

from harness.testing.objects._parts import KeyedPart, NamesPart, Part
from harness.testing.objects._places import Place

_NOT_A_RUNS = frozenset({"harness", "pytest", "_pytest", "pluggy", "coverage", "hypothesis"})
"""Packages that watch the runs, and change meanwhile."""


class ModulesPart(Part):
    """The public names in every module that is loaded, whoever's it is.

    Private ones are left out, and so is what a module adds when it is imported or asked for
    something the first time: putting that back would break what caches it.

    Args:
      followed: The names that are followed closely, by the id of the module's globals.
    """

    __slots__ = ("_followed", "_modules")

    def __init__(self, followed: Mapping[int, Collection[str]]) -> None:
        super().__init__(Place("sys.modules"), "modules", sys)
        self._modules: dict[int, tuple[str, dict[str, Any]]] = {}
        for name, module in list(sys.modules.items()):
            # By type: cffi's libraries say that they are modules, and have no names.
            is_module = issubclass(type(module), ModuleType)
            if is_module and name.partition(".")[0] not in _NOT_A_RUNS:
                # Not by vars(), which would make a lazy module load.
                names = object.__getattribute__(module, "__dict__")
                if getattr(names.get("__spec__"), "_initializing", False):
                    continue  # Another thread is importing it.
                self._modules.setdefault(id(names), (name, names))
        self._followed = {key: set(names) for key, names in followed.items()}

    def take(self) -> tuple[dict[str, Any], ...]:
        return tuple(names.copy() for _, names in self._modules.values())

    def changed_since(self, before: Any) -> tuple[Any, ...]:
        # Thousands of modules are compared as they are: copying them takes twice as long as that.
        return self.changed(before, [names for _, names in self._modules.values()])

    def put(self, contents: Any, keys: Collection[Any] | None = None) -> None:
        """Do nothing: what has changed is put back by what follows it closely."""

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        """Return pairs: the id of a module's globals, and a name in it."""
        return tuple(
            (key, name)
            for key, was, now in zip(self._modules, before, after, strict=True)
            if len(was) != len(now) or not all(map(is_, was.values(), now.values()))
            for name in was.keys() | now.keys()
            if was.get(name, _ABSENT) is not now.get(name, _ABSENT)
            and not name.startswith("_")
            and name not in self._followed.get(key, ())
            and (name in was or not _is_loaded_lazily(was, now[name]))
        )

    def close_up(self, contents: Any, keys: Collection[Any]) -> Iterator[tuple[Part, Any]]:
        initial = dict(zip(self._modules, contents, strict=True))
        for key, name in sorted(keys, key=lambda pair: (self._modules[pair[0]][0], pair[1])):
            self._followed.setdefault(key, set()).add(name)
            module, names = self._modules[key]
            part = NamesPart(Place(module), "module global", names, partial(_same, names), {name})
            held = initial[key]
            yield part, ({name: held[name]} if name in held else {})


def _is_loaded_lazily(names: dict[str, Any], value: Any) -> bool:
    """Return whether a new name in a module is one that it, or an import, has added by itself."""
    return isinstance(value, ModuleType) or "__getattr__" in names


def _same(names: dict[str, Any]) -> dict[str, Any]:
    return names


_ABSENT = object()


class LoggersPart(KeyedPart):
    """The settings of loggers, which anybody can fetch by name.

    Args:
      known: The ids of loggers that are looked at as objects.
      names: Only these; None for all.
    """

    __slots__ = ("_known", "_names")

    names_things = True

    def __init__(self, known: set[int], names: Collection[str] | None = None) -> None:
        super().__init__(Place("logging"), "logger", logging.root.manager)
        self._known = known
        self._names = names

    def take(self) -> dict[str, Any]:
        table = {**logging.root.manager.loggerDict, logging.root.name: logging.root}
        found = ((name, table.get(name)) for name in self._names or table)
        return {
            name: _settings(logger)
            for name, logger in found
            if isinstance(logger, logging.Logger) and id(logger) not in self._known
        }

    def changed(self, before: Any, after: Any) -> tuple[Any, ...]:
        # A logger that is new and as it begins is nobody's change.
        return tuple(name for name in after if after[name] != before.get(name, _AS_IT_BEGINS))

    def place_of(self, key: Any) -> Place:
        return Place(f"logging.getLogger({'' if key == logging.root.name else repr(key)})")

    def close_up(self, contents: Any, keys: Collection[Any]) -> Iterator[tuple[Part, Any]]:
        self._known.update(id(logging.getLogger(name)) for name in keys)
        initial = {name: contents[name] for name in keys if name in contents}
        yield LoggersPart(set(), sorted(keys)), initial

    def _replace(self, contents: dict[Any, Any]) -> None:
        for name in self.take():
            self._set(name, contents.get(name, _AS_IT_BEGINS))

    def _set(self, key: Any, value: Any) -> None:
        logger = logging.getLogger(key)
        level, logger.disabled, logger.propagate, logger.handlers[:], logger.filters[:] = value
        logger.setLevel(level)

    def _delete(self, key: Any) -> None:
        self._set(key, _AS_IT_BEGINS)


_AS_IT_BEGINS = (logging.NOTSET, False, True, (), ())


def _settings(logger: logging.Logger) -> tuple[Any, ...]:
    lists = tuple(logger.handlers), tuple(logger.filters)
    return (logger.level, logger.disabled, logger.propagate, *lists)
