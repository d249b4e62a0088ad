"""Read back what became of a batch's items: from its output, or from its journal.

One at a time, so that either may be larger than memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from harness._is_journal import is_journal
from harness.cli._errors import InputError
from harness.cli._files import open_input
from harness.cli._lines import LineReader
from harness.cli._records import Format, format_of, parse_records
from harness.errors import JournalError
from harness.journal import JournalItem, JournalReader, read_journal


@attrs.frozen(kw_only=True)
class RecordedResult:
    """What became of an item. The fields are those that ``--where`` may name."""

    key: str | int
    status: str
    input: Any = None
    """What the item was; None if that wasn't recorded, or not read."""
    value: Any
    error: str | None
    attempts: int
    seconds: float
    tokens: int | None = None
    """None if that wasn't recorded; the same for `cost_usd`."""
    cost_usd: float | None = None
    degraded: bool = False
    error_type: str | None
    error_message: str | None
    item: JournalItem | None = None
    """The item, if it comes from a journal."""

    def field(self, name: str) -> Any:
        """Return one of the fields."""
        return getattr(self, name)


def results_in(
    path: str, *, batch: str | None, without_key: Callable[[], None], inputs: bool = False
) -> Iterator[RecordedResult]:
    """Yield what became of a batch's items.

    Args:
      path: Its output, as JSONL or CSV, or its journal.
      batch: Its name in the journal; None if there is only one.
      without_key: Called for each line of an output that has no key, as that of a record that
        couldn't be read; it is left out.
      inputs: Whether to read what the items were as well, which takes longer.

    Raises:
      InputError: if it is neither, or can't be read.
    """
    if is_journal(path):
        with journal_errors_told(), read_journal(path) as reader:
            for item in reader.items(batch_in(reader, batch), details=inputs):
                yield of_item(item)
    else:
        yield from _in_output(path, without_key)


def of_item(item: JournalItem) -> RecordedResult:
    """Return what a journal knows of an item."""
    return RecordedResult(
        key=item.key,
        status=item.status,
        input=None if item.input_text is None else _read(item.input_text),
        value=_value_of(item),
        error=item.error,
        error_type=item.error_type,
        error_message=item.error_message,
        attempts=item.attempts,
        seconds=item.seconds,
        tokens=item.tokens,
        cost_usd=item.cost_usd,
        degraded=item.degraded,
        item=item,
    )


def _value_of(item: JournalItem) -> Any:
    """Return an item's value as the output of a batch would have it."""
    text = item.shown_value_text
    if text is None or item.status != "ok":
        return None
    return _read(text)


def _in_output(path: str, without_key: Callable[[], None]) -> Iterator[RecordedResult]:
    with open_input(path) as output:
        form: Format = "csv" if format_of(path) == "csv" else "jsonl"
        for line in parse_records(LineReader(output.source), form, source=output.name):
            told = line.value if line.problem is None else None
            if not isinstance(told, dict) or not isinstance(told.get("status"), str):
                raise InputError(
                    f"{path}, line {line.line}, is not a result of harness batch; name its "
                    "output, or its journal"
                )
            if told.get("key") is None:
                without_key()
            else:
                yield _of_line(told, is_csv=form == "csv")


def _of_line(told: dict[str, Any], *, is_csv: bool) -> RecordedResult:
    if is_csv:
        told = {
            name: told[name] if name in ("key", "status", "error") else _read(told[name])
            for name in told
        }
        if told["status"] != "ok":
            told["value"] = None
    error = told.get("error") or None
    kind, _, message = ("" if error is None else str(error)).partition(": ")
    return RecordedResult(
        key=told["key"],
        status=told["status"],
        input=told.get("input"),
        value=told.get("value"),
        error=error,
        error_type=None if error is None else kind,
        error_message=None if error is None else message,
        attempts=_number(told.get("attempts")) or 0,
        seconds=_number(told.get("seconds")) or 0,
        tokens=_number(told.get("tokens")),
        cost_usd=_number(told.get("cost_usd")),
        degraded=told.get("degraded") is True,
    )


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # Text of the caller's own encode=, for instance.
        return text


def _number(given: Any) -> Any:
    return given if type(given) in (int, float) else None


def batch_in(reader: JournalReader, name: str | None) -> str:
    """Return the name of the batch that is meant: if there is only one, it needs none.

    Raises:
      InputError: if it isn't there, or could be any of several.
    """
    names = [batch.name for batch in reader.batches()]
    found = [one for one in names if name in (None, one)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(map(repr, names))
    if not names:
        raise InputError("the journal has no batches; a session of harness batch makes one")
    if name is None:
        raise InputError(f"the journal has several batches: {known}; say which with --batch")
    raise InputError(f"the journal has no batch {name!r}; it has {known}")


@contextmanager
def journal_errors_told() -> Iterator[None]:
    """Turn a journal's errors into errors of the command line."""
    try:
        yield
    except JournalError as error:
        raise InputError(str(error)) from error
