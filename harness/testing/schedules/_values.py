"""Tell what an attribute or an element is, without running any code of its owner."""

from __future__ import annotations

import threading
from types import MemberDescriptorType, ModuleType
from typing import Any, Final


class _Mark:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


UNKNOWN: Final[Any] = _Mark("unknown")
"""Any object."""

MISSING: Final[Any] = _Mark("missing")


class _Fresh(str):
    __slots__ = ()


FRESH: Final[Any] = _Fresh()
"""Stands for an object that can't change, or that nobody else has. Which, isn't known."""


def attribute_of(thing: Any, name: str) -> Any:
    """Return an attribute as it is kept: a function of a class, not a bound method."""
    if thing is UNKNOWN:
        return UNKNOWN
    if name == "__class__":
        return type(thing)
    if isinstance(thing, ModuleType):
        return vars(thing).get(name, UNKNOWN)
    if isinstance(thing, type):
        metaclass: type[Any] = type(thing)
        for cls in (*thing.__mro__, *metaclass.__mro__):
            if name in vars(cls):
                value = vars(cls)[name]
                return FRESH if type(value).__name__ == "getset_descriptor" else value
        return UNKNOWN
    own = own_attribute_of(thing, name)
    if own is not MISSING:
        return own
    for cls in type(thing).__mro__:
        if name in vars(cls):
            value = vars(cls)[name]
            if isinstance(value, MemberDescriptorType):
                try:
                    return value.__get__(thing)
                except AttributeError:
                    return UNKNOWN
            return UNKNOWN if isinstance(value, property) or _computes(value) else value
    return UNKNOWN


def own_attribute_of(thing: Any, name: str) -> Any:
    """Return an attribute that an object has, not its class; `MISSING` if there is none."""
    if isinstance(thing, type):
        return vars(thing).get(name, MISSING)
    try:
        is_local = isinstance(thing, threading.local)
        own = thing.__dict__ if is_local else object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return MISSING
    return own.get(name, MISSING) if isinstance(own, dict) else MISSING


def _computes(value: Any) -> bool:
    """Tell whether a class attribute is a descriptor that gives something else than itself."""
    kind = type(value)
    return kind.__name__ == "getset_descriptor" or (
        hasattr(kind, "__get__") and kind.__module__ != "builtins"
    )


def element_of(container: Any, key: Any) -> Any:
    """Return what is under a key of one of Python's own containers."""
    if key is FRESH:
        return UNKNOWN
    try:
        if type(container) is dict:
            return container.get(key, UNKNOWN)
        if type(container) in (list, tuple, str) and isinstance(key, int):
            return container[key]
    except (LookupError, TypeError):
        pass
    return UNKNOWN
