"""Turn lines into records: JSON values, CSV rows as dicts, or plain text.

Plain iterators, with no clock and no trio: `harness.cli._source` runs them in a thread. Each
takes one line (CSV: one row) at a time, so the memory they need does not grow with the input.

A record that can't be read is a record too, with a `problem` in words: whoever asked for the
records decides whether that stops the batch. Blank lines are no records.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, TypeAlias

import attrs

from harness.cli._errors import InputError
from harness.cli._lines import MAX_LINE_BYTES, LineReader

Format: TypeAlias = Literal["jsonl", "csv", "lines"]
"""How the records of an input are written."""

_FORMATS_BY_SUFFIX: Mapping[str, Format] = MappingProxyType(
    {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
)
_SPREADSHEETS = (".tsv", ".xls", ".xlsx", ".ods", ".parquet", ".arrow", ".feather")
_NO_RECORDS = frozenset((".json", ".db", ".sqlite", ".pdf", ".gz", ".bz2", ".xz", ".zip", ".zst"))
_EXCERPT_CHARACTERS = 40


@attrs.frozen
class Record:
    """One piece of a batch's input."""

    index: int
    """Its place in the input, from 0; blank lines don't count."""

    line: int
    """The line in which it begins, from 1."""

    value: Any
    """What the function gets: a parsed JSON value, a dict of CSV columns, or a str."""

    key: str | None
    """What names it in the output; None for a record without one because it can't be read."""

    problem: str | None = None
    """Why it can't be read, or None."""

    priority: float = 0.0
    """How urgent it is: of the records read ahead, the one with the largest number is first."""

    tokens: int = 0
    """How many tokens it uses, input and output, where a field says so."""


class BadRecordError(Exception):
    """A record that can't be read stands among the results as failed, with this error."""


def format_of(path: str) -> Format:
    """Return the format that the name of an input implies.

    Raises:
      InputError: if the suffix is of a kind of file that has no records in lines.
    """
    suffix = PurePath(path).suffix.lower()
    if suffix in _SPREADSHEETS or suffix in _NO_RECORDS:
        hint = (
            "say --format jsonl if each line is one JSON value"
            if suffix == ".json"
            else "convert it to .jsonl or .csv first, or say --format if the name misleads"
        )
        raise InputError(f"the input {path!r} is neither JSONL nor CSV nor plain lines; {hint}")
    return _FORMATS_BY_SUFFIX.get(suffix, "lines")


def parse_records(lines: LineReader, form: Format, *, source: str) -> Iterator[Record]:
    """Yield the records of ``lines``, those that can't be read with a `problem`.

    Args:
      lines: Where the input is read from, line by line.
      form: How it is written.
      source: What to call the input in errors.

    Raises:
      InputError: if a CSV file's first row can't name its columns.
    """
    if form == "csv":
        return _csv_records(lines, source)
    return _line_records(lines, _json_value if form == "jsonl" else _text_value)


# JSON and plain lines --------------------------------------------------------------------------


class _UnreadableError(Exception):
    """A line can't be read; the message says why."""


def _line_records(lines: LineReader, parse: Callable[[str], Any]) -> Iterator[Record]:
    index = 0
    for raw in lines:
        value = problem = None
        if raw is None:
            problem = _TOO_LONG
        elif not raw.strip():
            continue
        else:
            try:
                value = parse(raw.decode())
            except UnicodeDecodeError as error:
                problem = _not_utf8(error, lines.number)
            except _UnreadableError as error:
                problem = str(error)
        yield Record(index, lines.number, value, str(index), problem)
        index += 1


def _text_value(text: str) -> str:
    return text.removesuffix("\r")


def _json_value(text: str) -> Any:
    try:
        return _JSON.decode(text)
    except json.JSONDecodeError as error:
        expected = 'expected one JSON value on the line, such as {"text": "hello"}'
        if text.strip() in ("[", "{"):
            raise _UnreadableError(
                f"{expected}, but this one only begins here; write each value on one line, "
                "and no list around them"
            ) from error
        at = text[error.pos : error.pos + _EXCERPT_CHARACTERS].rstrip()
        found = f"column {error.colno} reads {at!r}" if at else "the line ends too early"
        raise _UnreadableError(f"{expected}, but {found} ({error.msg})") from error
    except RecursionError as error:
        raise _UnreadableError("expected JSON, but this is nested too deeply") from error
    except ValueError as error:  # Of `_refuse_constant`, or a number of thousands of digits.
        raise _UnreadableError(f"expected JSON, but {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; write null")


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)


# CSV -------------------------------------------------------------------------------------------


class _CsvLines(Iterator[str]):
    """The lines that a CSV reader asks for, and what was wrong with those of the present row."""

    def __init__(self, lines: LineReader) -> None:
        self._lines = lines
        self._iterator = iter(lines)
        self.problem: str | None = None
        self.ended = False

    def __next__(self) -> str:
        try:
            raw = next(self._iterator)
        except StopIteration:
            self.ended = True
            raise
        if raw is None:
            self.problem = _TOO_LONG
            return "\n"
        try:
            return raw.decode() + "\n"
        except UnicodeDecodeError as error:
            # The row goes on, so that the next one begins where it should.
            self.problem = _not_utf8(error, self._lines.number)
            return raw.decode(errors="replace") + "\n"


def _csv_records(lines: LineReader, source: str) -> Iterator[Record]:
    # A setting of the whole process. Its default, 128 KiB, is less than a long document.
    csv.field_size_limit(MAX_LINE_BYTES)
    texts = _CsvLines(lines)
    rows = csv.reader(texts)
    columns: list[str] | None = None
    index = 0
    while True:
        texts.problem = None
        line = lines.number + 1
        row: list[str] = []
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            problem: str | None = f"expected a CSV row, but found {error}"
        else:
            problem = texts.problem
            if not row and problem is None:
                continue
            if texts.ended:  # The reader asked for more: it is inside of quotes.
                problem = "a quoted field begins in this row and is never closed; add the quote"
        if columns is None:
            columns = _checked_columns(row, problem, source, line)
            continue
        if problem is None and len(row) != len(columns):
            problem = (
                f"expected {len(columns)} columns, as in the first row, but this one has {len(row)}"
            )
        value = None if problem else dict(zip(columns, row, strict=True))
        yield Record(index, line, value, str(index), problem)
        index += 1


def _checked_columns(row: list[str], problem: str | None, source: str, line: int) -> list[str]:
    if problem is None:
        twice = sorted({name for name in row if row.count(name) > 1})
        if not twice:
            return row
        problem = (
            f"the first row names the columns, and {', '.join(map(repr, twice))} is there twice; "
            "give each column a name of its own"
        )
    raise InputError(f"{source}, line {line}: {problem}")


# Problems --------------------------------------------------------------------------------------

_TOO_LONG: Final = f"the line has more than {MAX_LINE_BYTES // 2**20} MiB; cut it into smaller ones"


def _not_utf8(error: UnicodeDecodeError, line: int) -> str:
    raw: bytes = error.object
    looks = (
        "looks like UTF-16; save it as UTF-8"
        if line == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff")
        else "is in another encoding or damaged; convert it to UTF-8"
    )
    return (
        f"expected UTF-8 text, but byte {error.start + 1} of line {line} is "
        f"0x{raw[error.start]:02x}; the input {looks}"
    )
