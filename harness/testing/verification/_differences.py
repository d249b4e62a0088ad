"""Tell in which places two values differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness._content import same_content
from harness._value_types import field_names
from harness.testing.verification._checks import MISSING, Difference

_LEVELS = 50
"""Deeper differences are told as one: JSON goes deeper than Python recurses."""


def differences(recorded: Any, alone: Any) -> tuple[Difference, ...]:
    """Return every place in which they differ, as deep inside as possible.

    Numbers are compared by value, so 1 is 1.0, but not true. Of objects with fields, the fields
    are compared.
    """
    return tuple(_inside("", recorded, alone, _LEVELS))


def _inside(path: str, recorded: Any, alone: Any, levels: int) -> Iterator[Difference]:
    if same_content((recorded, alone)):
        return
    before, now = _parts(recorded), _parts(alone)
    if not levels or before is None or now is None or type(recorded) is not type(alone):
        yield Difference(path, recorded, alone)
        return
    for step in before | now:
        one, other = before.get(step, MISSING), now.get(step, MISSING)
        if one is MISSING or other is MISSING:
            yield Difference(f"{path}{step}", one, other)
        else:
            yield from _inside(f"{path}{step}", one, other, levels - 1)


def _parts(value: Any) -> dict[str, Any] | None:
    """Return what is inside of a value, by the step that leads to it; None if it is whole."""
    if isinstance(value, Mapping):
        return {_step(key): one for key, one in value.items()}
    if isinstance(value, list | tuple):
        return {f"[{index}]": one for index, one in enumerate(value)}
    names = field_names(type(value))
    return None if names is None else {f".{name}": getattr(value, name) for name in names}


def _step(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"
