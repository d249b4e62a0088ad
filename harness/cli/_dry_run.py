"""Describe in words what a batch would do, without doing it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from harness.cli._csv_header import COMMA, shown
from harness.cli._limits import feasible_text, limiter_of, long_wait_text
from harness.cli._option_table import plan_of
from harness.cli._options import BatchOptions
from harness.cli._records import Format, Record
from harness.cli._source import Reading

RECORDS_SHOWN = 3
"""How many records are read and shown."""

_EXCERPT_CHARACTERS = 160
_FORMAT_NAMES: dict[Format, str] = {"jsonl": "JSONL", "csv": "CSV", "lines": "plain lines"}


def describe(
    options: BatchOptions,
    reading: Reading,
    records: Sequence[Record],
    *,
    known: str | None = None,
    forecast: str | None = None,
) -> str:
    """Return the plan and the first records, for a person to read.

    Args:
      options: What the command line says.
      reading: How much input there is.
      records: The first of its records.
      known: How the items of the journal ended, in words; None if there are none.
      forecast: How long it will take, in words; None if nobody knows.
    """
    order = "in the order of the input" if options.ordered else "as items end"
    return "\n".join(
        [
            f"would run {options.target}{_with_model(options)}",
            f"  on      {_amount(options, reading)} of {options.input} "
            f"({_FORMAT_NAMES[options.form]}{_separated(reading)})",
            f"  with    {', '.join(plan_of(options))}",
            "  into    the journal, with all that join it"
            if options.join
            else f"  into    {options.output}, {order}",
            *_feasible(options, records),
            *([] if forecast is None else [f"  time    {forecast}"]),
            *_journal(options, known),
            f"the first {len(records)}:" if records else "there are no records",
            *(f"  {_shown(record)}" for record in records),
            *_warnings(options, records),
            "nothing was run",
        ]
    )


def _separated(reading: Reading) -> str:
    if reading.delimiter is None or reading.delimiter == COMMA:
        return ""
    return f" separated by {shown(reading.delimiter)}"


def _with_model(options: BatchOptions) -> str:
    return "" if options.model is None else f" on {options.model}"


def _journal(options: BatchOptions, known: str | None) -> list[str]:
    if options.journal is None:
        return []
    return [f"  journal {options.journal_shown}, {'new' if known is None else f'with {known}'}"]


def _feasible(options: BatchOptions, records: Sequence[Record]) -> list[str]:
    limiter = limiter_of(options)
    if limiter is None or options.rpm is options.tpm is None:
        return []
    tokens: float | None = options.tokens if isinstance(options.tokens, int) else None
    if tokens is None and records:
        tokens = sum(record.tokens for record in records) / len(records) or None
    words = feasible_text(limiter, tokens=tokens)
    return [] if words is None else [f"  limits  {words}"]


def _warnings(options: BatchOptions, records: Sequence[Record]) -> list[str]:
    """Return what makes a batch slow: the largest of ``records`` may not fit into a minute."""
    if options.tpm is None or options.tokens is None:
        return []
    if isinstance(options.tokens, int):
        largest = options.tokens
    else:
        largest = max((record.tokens for record in records), default=0)
    return [f"warning: {long_wait_text(largest, options.tpm)}"] if largest > options.tpm else []


def _amount(options: BatchOptions, reading: Reading) -> str:
    expected = reading.expected()
    if options.sample is not None:
        return f"a sample of {reading.total or 0:,} records"
    if reading.total is not None:
        return f"{reading.total:,} records"
    return "all records" if expected is None else f"about {expected:,} records"


def _shown(record: Record) -> str:
    if record.problem is not None:
        return f"line {record.line} can't be read: {record.problem}"
    text = json.dumps(record.value, ensure_ascii=False, default=str)
    if len(text) > _EXCERPT_CHARACTERS:
        text = f"{text[: _EXCERPT_CHARACTERS - 3]}..."
    return f"{record.key}: {text}"
