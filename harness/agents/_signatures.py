"""Make a JSON schema and a validator from a function's typed signature.

msgspec does both from one struct whose fields are the parameters. A parameter with a default may be
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

    def bind(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments to call the function with, validated and of the right types.

        Raises:
          ToolArgumentsError: if they don't fit.
        """
        try:
            # In JSON the keys of every dictionary are text, even those of a dict[int, str].
            valid = msgspec.convert(_own(arguments), self._struct, str_keys=True)
        except msgspec.ValidationError as error:
            raise ToolArgumentsError(str(error)) from error
        except Exception as error:  # From the class's own checks, such as __post_init__.
            raise ToolArgumentsError(error_in_words(error)) from error
        named = {
            field: value
            for field in self._struct.__struct_fields__
            if (value := getattr(valid, field)) is not msgspec.UNSET
        }
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
    for parameter in parameters:
        if star := _REFUSED_KINDS.get(parameter.kind):
            raise TypeError(
                f"tool {name!r} takes {star}{parameter.name}, so a model can't be told what to "
                "give; write each parameter with its name and type"
            )
        if parameter.name not in hints:
            raise TypeError(_untyped(name, parameter.name))
        type_: Any = hints[parameter.name]
        if text := texts.get(parameter.name):
            type_ = typing.Annotated[type_, msgspec.Meta(description=text)]
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
            "plain types, or dataclasses, attrs or msgspec classes of such"
        ) from error
    schema.pop("title", None)
    for parameter_name, default in defaults.items():
        _show_default(schema["properties"][parameter_name], default)
    return Signature(description, schema, struct, tuple(positional_only))


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


def schema_of(type_: Any) -> dict[str, Any]:
    """Return the JSON schema of a type, with the type itself at the root.

    Raises:
      TypeError: if the type can't be made from JSON.
    """
    schema = msgspec.json.schema(type_)
    reference = schema.get("$ref")
    if reference is None:
        return schema
    # msgspec names every class and refers to it. Providers want an object at the root.
    definitions = schema["$defs"]
    name = reference.removeprefix("#/$defs/")
    root = dict(definitions[name])
    if f'"{reference}"'.encode() in msgspec.json.encode(definitions):
        root["$defs"] = definitions  # A class that refers to itself.
    elif rest := {key: value for key, value in definitions.items() if key != name}:
        root["$defs"] = rest
    return root


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
        schema["default"] = msgspec.to_builtins(default)
    except (TypeError, ValueError):
        return
