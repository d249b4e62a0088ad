"""Read off each record how many tokens it uses, by one of its fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from harness.cli._errors import InputError
from harness.cli._records import Record


def with_token_counts(records: Iterable[Record], field: str, *, source: str) -> Iterator[Record]:
    """Yield ``records`` with the number in their ``field`` as tokens.

    A record that can't be read keeps its place, and uses none.

    Raises:
      InputError: at a record that has no such field, or no number from 0 upwards in it.
    """
    for record in records:
        if record.problem is not None:
            yield record
        else:
            yield attrs.evolve(record, tokens=_read(record, field, source))


def tokens_of(record: Record) -> int:
    """Return what was read."""
    return record.tokens


def _read(record: Record, field: str, source: str) -> int:
    value = record.value
    if not isinstance(value, dict):
        what = f"the record is no JSON object, so it has no field {field!r}"
    elif field not in value:
        names = ", ".join(map(repr, list(value)[:8])) or "none"
        what = f"the tokens {field!r} are missing; the record's fields are {names}"
    else:
        number = _number(value[field])
        if number is not None:
            return number
        what = f"the tokens {field!r} are {value[field]!r}"
    raise InputError(
        f"{source}, line {record.line}: {what}; tokens are a number from 0 upwards that every "
        "record has, so choose another field, or give --tokens a number for all"
    )


def _number(found: Any) -> int | None:
    """Return a number, also one that is written as text as in CSV; None if it is none."""
    if isinstance(found, bool) or not isinstance(found, (int, float, str)):
        return None
    try:
        number = float(found)
    except (ValueError, OverflowError):
        return None
    return math.ceil(number) if 0 <= number < math.inf else None
