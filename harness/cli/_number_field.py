"""Read a number off a record, by the name of one of its fields."""

from __future__ import annotations

import math
from typing import Any

from harness.cli._errors import InputError
from harness.cli._records import Record


def number_field(
    record: Record,
    field: str,
    *,
    source: str,
    what: str,
    advice: str,
    least: float = -math.inf,
    most: float = math.inf,
) -> float:
    """Return the number in the ``field`` of a record.

    Args:
      record: A record that could be read.
      field: The field's name.
      source: The input, for the error.
      what: What the number is, and the verb for it, such as ``priority {} is``.
      advice: What to do otherwise, as the end of a sentence.
      least, most: The range of numbers allowed.

    Raises:
      InputError: if there is no such field, or no such number in it.
    """
    value = record.value
    subject = what.format(repr(field))
    if not isinstance(value, dict):
        problem = f"the record is no JSON object, so it has no field {field!r}"
    elif field not in value:
        names = ", ".join(map(repr, list(value)[:8])) or "none"
        problem = f"the {subject} missing; the record's fields are {names}"
    else:
        number = _number(value[field])
        if number is not None and least <= number <= most:
            return number
        problem = f"the {subject} {value[field]!r}"
    raise InputError(f"{source}, line {record.line}: {problem}; {advice}")


def _number(found: Any) -> float | None:
    """Return a number, also one that is written as text as in CSV; None if it is none."""
    if isinstance(found, bool) or not isinstance(found, (int, float, str)):
        return None
    try:
        number = float(found)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number
