"""What the output says about one item: a JSON object on a line of its own."""

from __future__ import annotations

import json
from typing import Any

import attrs

from harness._json_value import UnwritableValueError, encode_text, encode_value
from harness._tracebacks import traceback_of
from harness.cli._records import Record
from harness.errors import JournaledError
from harness.fanout import Result


def result_line(result: Result[str], *, with_traceback: bool = False) -> bytes:
    """Return the line for ``result``, whose item is a record and whose value is JSON text.

    If the record has its own text, the line has it too.

    Args:
      result: How the item ended.
      with_traceback: Whether the line has one more field, saying where its error came from.
    """
    record: Record = result.item
    given = "" if record.given_text is None else f', "input": {record.given_text}'
    key = "null" if record.key is None else encode_text(record.key)
    if result.status == "ok":
        value, error = result.value, "null"
    else:
        value, error = "null", encode_text(error_text(result.error))
    return (
        f'{{"key": {key}, "index": {record.index}, "status": "{result.status}", '
        f'"value": {value}, "error": {error}, "attempts": {calls_of(result)}, '
        f'"seconds": {result.seconds:.6f}{given}'
        f"{_traceback_field(result) if with_traceback else ''}}}\n"
    ).encode()


def with_input_text(record: Record) -> Record:
    """Return the record with its text, for its line."""
    try:
        text = encode_value(record.given)
    except UnwritableValueError:  # A number such as 1e999, which Python reads as infinite.
        text = encode_text(json.dumps(record.given))
    return attrs.evolve(record, given_text=text)


def _traceback_field(result: Result[str]) -> str:
    record: Record = result.item
    text = None if record.problem is not None else traceback_of(result.error)
    return f', "traceback": {"null" if text is None else encode_text(text)}'


def calls_of(result: Result[Any]) -> int:
    """Return how often the function was tried; a record that can't be read never reaches it."""
    record: Record = result.item
    return result.attempts if record.problem is None else 0


def error_type(error: BaseException | None) -> str:
    """Return the name of an error's class, even of an error that a journal kept."""
    return error.type_name if isinstance(error, JournaledError) else type(error).__name__


def error_text(error: BaseException | None) -> str:
    """Return ``error`` as ``Type: message``, whatever its own ``__str__`` does."""
    try:
        message = error.message if isinstance(error, JournaledError) else str(error)
    except Exception as broken:
        message = f"(its message can't be shown: {type(broken).__name__})"
    return f"{error_type(error)}: {message}"
