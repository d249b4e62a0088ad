"""Read from each record what the command line asks for: its key, its prompt, numbers.

A batch that skipped a record without one of these could not be trusted, so such a record ends it,
with an error that names its line. Only a digest of each key is kept: short and long keys take the
same memory.
"""

from __future__ import annotations

import difflib
import hashlib
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from harness.cli._errors import InputError
from harness.cli._records import Record

_DIGEST_BYTES = 16
_NAMES_SHOWN = 8


@attrs.frozen(kw_only=True)
class FieldKind:
    """What a field is for, and what may be in it."""

    attribute: str
    """The attribute of a record that takes what was read."""

    convert: Callable[[Any], Any]
    """Returns what is taken from a field's value; None if it isn't a fitting value."""

    subject: str
    """Begins a complaint about what is in the field, such as ``the key {} is``."""

    missing: str
    """Says that there is no such field."""

    advice: str
    """What to do then, as a sentence's end."""

    shown: Callable[[Any], str] = repr
    """Says what is there instead."""

    unreadable: Any = None
    """What a record that can't be read gets."""

    unique: bool = False
    """Whether no two records may have the same value."""


@attrs.frozen
class RecordField:
    """One thing to read from every record."""

    kind: FieldKind
    """What it is."""

    name: str | None
    """The field that holds it; None: the record itself."""

    def read(self, record: Record, *, source: str) -> Any:
        """Return what the record's field holds.

        Args:
          record: A record that could be read.
          source: The input, for the error.

        Raises:
          InputError: if there is no such field, or something else in it.
        """
        value = record.given
        if self.name is not None:
            value = value.get(self.name) if isinstance(value, dict) else None
        read = self.kind.convert(value)
        if read is None:
            raise InputError(
                f"{source}, line {record.line}: {self._complaint(record.given)}; {self.kind.advice}"
            )
        return read

    def _complaint(self, value: Any) -> str:
        if self.name is None:
            more = "" if isinstance(value, str) else ", and an agent takes text; add --prompt FIELD"
            return f"the record is {self.kind.shown(value)}{more}"
        if not isinstance(value, dict):
            return f"the record is no JSON object, so it has no field {self.name!r}"
        if self.name not in value:
            names = ", ".join(map(repr, list(value)[:_NAMES_SHOWN])) or "none"
            return f"{self.kind.missing.format(repr(self.name))}; the record's fields are {names}"
        return f"{self.kind.subject.format(repr(self.name))} {self.kind.shown(value[self.name])}"


def with_fields(
    records: Iterable[Record], fields: Sequence[RecordField], *, source: str
) -> Iterator[Record]:
    """Yield ``records`` with what is read from their ``fields``.

    A record that can't be read keeps its place.

    Raises:
      InputError: at a record whose field is missing or holds something else, or repeats a value
        that only one record may have.
    """
    seen = _Seen()
    for record in records:
        if record.problem is not None:
            for field in fields:
                setattr(record, field.kind.attribute, field.kind.unreadable)
            yield record
            continue
        for field in fields:
            found = field.read(record, source=source)
            setattr(record, field.kind.attribute, found)
            earlier = seen.line_of(found, record.line) if field.kind.unique else None
            if earlier is not None:
                raise InputError(
                    f"{source}, line {record.line}: {field.kind.subject.format(repr(field.name))} "
                    f"{found!r}, as in an earlier record, that of line {earlier}; a "
                    f"{field.kind.attribute} names one record, so choose another field or remove "
                    "one of them"
                )
        yield record


class _Seen:
    """What there was in a field so far, and where."""

    def __init__(self) -> None:
        self._digests: dict[bytes, None] = {}
        # Beside the digests, in their order: a number in the dict would take four times the memory.
        self._lines = array("Q")

    def line_of(self, text: str, line: int) -> int | None:
        """Return the earlier line that has ``text``; None if none has, and it is noted."""
        digest = text.encode(errors="surrogatepass")
        if len(digest) >= _DIGEST_BYTES:  # A shorter one can be no other's digest.
            digest = hashlib.blake2b(digest, digest_size=_DIGEST_BYTES).digest()
        self._digests.setdefault(digest)
        if len(self._digests) > len(self._lines):
            self._lines.append(line)
            return None
        return self._lines[list(self._digests).index(digest)]


def misspelt_field(error: BaseException | None, value: Any) -> str | None:
    """Return which field of a record was meant, if ``error`` is for one that it doesn't have."""
    if not isinstance(error, KeyError) or not isinstance(value, dict) or len(error.args) != 1:
        return None
    asked = error.args[0]
    if not isinstance(asked, str) or asked in value:
        return None
    by_small = {name.lower(): name for name in value if isinstance(name, str)}
    near = difflib.get_close_matches(asked.lower(), by_small, n=1)
    if not near:
        return None
    names = ", ".join(map(str, list(value)[:_NAMES_SHOWN]))
    more = ", ..." if len(value) > _NAMES_SHOWN else ""
    return f"the record has the fields {names}{more}; did you mean {by_small[near[0]]!r}?"


# Kinds ------------------------------------------------------------------------------------------


def _key(found: Any) -> str | None:
    if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found):
        return str(found)
    return found if isinstance(found, str) and found else None


def _text(found: Any) -> str | None:
    return found if isinstance(found, str) and found.strip() else None


def _path(found: Any) -> str | None:
    return found if isinstance(found, str) else None


def _number(found: Any) -> float | None:
    """Return a number, which may be written as text, as in CSV; None if it isn't one."""
    if isinstance(found, bool) or not isinstance(found, (int, float, str)):
        return None
    try:
        number = float(found)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def _count(found: Any) -> int | None:
    number = _number(found)
    return math.ceil(number) if number is not None and 0 <= number < math.inf else None


def _sort(found: Any) -> str:
    if isinstance(found, dict):
        return "a JSON object"
    is_empty = found is None or (isinstance(found, str) and not found.strip())
    return "empty" if is_empty else f"of type {type(found).__name__}"


KEY = FieldKind(
    attribute="key",
    convert=_key,
    subject="the key {} is",
    missing="the key {} is missing",
    advice="a key is text or a number that every record has, so choose another field, or leave "
    "--key out to count the records",
    shown=_sort,
    unique=True,
)
"""What identifies a record, and its result later."""

PROMPT = FieldKind(
    attribute="value",
    convert=_text,
    subject="the prompt {} is",
    missing="there is no field {} to prompt with",
    advice="every record needs a prompt, so correct it, or write a function that makes the prompt "
    "and awaits agent.run(prompt)",
    shown=_sort,
)
"""What an agent is asked."""

ATTACHED = FieldKind(
    attribute="file",
    convert=_path,
    subject="the file {} is",
    missing="there is no field {} with the path of a file",
    advice="every record has the path of a file there, or an empty text for none",
    shown=_sort,
    unreadable="",
)
"""Which file goes with the prompt."""

PRIORITY = FieldKind(
    attribute="priority",
    convert=_number,
    subject="the priority {} is",
    missing="the priority {} is missing",
    advice="a priority is a number that every record has, the larger the sooner, so choose another "
    "field, or leave --priority out to keep the order",
    unreadable=math.inf,  # Before all others, so that its failure is known soon.
)
"""How urgent a record is."""

TOKENS = FieldKind(
    attribute="tokens",
    convert=_count,
    subject="the tokens {} are",
    missing="the tokens {} are missing",
    advice="tokens are a number from 0 upwards that every record has, so choose another field, or "
    "give --tokens a number for all",
    unreadable=0,
)
"""How many tokens a record uses."""
