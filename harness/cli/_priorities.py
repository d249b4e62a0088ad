"""Read off each record how urgent it is, by one of its fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from harness.cli._errors import InputError
from harness.cli._records import Record


def with_priorities(records: Iterable[Record], field: str, *, source: str) -> Iterator[Record]:
    """Yield ``records`` with the number in their ``field`` as priority.

    A record that can't be read keeps its place, before all others: that it fails is then known
    soon.

    Raises:
      InputError: at a record that has no such field, or no number in it.
    """
    for record in records:
        if record.problem is not None:
            yield attrs.evolve(record, priority=math.inf)
        else:
            yield attrs.evolve(record, priority=_priority_of(record, field, source))


def _priority_of(record: Record, field: str, source: str) -> float:
    value = record.value
    if not isinstance(value, dict):
        what = f"the record is no JSON object, so it has no field {field!r}"
    elif field not in value:
        names = ", ".join(map(repr, list(value)[:8])) or "none"
        what = f"the priority {field!r} is missing; the record's fields are {names}"
    else:
        number = _number(value[field])
        if number is not None:
            return number
        what = f"the priority {field!r} is {value[field]!r}"
    raise InputError(
        f"{source}, line {record.line}: {what}; a priority is a number that every record has, the "
        "larger the sooner, so choose another field, or leave --priority out to keep the order"
    )


def _number(found: Any) -> float | None:
    """Return a number, also one that is written as text as in CSV; None if it is none."""
    if isinstance(found, bool) or not isinstance(found, (int, float, str)):
        return None
    try:
        number = float(found)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number
