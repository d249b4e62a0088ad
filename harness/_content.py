"""Say of two values whether they have the same content, by a hash of it.

The hash is the same in every process and on every machine. It is made of what JSON would keep,
and of a little more:

- ``None``, booleans, text, bytes. Numbers by their value, so ``1`` and ``1.0`` are the same, as
  ``==`` has it; but ``True`` is not ``1``, and nan is the same as nan.
- Lists and tuples are the same if their entries are, in order. Sets, in any order.
- Mappings, in any order of their keys.
- Dataclasses, attrs classes, and classes that list their fields in ``__struct_fields__`` (msgspec)
  or ``model_fields`` (pydantic): the class, and the fields that take part in its ``==``.
- Enumerations, dates and times, UUIDs, decimals, fractions, complex numbers and paths.

Everything else has no content that can be seen from outside.
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
import uuid
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import attrs

_DIGEST_BYTES = 16
"""Two of a billion values are mistaken for each other once in 10 ** 20 times."""

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


class _NoContentError(Exception):
    """There is something without visible content inside; the arguments lead to it."""


def content_hash(value: Any) -> str:
    """Return a hash of the value's content, in hexadecimal: the same if the content is the same.

    Raises:
      TypeError: if the value, or one inside it, has no content that can be seen; or if it contains
        itself or is nested too deeply.
    """
    try:
        encoded = _encode(value)
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
    """Return whether all have the same content; those without visible content by ``==``."""
    first, *others = values
    try:
        wanted = content_hash(first)
        return all(content_hash(other) == wanted for other in others)
    except TypeError:
        return all(bool(first == other) for other in others)


def _encode(value: Any) -> bytes:
    """Return bytes that are equal just if the content is: each part says its kind and length."""
    if value is None or isinstance(value, bool):
        return _joined("constant", [repr(value).encode()])
    if isinstance(value, enum.Enum):
        return _joined("enum", [_name_of(type(value)), value.name.encode()])
    if isinstance(value, str):
        return _joined("text", [value.encode(errors="surrogatepass")])
    if isinstance(value, (int, float)):
        return _joined("number", [_number(value)])
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _joined("bytes", [bytes(value)])
    if isinstance(value, (list, tuple)):
        return _joined("list", [_inside(f"[{i}]", one) for i, one in enumerate(value)])
    if isinstance(value, Mapping):
        pairs = [
            _joined("pair", [_inside(f" key {key!r}", key), _inside(f"[{key!r}]", one)])
            for key, one in value.items()
        ]
        return _joined("mapping", sorted(pairs))
    if isinstance(value, Set):
        return _joined("set", sorted(_inside(f" entry {one!r}", one) for one in value))
    if isinstance(value, _WRITTEN_OUT):
        return _joined("written", [_name_of(type(value)), _written(value)])
    fields = _fields_of(value)
    if fields is None:
        raise _NoContentError(value)
    parts = [
        _joined("pair", [name.encode(), _inside(f".{name}", getattr(value, name))])
        for name in sorted(fields)
    ]
    return _joined("object", [_name_of(type(value)), *parts])


def _joined(kind: str, parts: Iterable[bytes]) -> bytes:
    # With its length in front, no part can be taken for two, nor two for one.
    body = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return b"%b(%b)" % (kind.encode(), body)


def _inside(step: str, value: Any) -> bytes:
    try:
        return _encode(value)
    except _NoContentError as error:
        raise _NoContentError(*error.args, step) from None


def _number(value: float) -> bytes:
    if isinstance(value, float):
        if math.isnan(value):
            return b"nan"
        if not value.is_integer():
            return repr(float(value)).encode()  # The shortest text that reads back as this number.
    # In base 16, as Python refuses to write out whole numbers of thousands of digits in base 10.
    return b"%x" % int(value)


def _written(value: Any) -> bytes:
    if isinstance(value, decimal.Decimal) and value.is_finite():
        value = value.normalize()
    return str(value).encode(errors="surrogatepass")


def _name_of(cls: type) -> bytes:
    return f"{cls.__module__}.{cls.__qualname__}".encode()


def _fields_of(value: Any) -> Iterator[str] | None:
    """Return the names of the fields that take part in ``==``; None if it has no known fields."""
    cls = type(value)
    if dataclasses.is_dataclass(cls):
        return (field.name for field in dataclasses.fields(cls) if field.compare)
    if attrs.has(cls):
        return (field.name for field in attrs.fields(cls) if field.eq)
    for listing in ("__struct_fields__", "model_fields"):
        names = getattr(cls, listing, None)
        if isinstance(names, (tuple, Mapping)):
            return iter(names)
    return None
