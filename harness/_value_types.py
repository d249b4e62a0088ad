"""Say of which classes a function's values are, as far as its annotation and its code tell.

Only what these name is ever found: nothing is imported, and no class is looked up by a name that
came from elsewhere.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import inspect
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType, UnionType
from typing import Any

import attrs

WRITTEN_OUT = (
    bytes,
    bytearray,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    decimal.Decimal,
    uuid.UUID,
)
"""Classes of values that have a text, besides those of JSON."""

_PLAIN = (str, int, float, list, dict, tuple)
"""What JSON has, and what derives from it."""

_KNOWN = frozenset((*_PLAIN, *WRITTEN_OUT, set, frozenset, type(None), object))


def field_names(cls: type) -> tuple[str, ...] | None:
    """Return the names of a class's fields; None if it isn't of a kind that lists them.

    That is a dataclass, or a class of attrs, msgspec, pydantic or `typing.NamedTuple`.
    """
    if dataclasses.is_dataclass(cls):
        return tuple(one.name for one in dataclasses.fields(cls))
    if attrs.has(cls):
        return tuple(one.name for one in attrs.fields(cls))
    listings = ["__struct_fields__"]
    listings.append("_fields" if issubclass(cls, tuple) else "__pydantic_fields__")
    for listing in listings:
        names = getattr(cls, listing, None)
        if isinstance(names, tuple | Mapping):
            return tuple(names)
    return None


def is_pydantic(cls: type) -> bool:
    """Return whether this is a pydantic model; its dataclasses are like all dataclasses."""
    return isinstance(getattr(cls, "__pydantic_fields__", None), dict) and hasattr(
        cls, "model_validate_json"
    )


def functions_in(function: Any) -> list[Any]:
    """Return the functions that give a callable's values: its own, or those of a pipeline."""
    while isinstance(function, functools.partial):
        function = function.func
    parts = getattr(type(function), "functions", None)
    if isinstance(parts, property):  # A pipeline or a router.
        return [inner for one in function.functions.values() for inner in functions_in(one)]
    return [function if inspect.isroutine(function) else type(function).__call__]


class ValueTypes:
    """The classes with fields and the enumerations that values are made of."""

    def __init__(self) -> None:
        self.classes: set[type] = set()
        self._seen: dict[type, str | None] = {}
        """What was said of each class; nothing yet of one that is being looked at."""
        self._names: dict[str, Any] = {}
        """What annotations that are text may name, besides what is in their module."""

    def add_returned(self, function: Any) -> str | None:
        """Add what a function returns, and return the name of a class that can't be kept."""
        refused: str | None = None
        functions = functions_in(function)
        for one in functions:
            refused = self._add_returned(one)
        # What a stage returns may be for the next one alone.
        return refused if len(functions) == 1 else None

    def _add_returned(self, function: Any) -> str | None:
        inner = inspect.unwrap(function)
        names = getattr(inner, "__globals__", {})
        try:
            self._names |= inspect.getclosurevars(inner).nonlocals
            for one in _named_in(inner.__code__, self._names, names):
                self.add(one)
        except (AttributeError, TypeError, ValueError):
            pass  # It isn't written in Python, or not yet complete.
        try:
            hint = {"return": inner.__annotations__["return"]}
        except Exception:  # It has none, or one that can't be evaluated.
            return None
        return self.add(_evaluated(hint, names, self._names).get("return"))

    def add(self, hint: Any) -> str | None:
        """Add the classes of a type hint, and return the name of one that can't be kept.

        None if there is none, or if the hint doesn't tell.
        """
        hint = getattr(hint, "__value__", getattr(hint, "__supertype__", hint))
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated:
            return self.add(args[0])
        if origin is Callable:
            return None
        if origin is typing.Literal:
            for one in args:
                self.add(type(one))
            return None
        found = [self.add(one) for one in args]
        if origin in (typing.Union, UnionType):
            return found[0] if all(found) else None
        refused = next((one for one in found if one is not None), None)
        cls = hint if origin is None else origin
        if isinstance(cls, type) and cls not in _KNOWN:
            if cls not in self._seen:
                self._seen[cls] = None
                self._seen[cls] = self._add_class(cls)
            refused = self._seen[cls] or refused
        return refused

    def _add_class(self, cls: type) -> str | None:
        if issubclass(cls, enum.Enum):
            self.classes.add(cls)
            return None
        names = field_names(cls)
        if names is None and not typing.is_typeddict(cls):
            return None if _is_open(cls) else cls.__qualname__
        if names is not None:
            self.classes.add(cls)
        try:
            hints: Mapping[str, Any] = typing.get_type_hints(
                cls, localns={**self._names, **vars(cls)}
            )
        except Exception:  # It names what isn't there at run time, so it doesn't tell.
            return None
        found = [self.add(hints[name]) for name in names or hints if name in hints]
        refused = next((one for one in found if one is not None), None)
        # Pydantic has a JSON form for more classes than are known here.
        return (
            None
            if refused is None or is_pydantic(cls)
            else f"{cls.__qualname__} with {refused} in it"
        )


def _named_in(code: Any, *places: Mapping[str, Any]) -> Iterator[type]:
    """Yield the classes with fields, and the enumerations, that a function's code names."""
    names = {*code.co_names, *code.co_freevars}
    found = [one for place in places for name in names if (one := place.get(name)) is not None]
    modules = [vars(one) for one in found if isinstance(one, ModuleType)]
    found += [one for place in modules for name in names if (one := place.get(name)) is not None]
    for one in found:
        if isinstance(one, type) and (issubclass(one, enum.Enum) or field_names(one) is not None):
            yield one


def _evaluated(hint: Mapping[str, Any], names: Any, more: Any) -> dict[str, Any]:
    def holder() -> None: ...

    holder.__annotations__ = dict(hint)
    try:
        return typing.get_type_hints(holder, names, more, include_extras=True)
    except Exception:  # It names what isn't there at run time.
        return {}


def _is_open(cls: type) -> bool:
    """Return whether values of a class may be of one that can be kept."""
    return (
        issubclass(cls, _PLAIN)
        or inspect.isabstract(cls)
        or getattr(cls, "_is_protocol", False)
        or cls.__module__ in ("typing", "typing_extensions", "collections.abc", "types")
        or any(field_names(one) is not None or _is_open(one) for one in cls.__subclasses__())
    )


def refusal_of(refused: str, function: Callable[..., Any]) -> str:
    """Return the words for a function that says it returns what can't be kept."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name.rpartition('<locals>.')[2]}() is annotated to return {refused}"


def classes_given(classes: Iterable[Any]) -> ValueTypes:
    """Return the value types of classes that the caller names.

    Raises:
      TypeError: if one of them isn't a class whose values can be kept.
    """
    known = ValueTypes()
    for one in classes:
        refused = known.add(one) if isinstance(one, type) else repr(one)
        if refused is not None:
            raise TypeError(
                "open_journal(types=...) takes classes that list their fields (dataclasses, and "
                f"those of attrs, msgspec and pydantic) and enumerations, not {refused}"
            )
    return known
