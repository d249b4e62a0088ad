"""Read the types of parameters and answers: their JSON schema, and how JSON becomes their values.

msgspec does both for plain types, dataclasses, attrs and msgspec classes. What mentions pydantic is
left to pydantic, which is then loaded already. Whatever an annotation says beside the type counts
or is refused: msgspec passes over what isn't its own, so texts and the constraints of
``annotated_types`` are translated for it.
"""

from __future__ import annotations

import datetime
import functools
import operator
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import attrs
import msgspec

_CONSTRAINTS = {
    "Ge": ("ge", "ge"),
    "Gt": ("gt", "gt"),
    "Le": ("le", "le"),
    "Lt": ("lt", "lt"),
    "MaxLen": ("max_length", "max_length"),
    "MinLen": ("min_length", "min_length"),
    "MultipleOf": ("multiple_of", "multiple_of"),
    "DocInfo": ("documentation", "description"),
    "Doc": ("documentation", "description"),
}
"""For each class of ``annotated_types`` and the like: its attribute, and msgspec's name for it."""

_FORMATS: dict[Any, str] = {datetime.datetime: "date-time", datetime.time: "time"}
_TYPES_OF_VALUES = {str: "string", bool: "boolean", int: "integer", float: "number"}
_ROOT_REFERENCE = "#/$defs/"


@attrs.frozen(eq=False)
class JsonType:
    """A type, as a JSON schema and as what makes its values."""

    schema: dict[str, Any]
    """The schema, with the type itself at the root."""

    convert: Callable[[Any], Any]
    """Makes a value of what JSON holds; raises `msgspec.ValidationError` if it doesn't fit."""

    convert_loosely: Callable[[Any], Any]
    """Makes one also of what a person would say fits, such as ``"3"`` for a number."""

    to_json: Callable[[Any], Any]
    """Turns a value into what JSON can hold."""

    def decode(self, text: str | bytes) -> Any:
        """Return the value that JSON text holds.

        Raises:
          msgspec.DecodeError: if it isn't JSON, or doesn't fit the type.
        """
        return self.convert(msgspec.json.decode(text))


def read_type(type_: Any) -> JsonType:
    """Return how values of ``type_`` come from JSON.

    Raises:
      TypeError: if they can't, or if something that is said of the type would have no effect.
    """
    if mentions_pydantic(type_):
        return _of_pydantic(type_)
    known = for_msgspec(type_)
    return JsonType(
        schema_of(known),
        # In JSON the keys of every dictionary are text, even those of a dict[int, str].
        functools.partial(msgspec.convert, type=known, str_keys=True),
        functools.partial(msgspec.convert, type=known, str_keys=True, strict=False),
        functools.partial(msgspec.to_builtins, str_keys=True),
    )


def to_json(value: Any) -> Any:
    """Return ``value`` in JSON form, also where it holds pydantic's models.

    Raises:
      TypeError: if something in it has no JSON form.
    """
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_dump)


def to_json_text(value: Any) -> str:
    """Return ``value`` as JSON text, also where it holds pydantic's models."""
    return msgspec.json.encode(value, enc_hook=_dump).decode()


def _dump(value: Any) -> Any:
    if callable(dump := getattr(type(value), "model_dump", None)):
        return dump(value, mode="json")
    raise TypeError(f"objects of type {type(value).__name__} have no JSON form")


# msgspec's ----------------------------------------------------------------------------------------


def schema_of(type_: Any) -> dict[str, Any]:
    """Return the JSON schema of a type that msgspec knows, with the type itself at the root.

    Raises:
      TypeError: if the type can't be made from JSON.
    """
    schema = msgspec.json.schema(type_)
    _complete(schema)
    for class_, hints in _classes_in(type_):
        _describe_fields(schema, class_, hints)
    reference = schema.get("$ref")
    if reference is None:
        return schema
    # msgspec names every class and refers to it. Providers want an object at the root.
    definitions = schema["$defs"]
    name = reference.removeprefix(_ROOT_REFERENCE)
    root = dict(definitions[name])
    if f'"{reference}"'.encode() in msgspec.json.encode(definitions):
        root["$defs"] = definitions  # A class that refers to itself.
    elif rest := {key: value for key, value in definitions.items() if key != name}:
        root["$defs"] = rest
    return root


def for_msgspec(type_: Any) -> Any:
    """Return a type that says to msgspec all that ``type_`` says.

    Raises:
      TypeError: if msgspec can't be told.
    """
    for class_, hints in _classes_in(type_):
        for name, hint in hints.items():
            if for_msgspec_alone(hint) is not hint and _constraints_in(hint):
                raise TypeError(
                    f"the field {name!r} of {class_.__name__} has a constraint that would have no "
                    "effect there; write msgspec.Meta(ge=...) or the like"
                )
    return for_msgspec_alone(type_)


def for_msgspec_alone(type_: Any) -> Any:
    """Return the same as `for_msgspec`, not looking into classes."""
    origin, args = get_origin(type_), get_args(type_)
    if isinstance(type_, type) and type_ in _FORMATS:  # msgspec leaves most of them out.
        return Annotated[type_, msgspec.Meta(extra_json_schema={"format": _FORMATS[type_]})]
    if origin is Annotated:
        inside = for_msgspec_alone(args[0])
        metas = [made for meta in args[1:] for made in _metas(meta)]
        if inside is args[0] and metas == list(args[1:]):
            return type_
        return functools.reduce(lambda of, meta: Annotated[of, meta], metas, inside)
    if origin is Literal or not args:
        return type_
    own = tuple(for_msgspec_alone(one) for one in args)
    if all(new is old for new, old in zip(own, args, strict=True)):
        return type_
    if origin in (types.UnionType, typing.Union):
        return functools.reduce(operator.or_, own)
    return origin[own]


def _metas(meta: object) -> Iterator[object]:
    """Yield what ``meta`` says, in msgspec's words."""
    kind = type(meta)
    if isinstance(meta, str):
        yield msgspec.Meta(description=meta)
    elif getattr(meta, "__is_annotated_types_grouped_metadata__", False):
        for one in typing.cast(typing.Iterable[object], meta):
            yield from _metas(one)
    elif kind.__module__ in ("annotated_types", "typing_extensions"):
        if kind.__name__ == "Unit":
            yield msgspec.Meta(description=f"In {meta.unit}.")  # type: ignore[attr-defined]
            return
        if kind.__name__ not in _CONSTRAINTS:
            raise TypeError(
                f"{meta!r} can't be said in a JSON schema or checked here; leave it out, and check "
                "the value in the function"
            )
        theirs, ours = _CONSTRAINTS[kind.__name__]
        value = getattr(meta, theirs)
        if value not in (None, 0) or not theirs.startswith("m"):
            said: dict[str, Any] = {ours: value}
            yield msgspec.Meta(**said)
    else:
        yield meta


def _constraints_in(type_: Any) -> bool:
    """Return whether an annotation says more than texts that msgspec passes over."""
    if get_origin(type_) is Annotated:
        own = (meta for meta in type_.__metadata__ if not isinstance(meta, str | msgspec.Meta))
        if any(list(_metas(meta)) != [meta] for meta in own):
            return True
    return any(_constraints_in(one) for one in get_args(type_))


def _classes_in(type_: Any) -> Iterator[tuple[type, dict[str, Any]]]:
    """Yield each class with fields that ``type_`` is or holds, with the types of its fields."""
    seen: set[Any] = set()
    left = [type_]
    while left:
        one = left.pop()
        if get_args(one):
            left.extend(get_args(one))
            one = get_origin(one)
        if not isinstance(one, type) or one in seen or not _has_fields(one):
            continue
        seen.add(one)
        try:
            hints = typing.get_type_hints(one, include_extras=True)
        except (NameError, TypeError):  # msgspec says what is wrong, in its own words.
            continue
        yield one, hints
        left.extend(hints.values())


def _has_fields(class_: type) -> bool:
    return (
        is_dataclass(class_)
        or attrs.has(class_)
        or issubclass(class_, msgspec.Struct)
        or hasattr(class_, "__required_keys__")  # Either module's TypedDict.
        or (issubclass(class_, tuple) and hasattr(class_, "_fields"))
    )


def _complete(schema: Any) -> None:
    """Add the type to each choice of values; some providers require it."""
    if isinstance(schema, list):
        for one in schema:
            _complete(one)
    elif isinstance(schema, dict):
        values = schema.get("enum")
        if isinstance(values, list) and "type" not in schema:
            kinds = {type(value) for value in values}
            if len(kinds) == 1 and (kind := _TYPES_OF_VALUES.get(kinds.pop())):
                schema["type"] = kind
        for name, value in schema.items():
            if name not in ("default", "enum", "examples"):
                _complete(value)


def _describe_fields(schema: dict[str, Any], class_: type, hints: Mapping[str, Any]) -> None:
    """Put texts beside the types of a class's fields into its schema."""
    properties = schema.get("$defs", {}).get(class_.__name__, {}).get("properties", {})
    for name, hint in hints.items():
        if get_origin(hint) is Annotated and name in properties:
            for text in hint.__metadata__:
                if isinstance(text, str):
                    properties[name]["description"] = text


# pydantic's ---------------------------------------------------------------------------------------


def mentions_pydantic(type_: Any) -> bool:
    """Return whether ``type_`` is pydantic's, or says something in its words.

    Raises:
      TypeError: if that is inside a class that pydantic doesn't know.
    """
    if "pydantic" not in sys.modules:
        return False
    if _is_of_pydantic(type_):
        return True
    for class_, hints in _classes_in(type_):
        for name, hint in hints.items():
            if _is_of_pydantic(hint):
                if attrs.has(class_) or issubclass(class_, msgspec.Struct):
                    raise TypeError(
                        f"the field {name!r} of {class_.__name__} is of pydantic, which doesn't "
                        "know that class; make it a dataclass, or a pydantic model"
                    )
                return True
    return False


def _is_of_pydantic(type_: Any) -> bool:
    own = getattr(type_, "__metadata__", ()) if get_origin(type_) is Annotated else ()
    return (
        any(_is_from_pydantic(type(meta)) for meta in own)
        or (isinstance(type_, type) and any(map(_is_from_pydantic, type_.__mro__)))
        or hasattr(type_, "__pydantic_fields__")
        or any(_is_of_pydantic(one) for one in get_args(type_))
    )


def _is_from_pydantic(class_: type) -> bool:
    return class_.__module__.partition(".")[0] in ("pydantic", "pydantic_core")


def _of_pydantic(type_: Any) -> JsonType:
    pydantic = sys.modules["pydantic"]
    _refuse_unused(type_)
    try:
        adapter = pydantic.TypeAdapter(type_)
        schema = adapter.json_schema()
    except pydantic.PydanticUserError as error:
        raise TypeError(error.message) from error

    def convert(value: Any) -> Any:
        try:
            return adapter.validate_json(msgspec.json.encode(value))
        except pydantic.ValidationError as error:
            raise msgspec.ValidationError(_words(error)) from error

    return JsonType(schema, convert, convert, functools.partial(adapter.dump_python, mode="json"))


def _refuse_unused(type_: Any) -> None:
    """Refuse what pydantic reads only of the fields of a model."""
    for meta in getattr(type_, "__metadata__", ()):
        if type(meta).__name__ != "FieldInfo":
            continue
        for name in ("alias", "validation_alias", "default_factory"):
            if getattr(meta, name, None) is not None:
                raise TypeError(f"Field({name}=...) has no effect here; leave it out")
        if not meta.is_required():
            raise TypeError(
                "Field(default=...) has no effect here; write the default after the annotation"
            )


def _words(error: Any) -> str:
    """Return pydantic's error in the words that msgspec would use, for the model."""
    misfits = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(
        f"{misfit['msg']} - at `${''.join(_step(step) for step in misfit['loc'])}`"
        for misfit in misfits
    )


def _step(step: object) -> str:
    return f"[{step}]" if isinstance(step, int) else f".{step}"
