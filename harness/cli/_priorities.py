"""Read off each record how urgent it is, by one of its fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import attrs

from harness.cli._number_field import number_field
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
    return number_field(
        record,
        field,
        source=source,
        what="priority {} is",
        advice="a priority is a number that every record has, the larger the sooner, so choose "
        "another field, or leave --priority out to keep the order",
    )
