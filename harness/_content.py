"""Say whether two values have the same content, by a hash of it.

The hash is the same in every process and on every machine. It covers what JSON would keep, and a
little more:

- ``None``, booleans, text, bytes. Numbers by value, so ``1`` and ``1.0`` are the same, as with
  ``==``; but ``True`` is not ``1``, and nan is the same as nan.
- Lists and tuples are the same if their entries are, in order; sets, in any order.
- Mappings, in any order of their keys.
- Dataclasses, attrs classes, and classes that list their fields in ``__struct_fields__`` (msgspec)
  or ``model_fields`` (pydantic): the class, and the fields that take part in its ``==``; for
  pydantic models, also what they have besides their fields.
- Enumerations, dates and times, UUIDs, decimals, fractions, complex numbers and paths.

Everything else has no content that can be seen from outside. What a class's own ``__eq__`` looks at
can't be seen either: for such a value, all its attributes count.

The exact hash is for code that mustn't miss a difference that ``==`` sees: it tells lists from
tuples, and ordered mappings by their order.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import hashlib
import math
import pathlib
import sys
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Set
from typing import Any

import attrs

_DIGEST_BYTES = 16
"""Among a billion values, two are mistaken for each other once in 10 ** 20 times."""

_WRITTEN_OUT = (
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    uuid.UUID,
    decimal.Decimal,
    fractions.Fraction,
    complex,
    pathlib.PurePath,
)


_BUILT_IN = (type(None), bool, str, int, float, bytes, bytearray, memoryview)
_PLAIN = frozenset(
    (*_BUILT_IN, list, tuple, dict, OrderedDict, set, frozenset, *_WRITTEN_OUT),
)
"""Classes that add nothing of their own to what is built in."""


class _NoContentError(Exception):
    """Something inside has no visible content; the arguments lead to it."""


def content_hash(value: Any, *, exact: bool = False) -> str:
    """Return a hash of the value's content, in hexadecimal: the same if the content is the same.

    Args:
      value: Any value.
      exact: Whether the hash differs for all that ``==`` tells apart, even a list and a tuple.

    Raises:
      TypeError: if the value, or one inside it, has no visible content; or if it contains itself or
        is nested too deeply.
    """
    try:
        encoded = _encode(value, exact)
    except _NoContentError as error:
        culprit, *steps = error.args
        where = "".join(reversed(steps))
        inside = f" (at {where} of a {type(value).__name__})" if where else ""
        raise TypeError(
            f"the content of a {type(culprit).__name__} can't be hashed{inside}; return plain "
            "data or a dataclass, or compare by a key: dedupe=lambda value: value.id"
        ) from None
    except RecursionError:
        raise TypeError(
            f"the content of this {type(value).__name__} can't be hashed: it contains itself, or "
            "is nested too deeply; compare by a key: dedupe=lambda value: value.id"
        ) from None
    return hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).hexdigest()


def same_content(values: Iterable[Any]) -> bool:
    """Return whether all have the same content, or are ``==`` if it can't be seen."""
    first, *others = values
    try:
        wanted = content_hash(first)
        return all(content_hash(other) == wanted for other in others)
    except TypeError:
        return all(bool(first == other) for other in others)


def _encode(value: Any, exact: bool) -> bytes:
    """Return bytes that are equal only if the content is: each part states its kind and length."""
    encoded = _encode_plain(value, exact)
    cls = type(value)
    if cls in _PLAIN and encoded is not None:
        return encoded
    fields = None if isinstance(value, enum.Enum) else _fields_of(value)
    if fields is None:
        if encoded is None:
            raise _NoContentError(value)
        state = _state_of(value) if _compares_itself(cls) else {}
        if not state:
            return encoded
        return _joined("own", [_name_of(cls), encoded, *_pairs(state, exact)])
    # A list, say, that is also a dataclass.
    within = [] if encoded is None else [encoded]
    return _joined("object", [_name_of(cls), *_pairs(fields, exact), *within])


def _encode_plain(value: Any, exact: bool) -> bytes | None:
    """Return the same for what is built in or derived from it; None for everything else."""
    if value is None or isinstance(value, bool):
        return _joined("constant", [repr(value).encode()])
    if isinstance(value, enum.Enum):
        name, of_flag = str(value.name), isinstance(value, enum.Flag)
        parts = [b"%x" % value.value] if of_flag else []  # Which may have no name.
        return _joined("enum", [_name_of(type(value)), name.encode(), *parts])
    if isinstance(value, str):
        return _joined("text", [value.encode(errors="surrogatepass")])
    if isinstance(value, (int, float)):
        return _joined("number", [_number(value)])
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _joined("bytes", [bytes(value)])
    if isinstance(value, (list, tuple)):
        kind = "tuple" if exact and isinstance(value, tuple) else "list"
        return _joined(kind, [_inside(f"[{i}]", one, exact) for i, one in enumerate(value)])
    if isinstance(value, Mapping):
        pairs = [
            _joined(
                "pair", [_inside(f" key {key!r}", key, exact), _inside(f"[{key!r}]", one, exact)]
            )
            for key, one in value.items()
        ]
        if exact and isinstance(value, OrderedDict):
            return _joined("ordered", pairs)
        return _joined("mapping", sorted(pairs))
    if isinstance(value, Set):
        return _joined("set", sorted(_inside(f" entry {one!r}", one, exact) for one in value))
    if isinstance(value, _WRITTEN_OUT):
        return _joined("written", [_name_of(type(value)), _written(value)])
    return None


def _pairs(fields: Mapping[str, Any], exact: bool) -> list[bytes]:
    return [
        _joined("pair", [name.encode(), _inside(f".{name}", fields[name], exact)])
        for name in sorted(fields)
    ]


def _joined(kind: str, parts: Iterable[bytes]) -> bytes:
    # With its length in front, no part can be mistaken for two, or two for one.
    body = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return b"%b(%b)" % (kind.encode(), body)


def _inside(step: str, value: Any, exact: bool) -> bytes:
    try:
        return _encode(value, exact)
    except _NoContentError as error:
        raise _NoContentError(*error.args, step) from None


def _number(value: float) -> bytes:
    if isinstance(value, float):
        if math.isnan(value):
            return b"nan"
        if not value.is_integer():
            return repr(float(value)).encode()  # The shortest text that reads back as this number.
    # In base 16, because Python refuses to write integers of thousands of digits in base 10.
    return b"%x" % int(value)


def _written(value: Any) -> bytes:
    if isinstance(value, decimal.Decimal) and value.is_finite():
        value = value.normalize()
    return str(value).encode(errors="surrogatepass")


def _name_of(cls: type) -> bytes:
    return f"{cls.__module__}.{cls.__qualname__}".encode()


def _fields_of(value: Any) -> Mapping[str, Any] | None:
    """Return what takes part in ``==``, by name; None if it has no known fields."""
    cls = type(value)
    names: Iterable[str]
    if dataclasses.is_dataclass(cls):
        has_eq = cls.__dataclass_params__.eq  # type: ignore[attr-defined]
        names = [one.name for one in dataclasses.fields(cls) if one.compare or not has_eq]
    elif attrs.has(cls):
        # With no fields in its ``==``, equality is by identity, which means nothing in another
        # process.
        fields = attrs.fields(cls)
        names = [one.name for one in fields if one.eq] or [one.name for one in fields]
    else:
        for listing in ("__struct_fields__", "model_fields"):
            names = getattr(cls, listing, ())
            if isinstance(names, (tuple, Mapping)) and hasattr(cls, listing):
                break
        else:
            return None
    found = {name: getattr(value, name) for name in names}
    # What pydantic models have besides their fields, and also compare.
    for more in ("__pydantic_extra__", "__pydantic_private__"):
        beside = getattr(value, more, None)
        if isinstance(beside, Mapping) and beside:
            found.update((f"{more}.{name}", one) for name, one in beside.items())
    if _compares_itself(cls):
        found = {**_state_of(value), **found}
    return found


def _compares_itself(cls: type) -> bool:
    """Return whether a class's ``==`` was written by hand, so that it may look at anything."""
    compare = cls.__eq__
    code = getattr(compare, "__code__", None)
    if code is None or code.co_filename.startswith("<"):
        return False  # Written in C, or generated: by dataclasses, or attrs.
    top = str(compare.__module__).partition(".")[0]
    return top not in sys.stdlib_module_names and top not in ("pydantic", "attr")


def _state_of(value: Any) -> dict[str, Any]:
    """Return all of an object's own attributes, by name."""
    found: dict[str, Any] = {}
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            own = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") else name
            if name not in ("__dict__", "__weakref__") and hasattr(value, own):
                found[own] = getattr(value, own)
    return found | getattr(value, "__dict__", {})
