"""Turn lines into records: JSON values, CSV rows as dicts, or plain text.

Plain iterators, with no clock and no trio: `harness.cli._source` runs them in a thread. Each
takes one line (CSV: one row) at a time, so the memory they need does not grow with the input.

A record that can't be read is a record too, with a `problem` in words: whoever asked for the
records decides whether that stops the batch. Blank lines aren't records.
"""

from __future__ import annotations

import csv
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, TypeAlias

import attrs

from harness.cli._csv_header import (
    COMMA,
    NUL_PROBLEM,
    TAB,
    column_names,
    could_be_another,
    shown,
    told_delimiter,
)
from harness.cli._errors import InputError
from harness.cli._lines import MAX_LINE_BYTES, LineReader

Format: TypeAlias = Literal["jsonl", "csv", "lines"]
"""How the records of an input are written."""

_FORMATS_BY_SUFFIX: Mapping[str, Format] = MappingProxyType(
    {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv"}
)
_SPREADSHEETS = (".xls", ".xlsx", ".ods", ".parquet", ".arrow", ".feather")
_NO_RECORDS = frozenset((".json", ".db", ".sqlite", ".pdf", ".gz", ".bz2", ".xz", ".zip", ".zst"))
_EXCERPT_CHARACTERS = 40


@attrs.define
class Record:
    """One piece of a batch's input. Whoever reads it sets its fields; nobody does later."""

    index: int
    """Its place in the input, from 0; blank lines don't count."""

    line: int
    """The line on which it begins, from 1."""

    value: Any
    """What the function gets: a parsed JSON value, a dict of CSV columns, or a str."""

    key: str | None
    """What identifies it in the output; None for a record that can't be read, so has none."""

    problem: str | None = None
    """Why it can't be read, or None."""

    priority: float = 0.0
    """How urgent it is: of the records read ahead, the one with the largest number is first."""

    file: str = ""
    """The path of a file that goes with the prompt; empty for none."""

    tokens: int = 0
    """How many tokens it uses, input and output, where a field says so."""

    given: Any = attrs.field(default=attrs.Factory(lambda self: self.value, takes_self=True))
    """The value as it was read; of an agent's record, `value` is only the prompt."""

    given_text: str | None = None
    """That as JSON, made before the function could change it; None if nobody asked."""

    def _harness_fields_(self) -> tuple[Any, ...]:
        """Return what makes an equal record, for a fan-out that puts it aside on disk."""
        return (
            *(self.index, self.line, self.value, self.key, self.problem, self.priority),
            *(self.file, self.tokens, self.given, self.given_text),
        )


class BadRecordError(Exception):
    """A record can't be read; it is among the results as failed, with this error."""


def format_of(path: str) -> Format:
    """Return the format that the name of an input implies.

    Raises:
      InputError: if the suffix belongs to a kind of file that doesn't hold records in lines.
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


def delimiter_of(path: str) -> str | None:
    """Return what separates the columns of a CSV file, by its name; None if that doesn't say."""
    return TAB if PurePath(path).suffix.lower() == ".tsv" else None


def parse_records(
    lines: LineReader,
    form: Format,
    *,
    source: str,
    delimiter: str | None = None,
    tell: Callable[[str], None] = lambda delimiter: None,
) -> Iterator[Record]:
    """Yield the records of ``lines``, those that can't be read with a `problem`.

    Args:
      lines: Where the input is read from, line by line.
      form: How it is written.
      source: What to call the input in errors.
      delimiter: What separates the columns of CSV; None: what its first row says.
      tell: Called with what separates them, once the first row of CSV is read.

    Raises:
      InputError: if a CSV file's first row can't name its columns.
    """
    if form == "csv":
        return _csv_records(lines, source, delimiter, tell)
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
        elif lines.number == 1 and raw[:2].count(0) == 1:
            problem = NUL_PROBLEM
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
        value, end = _JSON.raw_decode(text)  # Half the time of `decode`, which allows for blanks.
        if end == len(text):
            return value
    except (ValueError, RecursionError):
        pass
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
    except ValueError as error:  # From `_refuse_constant`, or a number with thousands of digits.
        raise _UnreadableError(f"expected JSON, but {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; write null")


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)


# CSV -------------------------------------------------------------------------------------------


class _CsvLines(Iterator[str]):
    """The lines that a CSV reader asks for, and what was wrong with those of the current row."""

    def __init__(self, lines: LineReader) -> None:
        self._lines = lines
        self._iterator = lines.with_ends()
        self._again: deque[str] = deque()
        self.problem: str | None = None
        self.ended = False
        self.of_first_row: list[str] | None = []
        """The lines of the first row; None once they are no longer needed."""

    def __next__(self) -> str:
        if self._again:
            return self._again.popleft()
        text = self._next()
        if self.of_first_row is not None:
            self.of_first_row.append(text)
        return text

    @property
    def next_line(self) -> int:
        """The number of the next line."""
        return self._lines.number + 1 - len(self._again)

    def again(self) -> None:
        """Hand over the lines of the first row again."""
        self._again.extend(self.of_first_row or ())
        self.of_first_row = None

    def _next(self) -> str:
        try:
            raw = next(self._iterator)
        except StopIteration:
            self.ended = True
            raise
        if raw is None:
            self.problem = _TOO_LONG
            return "\n"
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            # The row goes on, so that the next one begins where it should.
            self.problem = _not_utf8(error, self._lines.number)
            return raw.decode(errors="replace")


def _csv_records(
    lines: LineReader, source: str, delimiter: str | None, tell: Callable[[str], None]
) -> Iterator[Record]:
    # A setting of the whole process. Its default, 128 KiB, is less than a long document.
    csv.field_size_limit(MAX_LINE_BYTES)
    texts = _CsvLines(lines)
    is_told = delimiter is None
    rows = csv.reader(texts, delimiter=delimiter or COMMA)
    columns: list[str] | None = None
    hint = ""
    index = 0
    while True:
        texts.problem = None
        line = texts.next_line
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
                if texts.of_first_row:
                    texts.of_first_row.clear()
                continue
            if texts.ended:  # The reader asked for more: it is inside quotes.
                problem = "a quoted field begins in this row and is never closed; add the quote"
        if columns is None:
            place = f"{source}, line {line}"
            if problem is not None:
                raise InputError(f"{place}: {problem}")
            if delimiter is None:
                delimiter = told_delimiter("".join(texts.of_first_row or ()))
                rows = csv.reader(texts, delimiter=delimiter)
                texts.again()
                continue
            texts.of_first_row = None
            columns = column_names(row, place)
            if is_told and could_be_another(delimiter, columns):
                hint = f" (separated by {shown(delimiter)}; --delimiter says otherwise)"
            tell(delimiter)
            continue
        if problem is None and len(row) != len(columns):
            problem = (
                f"expected {len(columns)} columns, as in the first row, but this one has "
                f"{len(row)}{hint}"
            )
        value = None if problem else dict(zip(columns, row, strict=True))
        yield Record(index, line, value, str(index), problem)
        index += 1


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
