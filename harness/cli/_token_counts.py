"""Read off each record how many tokens it uses, by one of its fields."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator

import attrs

from harness.cli._number_field import number_field
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
    count = number_field(
        record,
        field,
        source=source,
        what="tokens {} are",
        least=0,
        most=sys.float_info.max,
        advice="tokens are a number from 0 upwards that every record has, so choose another field, "
        "or give --tokens a number for all",
    )
    return math.ceil(count)
