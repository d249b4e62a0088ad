"""Bring a JSON schema into the form that providers can enforce while they write.

They accept a part of JSON schema: every object closed, no bounds on numbers and lengths. The caller
checks the answer against the whole schema anyway, so leaving out a bound loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NOT_ENFORCED = frozenset(
    {
        "default",
        "discriminator",
        "examples",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "pattern",
        "uniqueItems",
    }
)
# Their values are names that users chose, not keywords of JSON schema.
_OF_NAMES = frozenset({"properties", "$defs", "definitions"})


def root_object(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return ``schema`` with an object at its root, or ``None`` if it describes something else."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        definitions = schema.get("$defs")
        if isinstance(definitions, Mapping):
            target = definitions.get(reference.removeprefix("#/$defs/"))
            if isinstance(target, Mapping) and "$ref" not in target:
                return root_object({**target, "$defs": dict(definitions)})
    return dict(schema) if schema.get("type") == "object" else None


def enforceable(schema: Mapping[str, Any], *, all_required: bool) -> dict[str, Any] | None:
    """Return ``schema`` in a form that can be enforced, or ``None`` if it has none.

    Args:
      schema: A schema with an object at its root.
      all_required: Whether the provider wants every property of an object to be required.
    """
    try:
        closed: dict[str, Any] = _closed(schema, all_required)
    except _Open:
        return None
    return closed


class _Open(Exception):
    """The schema allows an object properties that it doesn't name."""


def _closed(schema: Any, all_required: bool) -> Any:
    if isinstance(schema, list):
        return [_closed(entry, all_required) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _NOT_ENFORCED:
            continue
        if word in _OF_NAMES and isinstance(value, Mapping):
            closed[word] = {name: _closed(named, all_required) for name, named in value.items()}
        elif word in ("enum", "const"):
            closed[word] = value
        else:
            closed[word] = _closed(value, all_required)
    if schema.get("type") == "object":
        properties = schema.get("properties") or {}
        if not properties or schema.get("additionalProperties") not in (None, False):
            raise _Open
        if all_required and set(properties) - set(schema.get("required") or ()):
            raise _Open
        closed["additionalProperties"] = False
    return closed
