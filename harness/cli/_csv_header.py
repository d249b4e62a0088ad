"""Read off a CSV file's first row how its columns are separated, and what they are called.

A comma anywhere outside of quotes settles it: that is what CSV is, and a file that Python's own
reader takes must not be read otherwise because a column's name has a semicolon in it. Only a first
row that would be a single column is tried with what else separates columns.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Final

from harness.cli._errors import InputError

COMMA: Final = ","
TAB: Final = "\t"

_OTHERS = (";", TAB, "|")


def told_delimiter(lines: Sequence[str], columns: int) -> str:
    """Return what separates the columns.

    Args:
      lines: The lines of the first row, read as separated by commas.
      columns: How many columns it then has.
    """
    if columns > 1:
        return COMMA
    counts = {other: len(next(csv.reader(lines, delimiter=other))) for other in _OTHERS}
    most = max(counts, key=counts.__getitem__)
    return most if counts[most] > 1 else COMMA


def could_be_another(delimiter: str, columns: Sequence[str]) -> bool:
    """Return whether something else than ``delimiter`` might separate the columns."""
    return delimiter != COMMA or any(other in name for name in columns for other in _OTHERS)


def column_names(row: Sequence[str], place: str) -> list[str]:
    """Return the names of the columns; one without a name is called by its number, from 1.

    Args:
      row: The first row.
      place: The input and the line, for the error.

    Raises:
      InputError: if a name is there twice, or the row isn't text.
    """
    if any("\0" in name for name in row):
        raise InputError(f"{place}: {NUL_PROBLEM}")
    named = [name for name in row if name.strip()]
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise InputError(
            f"{place}: the first row names the columns, and {', '.join(map(repr, twice))} is there "
            "twice; give each column a name of its own"
        )
    taken = set(named)
    names = []
    for number, name in enumerate(row, 1):
        if not name.strip():
            name = f"column_{number}"
            while name in taken:
                name += "_"
        names.append(name)
    return names


def shown(delimiter: str) -> str:
    """Return a delimiter as people call it, and as ``--delimiter`` takes it."""
    return "tabs" if delimiter == TAB else repr(delimiter)


NUL_PROBLEM: Final = (
    "expected UTF-8 text, but found NUL characters, as UTF-16 has them; save the input as UTF-8"
)
