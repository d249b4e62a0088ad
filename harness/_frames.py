"""Make tables of results, for pandas and polars, which are the user's or come with an extra.

Each column has a kind, and so the same type in every table, whatever is in it: a type that is
guessed from the first rows is wrong for a later one sooner or later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from harness._lazy import needed

Kind = Literal["key", "text", "json", "truth", "whole", "number", "time"]
"""What is in a column. Of ``"key"``: whole numbers if all are, else texts; of ``"json"``: anything,
as Python has it for pandas, and as the text of JSON elsewhere; of ``"time"``: datetimes."""

Columns = Mapping[str, Kind]
"""The kinds of a table's columns, by name and in their order."""

WHOLE_AT_MOST = 2**63 - 1
"""A key beyond it makes all of them texts."""

_PANDAS: Mapping[Kind, str] = {
    "text": "string",
    "json": "object",
    "truth": "bool",
    "whole": "Int64",
    "number": "float64",
    "time": "datetime64[us, UTC]",
}


def is_whole(key: object) -> bool:
    """Return whether a key may be in a column of whole numbers."""
    return type(key) is int and -WHOLE_AT_MOST <= key <= WHOLE_AT_MOST


def utf8(text: str) -> str:
    """Return a text that UTF-8 can hold: half of a surrogate pair, as cut text has, is escaped."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def to_pandas(columns: Columns, rows: Iterable[tuple[Any, ...]], *, subject: str) -> Any:
    """Return a ``pandas.DataFrame`` of the rows; ``subject`` is what an error says needs it."""
    pandas = needed("pandas", extra="pandas", subject=subject)
    return pandas.DataFrame(
        {
            name: pandas.Series(values, dtype=_PANDAS[kind])
            for name, kind, values in _in_columns(columns, rows)
        }
    )


def to_polars(columns: Columns, rows: Iterable[tuple[Any, ...]], *, subject: str) -> Any:
    """Return a ``polars.DataFrame`` of the rows; ``subject`` is what an error says needs it."""
    polars = needed("polars", extra="polars", subject=subject)
    types: Mapping[Kind, Any] = {
        "text": polars.String,
        "json": polars.String,
        "truth": polars.Boolean,
        "whole": polars.Int64,
        "number": polars.Float64,
        "time": polars.Datetime("us", "UTC"),
    }
    return polars.DataFrame(
        [
            polars.Series(name, values, dtype=types[kind])
            for name, kind, values in _in_columns(columns, rows)
        ]
    )


def _in_columns(
    columns: Columns, rows: Iterable[tuple[Any, ...]]
) -> Iterable[tuple[str, Kind, list[Any]]]:
    """Yield the name, the kind and the values of each column."""
    by_row = list(rows)
    for place, (name, kind) in enumerate(columns.items()):
        values = [row[place] for row in by_row]
        if kind == "key":
            kind = "whole" if all(map(is_whole, values)) else "text"
            if kind == "text":
                values = [str(value) for value in values]
        if kind == "text":
            values = [None if value is None else utf8(value) for value in values]
        yield name, kind, values
