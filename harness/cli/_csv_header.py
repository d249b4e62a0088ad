"""Tell from a CSV file's first row how its columns are separated, and what they are called.

A comma anywhere outside quotes settles it: that is what CSV is, and a file that Python's own reader
accepts must not be read differently because a column's name has a semicolon in it. Other separators
are tried only if the first row would be a single column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from harness.cli._errors import InputError

COMMA: Final = ","
TAB: Final = "\t"

_OTHERS = (";", TAB, "|")
_QUOTED = re.compile(r'"(?:[^"]|"")*"(?!")')


def told_delimiter(text: str) -> str:
    """Return what separates the columns of a first row, as it is written.

    If several could, it is the one that makes the most columns; a comma beats all others.
    """
    counts = {delimiter: _columns(text, delimiter) for delimiter in (COMMA, *_OTHERS)}
    if counts[COMMA] > 1:
        return COMMA
    most = max(counts, key=counts.__getitem__)
    return most if counts[most] > 1 else COMMA


def _columns(text: str, delimiter: str) -> int:
    """Return how many columns a delimiter makes; 0 if it would leave text after a quoted one.

    Python's reader takes such text as part of the column, and so accepts every delimiter.
    """
    columns = 0
    rest: str | None = text.rstrip("\r\n")
    while rest is not None:
        columns += 1
        if not rest.startswith('"'):
            _, separator, after = rest.partition(delimiter)
            rest = after if separator else None
            continue
        quoted = _QUOTED.match(rest)
        if quoted is None:
            return columns  # Its closing quote is on another line.
        after = rest[quoted.end() :]
        if after and not after.startswith(delimiter):
            return 0
        rest = after[1:] if after else None
    return columns


def could_be_another(delimiter: str, columns: Sequence[str]) -> bool:
    """Return whether something other than ``delimiter`` might separate the columns."""
    return delimiter != COMMA or any(other in name for name in columns for other in _OTHERS)


def column_names(row: Sequence[str], place: str) -> list[str]:
    """Return the names of the columns; one without a name goes by its number, from 1.

    Args:
      row: The first row.
      place: The input and the line, for the error.

    Raises:
      InputError: if a name occurs twice, or the row isn't text.
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
    names: list[str] = []
    for number, name in enumerate(row, 1):
        if not name.strip():
            name = f"column_{number}"
            while name in taken:
                name += "_"
        names.append(name)
    return names


def shown(delimiter: str) -> str:
    """Return what people call a delimiter, in a form that ``--delimiter`` takes."""
    return "tabs" if delimiter == TAB else repr(delimiter)


NUL_PROBLEM: Final = (
    "expected UTF-8 text, but found NUL characters, as UTF-16 has them; save the input as UTF-8"
)
