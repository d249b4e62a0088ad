"""Encode what a function returned as JSON, and refuse whatever JSON can't hold as it is.

Objects with fields become JSON objects, enumerations their values; dates, decimals and UUIDs become
text, bytes base64, and durations seconds, as JSON libraries write them.

Python's encoder turns ``{1: "a"}`` into ``{"1": "a"}`` and writes ``NaN``, which no other reader
accepts. Either way, the output would have a value that isn't the item's.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import json
import math
import re
import uuid
from collections.abc import Iterator, Mapping
from types import CoroutineType
from typing import Any

from harness._value_types import field_names, is_pydantic

_LINE_BREAKS = re.compile("[\x85\u2028\u2029]")


class UnwritableValueError(ValueError):
    """A function returned a value that JSON can't hold."""


def _plain(value: Any) -> Any:
    """Return what JSON has for an object of another class."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    fields = _fields_of(value)
    if fields is None or not _has_only_text_keys(fields):
        raise TypeError(f"a {type(value).__name__} can't be written as JSON")
    return fields


def _fields_of(value: Any) -> Mapping[str, Any] | None:
    if is_pydantic(type(value)):
        dumped: dict[str, Any] = value.model_dump(mode="json")
        return dumped
    names = field_names(type(value))
    return None if names is None else {name: getattr(value, name) for name in names}


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain)


def encode_value(value: Any) -> str:
    """Return ``value`` as JSON text on one line.

    Raises:
      UnwritableValueError: naming the place in ``value``, what is there, and what to return.
    """
    try:
        text = _ENCODER.encode(value)
    except RecursionError as error:
        raise UnwritableValueError(
            "the value is nested too deeply for JSON; return a flatter one"
        ) from error
    except (TypeError, ValueError, OverflowError) as error:
        raise UnwritableValueError(_complaint(value) or _in_words(error)) from error
    if not _has_only_text_keys(value):
        raise UnwritableValueError(_complaint(value) or "in JSON all keys are strings")
    return text if text.isascii() else on_one_line(text)


def encode_text(text: str) -> str:
    """Return ``text`` as a JSON string on one line."""
    encoded = _ENCODER.encode(text)
    return encoded if encoded.isascii() else on_one_line(encoded)


def on_one_line(text: str) -> str:
    """Return JSON with an escape for what some readers break lines at, or UTF-8 can't hold."""
    text = _LINE_BREAKS.sub(_escaped, text)
    try:
        text.encode()
    except UnicodeEncodeError:  # Half of a surrogate pair, as truncated text has.
        return re.sub("[\ud800-\udfff]", _escaped, text)
    return text


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _in_words(error: Exception) -> str:
    if "ircular" in str(error):
        return "the value contains itself, which JSON can't hold; return plain data"
    return f"JSON can't hold the value: {error}"


def _has_only_text_keys(value: Any) -> bool:
    """Tell whether all keys are strings, in a value that was encoded and so has no cycles.

    Every value of a batch comes through here, so it does nothing else.
    """
    ahead = [value]
    while ahead:
        part = ahead.pop()
        if isinstance(part, dict):
            for key, inner in part.items():
                if not isinstance(key, str):
                    return False
                if isinstance(inner, dict | list | tuple):
                    ahead.append(inner)
        elif isinstance(part, list | tuple):
            ahead.extend(part)
    return True


def _complaint(value: Any) -> str | None:
    """Say what in ``value`` JSON can't hold, and where; None if nothing is found."""
    for path, part in _parts(value):
        where = f"the value{path}"
        if isinstance(part, dict):
            for key in part:
                if not isinstance(key, str):
                    return (
                        f"{where} is a dict with the key {key!r}, but in JSON all keys are "
                        "strings; return the keys as str"
                    )
        elif part is None or isinstance(part, str | int | list | tuple):
            continue
        elif isinstance(part, CoroutineType):
            _close_coroutines(value)
            return (
                f"{where} is the coroutine {part.__qualname__}(), which nobody awaited; write "
                f"`await {part.__name__}(...)`"
            )
        elif isinstance(part, float):
            if not math.isfinite(part):
                return f"{where} is {part!r}, which JSON can't hold; return None or a str"
        elif not _is_written_out(part):
            advice = "a list" if isinstance(part, set | frozenset) else "dicts, lists and str"
            return (
                f"{where} is of type {type(part).__name__}, which JSON can't hold; return {advice}"
            )
    return None


def _close_coroutines(value: Any) -> None:
    """Close all that are in ``value``, or Python would warn of each besides."""
    for _, part in _parts(value):
        if isinstance(part, CoroutineType):
            part.close()


def _is_written_out(part: Any) -> bool:
    try:
        _plain(part)
    except Exception:  # Whatever a class raises for its fields.
        return _fields_of(part) is not None  # One of them is at fault, and comes later.
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield ``value`` and everything in it, each container and object once, with its place."""
    ahead: list[tuple[str, Any]] = [("", value)]
    known: set[int] = set()
    while ahead:
        path, part = ahead.pop()
        if isinstance(part, dict | list | tuple):
            if id(part) in known:  # It may contain itself.
                continue
            known.add(id(part))
            pairs = part.items() if isinstance(part, dict) else enumerate(part)
            inner = [(f"{path}[{key!r}]", item) for key, item in pairs]
            ahead.extend(reversed(inner))
        elif (fields := _fields_of(part)) is not None and id(part) not in known:
            known.add(id(part))
            ahead.extend(reversed([(f"{path}.{name}", one) for name, one in fields.items()]))
        yield path, part
