"""Tell which code is the user's, and which names a function uses.

Through its globals a function can reach the whole module. What it does reach are the few names in
its code, so those are read from the code.
"""

from __future__ import annotations

import dis
import functools
from types import CodeType, FunctionType
from typing import Any

import attrs

from harness.testing._users_code import is_users_file, is_users_module


@attrs.frozen
class Import:
    """An import statement inside a function."""

    module: str
    level: int
    """How many packages up it starts; 0 if it is absolute."""

    names: tuple[str, ...]
    """What it imports from the module; empty if that is the module itself."""


@attrs.frozen
class NamesUsed:
    """The names in a function's code, and in the functions and classes defined inside it."""

    globals: tuple[str, ...]
    """Read or written as a global."""

    globals_written: tuple[str, ...]

    attributes: tuple[str, ...]
    """Read or written as an attribute, of whatever object."""

    attributes_written: tuple[str, ...]

    imports: tuple[Import, ...]


_BY_STRINGS = frozenset({"globals", "vars", "getattr", "setattr", "delattr"})
"""Names through which code gets at other names that it has as strings."""


@functools.lru_cache(maxsize=4096)
def names_used(code: CodeType) -> NamesUsed:
    """Return the names in ``code``."""
    # Dicts as sets that keep their order, so that every walk goes the same way.
    loaded: dict[str, None] = {}
    stored: dict[str, None] = {}
    attributes_loaded: dict[str, None] = {}
    attributes_stored: dict[str, None] = {}
    strings: dict[str, None] = {}
    imports: dict[Import, None] = {}
    pending = [code]
    while pending:
        current = pending.pop()
        pending.extend(const for const in current.co_consts if isinstance(const, CodeType))
        strings |= dict.fromkeys(
            const for const in current.co_consts if isinstance(const, str) and const.isidentifier()
        )
        arguments: list[Any] = [0, ()]
        for instruction in dis.get_instructions(current):
            operation, name = instruction.opname, instruction.argval
            if operation == "IMPORT_NAME":  # The level and the names are loaded before it.
                level, names = arguments[-2:]
                imports[Import(name, level, tuple(names or ()))] = None
            arguments.append(name)
            if operation in ("LOAD_NAME", "LOAD_GLOBAL"):
                loaded[name] = None
            elif operation in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                loaded[name] = stored[name] = None
            elif operation in ("LOAD_ATTR", "LOAD_METHOD"):
                attributes_loaded[name] = None
            elif operation in ("STORE_ATTR", "DELETE_ATTR"):
                attributes_loaded[name] = attributes_stored[name] = None
    if not _BY_STRINGS.isdisjoint(loaded) or "__dict__" in attributes_loaded:
        attributes_loaded |= strings
        attributes_stored |= strings
        if "globals" in loaded:
            loaded |= strings
            stored |= strings
    return NamesUsed(
        tuple(loaded),
        tuple(stored),
        tuple(attributes_loaded),
        tuple(attributes_stored),
        tuple(imports),
    )


def is_users_function(function: FunctionType) -> bool:
    """Return whether a function's code is the user's."""
    filename = function.__code__.co_filename
    if filename.startswith("<"):  # Generated, as a dataclass's __init__ is: see who asked for it.
        return is_users_module(function.__globals__.get("__name__"))
    return is_users_file(filename)


def is_users_class(cls: type[Any]) -> bool:
    """Return whether a class is defined in the user's code."""
    return is_users_module(cls.__module__)
