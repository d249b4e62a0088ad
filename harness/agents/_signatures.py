"""Make a JSON schema and a validator from a function's typed signature.

msgspec does both from one struct whose fields are the parameters; a parameter whose type is
pydantic's is anything to it, and read by pydantic. A parameter with a default may be
left out; it is then left out of the call too, so that the function's own default applies.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import msgspec

from harness._words import error_in_words
from harness.agents._docstrings import read_docstring
from harness.agents._types import (
    JsonType,
    for_msgspec,
    mentions_pydantic,
    read_type,
    schema_of,
    to_json,
)
from harness.errors import ToolArgumentsError

_REFUSED_KINDS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


@attrs.frozen(eq=False)
class Signature:
    """What a model may call a function with, and how to check it."""

    description: str
    """What the docstring says, without the parameters."""

    schema: dict[str, Any]
    """A JSON schema of an object with the parameters."""

    _struct: type[msgspec.Struct]
    _positional_only: tuple[tuple[str, Any], ...]
    """Names and defaults of parameters that can't be given by name."""
    _of_pydantic: Mapping[str, JsonType]
    """The types of the parameters that pydantic reads."""

    def bind(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments to call the function with, validated and of the right types.

        Raises:
          ToolArgumentsError: if they don't fit.
        """
        try:
            # In JSON the keys of every dictionary are text, even those of a dict[int, str].
            valid = msgspec.convert(_own(arguments), self._struct, str_keys=True)
            named = {
                field: value
                for field in self._struct.__struct_fields__
                if (value := getattr(valid, field)) is not msgspec.UNSET
            }
            for name in self._of_pydantic.keys() & named:
                named[name] = _converted(self._of_pydantic[name], named[name], name)
        except msgspec.ValidationError as error:
            raise ToolArgumentsError(str(error)) from error
        except Exception as error:  # From the class's own checks, such as __post_init__.
            raise ToolArgumentsError(error_in_words(error)) from error
        if not self._positional_only:
            return [], named
        return [named.pop(name, default) for name, default in self._positional_only], named


def read_signature(fn: Callable[..., Any], name: str) -> Signature:
    """Return the signature of the tool ``name``, made from ``fn``.

    Raises:
      TypeError: if a parameter has no type, takes any number of arguments, or has a type that can't
        be made from JSON.
    """
    try:
        parameters = inspect.signature(fn).parameters.values()
        hints = typing.get_type_hints(_typed_function(fn), include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise TypeError(
            f"the types of tool {name!r} can't be read: {error}; import what its annotations name "
            "at the top of its module, outside `if TYPE_CHECKING`"
        ) from error
    description, texts = read_docstring(inspect.getdoc(_typed_function(fn)))
    fields: list[Any] = []
    positional_only: list[tuple[str, Any]] = []
    defaults: dict[str, Any] = {}
    of_pydantic: dict[str, JsonType] = {}
    for parameter in parameters:
        if star := _REFUSED_KINDS.get(parameter.kind):
            raise TypeError(
                f"tool {name!r} takes {star}{parameter.name}, so a model can't be told what to "
                "give; write each parameter with its name and type"
            )
        if parameter.name not in hints:
            raise TypeError(_untyped(name, parameter.name))
        try:
            type_ = hints[parameter.name]
            if mentions_pydantic(type_) or mentions_pydantic(type(parameter.default)):
                type_, of_pydantic[parameter.name] = _left_to_pydantic(type_, parameter)
            else:
                type_ = for_msgspec(type_)
        except TypeError as error:
            raise TypeError(f"parameter {parameter.name!r} of tool {name!r}: {error}") from error
        if parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, type_))
        else:
            fields.append((parameter.name, type_ | msgspec.UnsetType, msgspec.UNSET))
            defaults[parameter.name] = parameter.default
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            positional_only.append((parameter.name, parameter.default))
    try:
        struct = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        schema = schema_of(struct)
    except (TypeError, RuntimeError) as error:  # The latter for names that Python mangles.
        raise TypeError(
            f"tool {name!r} has a parameter that can't be made from JSON: {why_not(error)}; use "
            "plain types, dataclasses, attrs or msgspec classes of such, or pydantic's models"
        ) from error
    schema.pop("title", None)
    for parameter_name, read in of_pydantic.items():
        own = dict(read.schema)
        _add_definitions(schema, own.pop("$defs", {}), name)
        schema["properties"][parameter_name] = own
    for parameter_name, default in defaults.items():
        _show_default(schema["properties"][parameter_name], default)
    for parameter_name, of_parameter in schema["properties"].items():
        if parameter_name in texts:
            of_parameter.setdefault("description", texts[parameter_name])
    return Signature(description, schema, struct, tuple(positional_only), of_pydantic)


def _left_to_pydantic(type_: Any, parameter: inspect.Parameter) -> tuple[Any, JsonType]:
    """Return a type that takes anything, and the one that pydantic reads instead."""
    if type(parameter.default).__name__ == "FieldInfo":
        raise TypeError(
            "its default is a Field(), which only the fields of a model can have; write "
            "Annotated[int, Field(...)], or whatever the type is"
        )
    return Any, read_type(type_)


def _converted(type_: JsonType, value: Any, name: str) -> Any:
    try:
        return type_.convert(value)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(str(error).replace("`$", f"`$.{name}")) from error


def _add_definitions(schema: dict[str, Any], more: dict[str, Any], tool: str) -> None:
    """Add pydantic's definitions to msgspec's; both refer to a class by its name."""
    known = schema.setdefault("$defs", {}) if more else {}
    for name, definition in more.items():
        if known.setdefault(name, definition) != definition:
            raise TypeError(
                f"tool {tool!r} has parameters of two classes of the name {name}, which a model "
                "can't tell apart; rename one"
            )


def _own(value: Any) -> Any:
    """Return a copy of JSON with its own lists and dictionaries, for a function that changes them.

    Values of no particular type, as in a plain ``dict``, are handed on as they are, and the same
    arguments are in the history; perhaps also in a script or recording that other runs use.
    """
    if isinstance(value, Mapping):
        return {key: _own(inner) for key, inner in value.items()}
    if type(value) is list:
        return [_own(inner) for inner in value]
    return value


def why_not(error: Exception) -> str:
    """Return what msgspec says of a type, without its advice on hooks, which users don't have."""
    return str(error).strip().splitlines()[-1]


def _typed_function(fn: Callable[..., Any]) -> Any:
    """Return what has the annotations: the function, or the ``__call__`` of a callable object."""
    if isinstance(fn, functools.partial):
        raise TypeError("a partial has no types of its own; wrap it in a function that does")
    if inspect.isroutine(fn):
        return fn
    return type(fn).__call__


def _untyped(tool: str, parameter: str) -> str:
    if parameter in ("self", "cls"):
        return (
            f"tool {tool!r} is made of a method that has no object yet; make it of the bound one, "
            "as in tool(database.lookup)"
        )
    return (
        f"tool {tool!r} has no type for its parameter {parameter!r}, so a model can't be told "
        f"what to give; write {parameter}: str, or whatever it is"
    )


def _show_default(schema: dict[str, Any], default: Any) -> None:
    """Tell the model a default, if JSON can express it."""
    try:
        schema["default"] = to_json(default)
    except (TypeError, ValueError):
        return
