"""Tell which code is the user's, and which names a function uses.

What a function can reach through its globals is the whole module. What it does reach are the few
names that stand in its code, so these are read off the code.
"""

from __future__ import annotations

import dis
import functools
import sys
from types import CodeType, FunctionType
from typing import Any

import attrs

from harness.runs._frames import is_user_code


@attrs.frozen
class NamesUsed:
    """The names in a function's code, and in the functions and classes defined inside of it."""

    globals: frozenset[str]
    """Read or written as a global."""

    globals_written: frozenset[str]

    attributes: frozenset[str]
    """Read or written as an attribute, of whatever object."""

    attributes_written: frozenset[str]


@functools.lru_cache(maxsize=4096)
def names_used(code: CodeType) -> NamesUsed:
    """Return the names that stand in ``code``."""
    found: dict[str, set[str]] = {
        "LOAD_GLOBAL": set(),
        "STORE_GLOBAL": set(),
        "LOAD_ATTR": set(),
        "STORE_ATTR": set(),
    }
    pending = [code]
    while pending:
        current = pending.pop()
        pending.extend(const for const in current.co_consts if isinstance(const, CodeType))
        for instruction in dis.get_instructions(current):
            operation = instruction.opname
            if operation in ("LOAD_NAME", "LOAD_GLOBAL"):
                found["LOAD_GLOBAL"].add(instruction.argval)
            elif operation in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                found["STORE_GLOBAL"].add(instruction.argval)
            elif operation in ("STORE_ATTR", "DELETE_ATTR"):
                found["STORE_ATTR"].add(instruction.argval)
            elif operation in ("LOAD_ATTR", "LOAD_METHOD"):
                found["LOAD_ATTR"].add(instruction.argval)
    return NamesUsed(
        globals=frozenset(found["LOAD_GLOBAL"] | found["STORE_GLOBAL"]),
        globals_written=frozenset(found["STORE_GLOBAL"]),
        attributes=frozenset(found["LOAD_ATTR"] | found["STORE_ATTR"]),
        attributes_written=frozenset(found["STORE_ATTR"]),
    )


def is_users_file(filename: str) -> bool:
    """Return whether this file is neither harness's nor an installed package's nor Python's.

    Code typed into an interpreter or given as text has no file, and is the user's.
    """
    if filename.startswith("<"):
        return not filename.startswith("<frozen")
    return is_user_code(filename)


def is_users_module(name: str | None) -> bool:
    """Return whether the module of this name is the user's."""
    if name is None or name == "__main__":
        return True
    module = sys.modules.get(name)
    if module is None:  # Loaded by hand and never registered: no package does that.
        return True
    filename = getattr(module, "__file__", None)
    # Modules written in C or built into Python have none; a namespace package has no code.
    return isinstance(filename, str) and is_users_file(filename)


def is_users_function(function: FunctionType) -> bool:
    """Return whether a function's code is the user's."""
    filename = function.__code__.co_filename
    if filename.startswith("<"):  # Generated, as the __init__ of a dataclass is: see who asked.
        return is_users_module(function.__globals__.get("__name__"))
    return is_users_file(filename)


def is_users_class(cls: type[Any]) -> bool:
    """Return whether a class is defined in the user's code."""
    return is_users_module(cls.__module__)
