"""Name each record by one of its fields, and refuse two of the same name.

A result is found again by its key, so a batch with a record that has none, or with two that
share one, could not be trusted. Of each key seen only a digest is kept: the memory per record is
the same for short keys and long ones.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from harness.cli._errors import InputError
from harness.cli._records import Record

_DIGEST_BYTES = 16


def with_keys(records: Iterable[Record], field: str, *, source: str) -> Iterator[Record]:
    """Yield ``records`` with the value of their ``field`` as key.

    A record that can't be read keeps its place and has no key.

    Raises:
      InputError: at a record that has no such field, nothing in it, or what an earlier record
        has there.
    """
    seen: set[bytes] = set()
    for record in records:
        if record.problem is not None:
            yield attrs.evolve(record, key=None)
            continue
        key = _key_of(record, field, source)
        digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES)
        known = len(seen)
        seen.add(digest.digest())
        if len(seen) == known:
            raise InputError(
                f"{source}, line {record.line}: the key {field!r} is {key!r}, as in an earlier "
                "record; a key names one record, so choose another field or remove one of them"
            )
        yield attrs.evolve(record, key=key)


def _key_of(record: Record, field: str, source: str) -> str:
    value = record.value
    if isinstance(value, dict):
        found = value.get(field)
        if isinstance(found, str) and found:
            return found
        if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found):
            return str(found)
        what = _missing(value, field)
    else:
        what = f"the record is no JSON object, so it has no field {field!r}"
    raise InputError(
        f"{source}, line {record.line}: {what}; a key is text or a number that every record has, "
        "so choose another field, or leave --key out to count the records"
    )


def _missing(value: dict[str, Any], field: str) -> str:
    if field not in value:
        names = ", ".join(map(repr, list(value)[:8])) or "none"
        return f"the key {field!r} is missing; the record's fields are {names}"
    found = value[field]
    if found is None or found == "":
        return f"the key {field!r} is empty"
    return f"the key {field!r} is of type {type(found).__name__}"
