"""Write the items of a batch for other programs: as JSONL, CSV, Parquet or Arrow.

Every file has the same columns of the same types, whatever the batch returned, so those of many
nights can be read as one table. What an item was and its value are a column each, with JSON in it:
fields of their own would clash with each other's names, and a type that fits all values of a field
is known only at the end.

Items are read and written a few thousand at a time, and a file that exists is complete.
"""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, cast, get_args

from harness._frames import Columns, Kind
from harness._json_value import encode_text, encode_value, on_one_line
from harness._lazy import needed
from harness.journal._item import JournalItem
from harness.journal._values import shown_text

ExportForm: TypeAlias = Literal["jsonl", "csv", "parquet", "arrow"]
"""How an export is written."""

EXPORTED: Columns = {
    "key": "key",
    "status": "text",
    "input": "json",
    "value": "json",
    "error": "text",
    "error_type": "text",
    "error_message": "text",
    "traceback": "text",
    "degraded": "truth",
    "attempts": "whole",
    "started_at": "time",
    "ended_at": "time",
    "seconds": "number",
    "tokens": "whole",
    "input_tokens": "whole",
    "output_tokens": "whole",
    "cached_input_tokens": "whole",
    "cache_write_input_tokens": "whole",
    "cost_usd": "number",
    "run_id": "text",
    "model": "text",
}
"""What an export has of each item."""

FORMS: Mapping[str, ExportForm] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
"""What the names of files end with."""


def form_of(path: str | os.PathLike[str], form: ExportForm | None) -> ExportForm:
    """Return how a file is written: as given, else as its name says.

    Raises:
      ValueError: if neither says so.
    """
    known = form or FORMS.get(Path(path).suffix.lower())
    if known not in get_args(ExportForm):
        raise ValueError(
            f"the name of {os.fspath(path)!r} doesn't say how to write it; let it end with "
            f"{', '.join(FORMS)}, or give the format: {', '.join(get_args(ExportForm))}"
        )
    return cast("ExportForm", known)


def row_of(item: JournalItem, read: Callable[[str], Any]) -> tuple[Any, ...]:
    """Return an item's row.

    Args:
      item: An item, read with its details.
      read: Returns what the row has of the text of an input or a value.
    """
    return (
        item.key,
        item.status,
        None if item.input_text is None else read(item.input_text),
        None if item.value_text is None else read(item.value_text),
        item.error,
        item.error_type,
        item.error_message,
        item.error_traceback,
        item.degraded,
        item.attempts,
        _moment(item.started_at),
        _moment(item.ended_at),
        item.seconds,
        item.tokens,
        item.input_tokens,
        item.output_tokens,
        item.cached_input_tokens,
        item.cache_write_input_tokens,
        item.cost_usd,
        item.run_id,
        item.model,
    )


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


# Writing ----------------------------------------------------------------------------------------


def write_items(
    items: Iterable[JournalItem],
    file: BinaryIO,
    form: ExportForm,
    whole_keys: bool,
) -> int:
    """Write items, and return how many there were.

    Args:
      items: Items, read with their details.
      file: Where they go.
      form: How.
      whole_keys: Whether all keys are whole numbers that fit into a column of such.

    Raises:
      ImportError: if the form needs a package that isn't installed.
    """
    count = 0

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal count
        for item in items:
            count += 1
            yield row_of(item, shown_text)

    if form in ("parquet", "arrow"):
        needed("pyarrow", extra="arrow", subject=f"an export as {form}")
        arrow = import_module("harness.journal._arrow")
        arrow.write(rows(), file, form=form, columns=EXPORTED, whole_keys=whole_keys)
    else:
        for line in _jsonl(rows()) if form == "jsonl" else _csv(rows()):
            rest = memoryview(line.encode(errors="backslashreplace"))
            while rest:  # A disk that is almost full takes a part.
                rest = rest[file.write(rest) :]
    return count


@contextmanager
def written_whole(path: str, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Give a file to write, which gets its name when the block ends, and is gone if it raises.

    Raises:
      FileExistsError: if there is one, also one that appeared meanwhile, without ``overwrite``.
    """
    name = os.path.realpath(path)  # If the path is a link, it stays one.

    def refuse() -> None:
        if os.path.exists(name) and not overwrite:
            raise FileExistsError(
                f"the file {path!r} already exists; give another name, or overwrite=True"
            )

    refuse()
    if os.path.exists(name) and not os.path.isfile(name):  # A pipe, for instance.
        with open(name, "wb") as file:
            yield file
        return
    part = f"{name}.{secrets.token_hex(4)}.part"
    try:
        with open(part, "xb") as file:
            yield file
        refuse()
        os.replace(part, name)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _jsonl(rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    columns = [(f'"{name}": ', _IN_JSON[kind]) for name, kind in EXPORTED.items()]
    for row in rows:
        fields = (
            f"{name}{'null' if value is None else write(value)}"
            for (name, write), value in zip(columns, row, strict=True)
        )
        yield f"{{{', '.join(fields)}}}\n"


def _csv(rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    line = io.StringIO(newline="")
    writer = csv.writer(line, lineterminator="\n")
    writer.writerow(EXPORTED)
    forms = [_IN_CSV.get(kind, str) for kind in EXPORTED.values()]
    for row in rows:
        yield line.getvalue()
        line.seek(0)
        line.truncate()
        writer.writerow(
            "" if value is None else write(value) for write, value in zip(forms, row, strict=True)
        )
    yield line.getvalue()


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _json(text: str) -> str:
    """Return a text as it is if it is JSON, else as a string of JSON."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return encode_text(text)
    return text if text.isascii() else on_one_line(text)


def _refuse(constant: str) -> None:
    """Refuse what only Python's reader accepts."""
    raise ValueError(f"{constant} is not JSON")


_IN_JSON: Mapping[Kind, Callable[[Any], str]] = {
    "key": encode_value,
    "text": encode_text,
    "json": _json,
    "truth": _truth,
    "whole": repr,
    "number": repr,
    "time": lambda moment: f'"{moment.isoformat()}"',
}

_IN_CSV: Mapping[Kind, Callable[[Any], str]] = {
    "truth": _truth,
    "number": repr,
    "time": datetime.isoformat,
}
