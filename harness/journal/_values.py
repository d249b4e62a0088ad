"""Write values that JSON has no form for as JSON, so that they come back as they were.

What JSON can't hold becomes an object with two fields: ``{"$": "date", "v": "2030-01-01"}``. An
object of a class with fields has the name of its class there, and its fields.

A name in a file decides nothing by itself: it only chooses among the classes that the function or
the caller names, and those of the values that were written before. Nothing is imported.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import uuid
import warnings
import zoneinfo
from collections.abc import Callable, Collection
from typing import Any, cast

import attrs

from harness._json_value import encode_value
from harness._value_types import ValueTypes, field_names, is_pydantic
from harness.errors import HarnessWarning
from harness.fanout import DROP, Drop

TAG = '"$":'
"""Only a text with this in it has anything that JSON doesn't. In strings the quotes are escaped."""

_from_json = json.JSONDecoder().raw_decode
"""A third of what `json.loads` takes for a small value."""

_BASES = (str, int, float, list, dict, tuple)


def _write_time(value: datetime.datetime | datetime.time) -> Any:
    zone = value.tzinfo
    return (
        [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, zone]
        if zone or value.fold
        else (value.isoformat())
    )


def _read_time(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    def read_one(plain: Any) -> Any:
        if isinstance(plain, str):
            return read(plain)
        text, fold, zone = plain
        return read(text).replace(fold=fold, tzinfo=zone)

    return read_one


_FORMS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: ("tuple", list, tuple),
    set: ("set", list, set),
    frozenset: ("frozenset", list, frozenset),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
    bytearray: (
        "bytearray",
        lambda value: base64.b64encode(value).decode(),
        lambda plain: bytearray(base64.b64decode(plain)),
    ),
    datetime.date: ("date", str, datetime.date.fromisoformat),
    datetime.datetime: ("datetime", _write_time, _read_time(datetime.datetime.fromisoformat)),
    datetime.time: ("time", _write_time, _read_time(datetime.time.fromisoformat)),
    datetime.timedelta: (
        "timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda plain: datetime.timedelta(*plain),
    ),
    datetime.timezone: (
        "timezone",
        lambda value: list(value.__getinitargs__()),
        lambda plain: datetime.timezone(*plain),
    ),
    zoneinfo.ZoneInfo: ("zone", lambda value: value.key, zoneinfo.ZoneInfo),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    uuid.UUID: ("uuid", str, uuid.UUID),
    Drop: ("drop", lambda _: None, lambda _: DROP),
}
"""For each class the name of its form, and how to write and read it."""

_READERS = {name: read for name, _, read in _FORMS.values()}
_READERS["dict"] = dict


class Values:
    """Writes and reads values that may be of some known classes.

    Args:
      classes: Classes with fields, and enumerations.
    """

    def __init__(self, classes: Collection[type] = ()) -> None:
        self.classes: frozenset[type] = frozenset(classes)
        self._by_name = {_name_of(cls): cls for cls in self.classes}
        """Those, and the others that were written."""

    def plain(self, value: Any) -> Any:
        """Return the value in a form that JSON can hold.

        Raises:
          TypeError: if something in it is of a class that has no form, or isn't known.
        """
        cls = type(value)
        if cls is str or cls is int or cls is float or cls is bool or value is None:
            return value
        if cls is list:
            return [self.plain(one) for one in value]
        if cls in self.classes:
            return {"$": _name_of(cls), "v": self._fields(value)}
        if (form := _FORMS.get(cls)) is not None:
            return {"$": form[0], "v": self.plain(form[1](value))}
        if isinstance(value, dict):
            if all(type(key) is str and key != "$" for key in value):
                return {key: self.plain(one) for key, one in value.items()}
            pairs = [[self.plain(key), self.plain(one)] for key, one in value.items()]
            return {"$": "dict", "v": pairs}
        if isinstance(value, enum.Enum) or field_names(cls) is not None:
            self._learn(cls)
            return {"$": _name_of(cls), "v": self._fields(value)}
        # It comes back as what it is derived from, which equals it.
        if isinstance(value, tuple):
            return {"$": "tuple", "v": [self.plain(one) for one in value]}
        if isinstance(value, list):
            return [self.plain(one) for one in value]
        if isinstance(value, str | int | float):
            return value
        raise TypeError(f"it is or has {_a(cls)}, which can't be written as JSON")

    def _learn(self, cls: type) -> None:
        """Take note of a class that only a value tells of: the next session won't know it."""
        if self._by_name.get(_name_of(cls)) is cls:
            return
        warnings.warn(
            f"a value is or has {_a(cls)}, and the function doesn't say that it returns one: a "
            f"later session can't read it before it does; {_advice(cls.__qualname__)}",
            HarnessWarning,
            stacklevel=2,
        )
        types = ValueTypes()
        types.add(cls)
        self._by_name.update((_name_of(one), one) for one in types.classes)

    def read(self, text: str) -> Any:
        """Return the value of a text in this form.

        Raises:
          ValueError: if it has a class that isn't known, or doesn't fit its class any more.
        """
        plain: Any = None
        try:
            plain, end = _from_json(text)
        except ValueError:
            end = -1
        if end != len(text):  # It isn't as we write it: the caller's own, or damaged.
            plain = json.loads(text)
        return self._read(plain) if TAG in text else plain

    # Objects ----------------------------------------------------------------------------------

    def _read(self, plain: Any) -> Any:
        if type(plain) is list:
            return [self._read(one) for one in plain]
        if type(plain) is not dict:
            return plain
        name = plain.get("$")
        if name is None:
            return {key: self._read(one) for key, one in plain.items()}
        if (reader := _READERS.get(name)) is not None:
            return reader(self._read(plain["v"]))
        cls = self._class_of(name)  # First of all, so that an error names the outermost.
        return self._object(cls, self._read(plain["v"]))

    def _class_of(self, name: str) -> type:
        if (cls := self._by_name.get(name)) is not None:
            return cls
        # A script's module has another name where it is imported.
        _, _, short = name.partition(":")
        same = [cls for cls in self.classes if cls.__qualname__ == short]
        if len(same) != 1:
            raise ValueError(
                f"it has a {short}, and the function doesn't say that it returns one; "
                f"{_advice(short)}"
            )
        return same[0]

    def _fields(self, value: Any) -> Any:
        cls = type(value)
        if isinstance(value, enum.Enum):
            return value.value if isinstance(value, enum.Flag) else value.name
        if is_pydantic(cls):
            return self._of_pydantic(value)
        names = field_names(cls)
        assert names is not None
        if isinstance(value, _BASES) and not hasattr(cls, "_fields"):
            raise TypeError(f"it is or has {_a(cls)}, which is more than its fields")
        more = [one for one in getattr(value, "__dict__", {}) if one not in names]
        if more := [one for one in more if not hasattr(cls, one)]:
            raise TypeError(f"it is or has {_a(cls)} with {more[0]!r}, which is none of its fields")
        return {one: self.plain(getattr(value, one)) for one in names if hasattr(value, one)}

    def _of_pydantic(self, value: Any) -> Any:
        state = value.__getstate__()
        names = field_names(type(value)) or ()
        fields = {name: one for name, one in state["__dict__"].items() if name in names}
        try:
            return self.plain({**state, "__dict__": fields})
        except TypeError:
            # It has what pydantic alone knows how to write.
            text = value.model_dump_json(by_alias=True)
            if type(value).model_validate_json(text) != value:
                raise
            return text

    def _object(self, cls: type, plain: Any) -> Any:
        if issubclass(cls, enum.Enum):
            return cls(plain) if issubclass(cls, enum.Flag) else cls[plain]
        if is_pydantic(cls):
            return _pydantic(cls, plain)
        names = field_names(cls) or ()
        if unknown := [one for one in plain if one not in names]:
            raise ValueError(f"a {cls.__qualname__} has no {unknown[0]!r} any more")
        if hasattr(cls, "__struct_fields__"):
            return cls(**plain)
        fields = {name: plain[name] if name in plain else _default(cls, name) for name in names}
        if issubclass(cls, tuple):
            return tuple.__new__(cls, fields.values())
        made = object.__new__(cls)
        for name, value in fields.items():
            if value is not _UNSET:
                object.__setattr__(made, name, value)
        if hasattr(cls, "_attrs_cached_hash"):
            object.__setattr__(made, "_attrs_cached_hash", None)
        return made


class Shown(Values):
    """Values for other programs: of objects only the fields, of enumerations the names."""

    def _learn(self, cls: type) -> None:
        """Take any class: nothing of it is read back into it."""

    def _class_of(self, name: str) -> type:
        return object

    def _object(self, cls: type, plain: Any) -> Any:
        if isinstance(plain, dict) and "__pydantic_fields_set__" in plain:
            return {**plain["__dict__"], **(plain["__pydantic_extra__"] or {})}
        return plain


def shown_text(text: str) -> str:
    """Return the text of an input or a value without the names of classes, as JSON if possible."""
    if TAG not in text:
        return text
    try:
        return encode_value(Shown().read(text))
    except Exception:  # A set, for instance, or text of the caller's own encode=.
        return text


def shown_value(text: str) -> Any:
    """Return an input or a value, of objects only the fields; its text if it isn't JSON."""
    try:
        return Shown().read(text)
    except Exception:  # Text of the caller's own encode=.
        return text


_UNSET = object()
_FACTORY: Any = attrs.Factory  # To type checkers it is a function.


def _default(cls: type, name: str) -> Any:
    """Return what a field that the class has got since is set to."""
    if issubclass(cls, tuple):
        defaults: dict[str, Any] = getattr(cls, "_field_defaults", {})
        if name in defaults:
            return defaults[name]
    elif dataclasses.is_dataclass(cls):
        field = cls.__dataclass_fields__[name]
        if field.default is not dataclasses.MISSING:
            return field.default
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        if not field.init:
            return _UNSET
    else:
        attribute = attrs.fields_dict(cast("Any", cls))[name]
        default: Any = attribute.default
        if isinstance(default, _FACTORY):
            if not default.takes_self:
                return default.factory()
        elif default is not attrs.NOTHING:
            return default
        if not attribute.init:
            return _UNSET
    raise ValueError(f"a {cls.__qualname__} has {name!r} now, which has no default")


def _pydantic(cls: Any, plain: Any) -> Any:
    if isinstance(plain, str):
        return cls.model_validate_json(plain)
    given = plain["__dict__"]
    fields = cls.__pydantic_fields__
    if unknown := [one for one in given if one not in fields]:
        raise ValueError(f"a {cls.__qualname__} has no {unknown[0]!r} any more")
    for name, field in fields.items():
        if name not in given:
            if field.is_required():
                raise ValueError(f"a {cls.__qualname__} has {name!r} now, which has no default")
            given[name] = field.get_default(call_default_factory=True, validated_data=given)
    made = cls.__new__(cls)
    made.__setstate__(plain)
    return made


def _advice(name: str) -> str:
    return f"annotate the function with -> {name}, or give open_journal() types=[{name}]"


def _a(cls: type) -> str:
    name = cls.__qualname__.rpartition("<locals>.")[2]
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


def _name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
