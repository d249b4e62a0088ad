"""Take an agent's prompt out of each record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from harness.cli._errors import InputError
from harness.cli._records import Record


def with_prompts(records: Iterable[Record], field: str | None, *, source: str) -> Iterator[Record]:
    """Yield ``records`` with the prompt as value; one that can't be read stays as it is.

    Args:
      records: The records.
      field: Where the prompt stands in records with fields; None: each record is a prompt.
      source: The input, for errors.

    Raises:
      InputError: at a record that has no text there.
    """
    for record in records:
        if record.problem is not None:
            yield record
        else:
            yield attrs.evolve(record, value=_prompt_of(record, field, source))


def _prompt_of(record: Record, field: str | None, source: str) -> str:
    value = record.value
    if field is None:
        what = f"the record is {_kind(value)}, and an agent takes text; add --prompt FIELD"
    elif not isinstance(value, dict):
        what = f"the record is {_kind(value)}, so it has no field {field!r}"
    elif field not in value:
        names = ", ".join(map(repr, list(value)[:8])) or "none"
        what = f"there is no field {field!r} to prompt with; the record's fields are {names}"
    else:
        value = value[field]
        what = f"the prompt {field!r} is {_kind(value)}"
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, str):
        what = "the prompt is empty"
    raise InputError(
        f"{source}, line {record.line}: {what}; every record needs a prompt, so correct it, or "
        "write a function that makes the prompt and awaits agent.run(prompt)"
    )


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "a JSON object"
    return "empty" if value is None else f"of type {type(value).__name__}"
