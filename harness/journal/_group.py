"""The one statement that appends a group of records to several tables of SQLite.

A statement inserts into one table only, so these insert into a view with no rows, and triggers pass
each row on to its table. Both belong to the connection and are not in the file. The writer's token
is checked on the way: without it a trigger fails, and with the trigger the whole statement.
"""

from __future__ import annotations

from functools import cache
from itertools import repeat
from typing import Any, NamedTuple

from harness.journal._backend import Rows
from harness.journal._schema import COLUMNS

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of each table that a statement can take; it is padded to the next of these sizes with empty
rows. Each is prepared once."""

_WIDTH = max(len(columns) for columns in COLUMNS.values())
_VALUES = [f"v{number}" for number in range(1, _WIDTH + 1)]


def _setup() -> list[str]:
    nothing = ", ".join(f"NULL AS {name}" for name in _VALUES)
    statements = [
        f"CREATE TEMP VIEW harness_group AS SELECT NULL AS target, {nothing} WHERE 0",
        "CREATE TEMP TRIGGER harness_group_token INSTEAD OF INSERT ON harness_group "
        "WHEN NEW.target = 'token' AND NOT EXISTS "
        "(SELECT 1 FROM harness_meta WHERE name = 'owner' AND value = NEW.v1) "
        "BEGIN SELECT RAISE(ABORT, 'the token is not ours'); END",
    ]
    for table, columns in COLUMNS.items():
        values = ", ".join(f"NEW.{name}" for name in _VALUES[: len(columns)])
        statements.append(
            f"CREATE TEMP TRIGGER {table}_of_group INSTEAD OF INSERT ON harness_group "
            f"WHEN NEW.target = '{table}' BEGIN "
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values}); END"
        )
    return statements


SETUP = _setup()
"""What a connection executes before it appends."""


class Append(NamedTuple):
    """A statement that appends rows, and what it takes."""

    statement: str
    values: list[Any]
    rows: int | None
    """How many rows it inserts if the token is ours; None if it fails by itself otherwise."""


def appends(rows: Rows, token: str) -> list[Append]:
    """Return the statements that append rows; usually one.

    Args:
      rows: The rows.
      token: What the journal must have as its owner.
    """
    found: list[Append] = []
    start = 0
    while True:
        parts: list[tuple[str, list[Any], int]] = []
        most = 0
        for table, values in rows.items():
            width = len(COLUMNS[table])
            part = values[start * width : (start + SIZES[-1]) * width]
            if part:
                parts.append((table, part, width))
                most = max(most, len(part) // width)
        if not parts:
            return found
        start += SIZES[-1]
        size = next(size for size in SIZES if size >= most)
        if len(parts) == 1:  # Without the view, which costs a third more.
            [(table, part, width)] = parts
            part += repeat(None, size * width - len(part))
            part.append(token)
            found.append(Append(_insert(table, size), part, most))
            continue
        together: list[Any] = [token]
        for _, part, width in parts:
            together += part
            together += repeat(None, size * width - len(part))
        tables = tuple(table for table, _, _ in parts)
        found.append(Append(_insert_group(tables, size), together, None))


@cache
def _insert(table: str, size: int) -> str:
    """Return the statement that takes this many rows of one table, and a token."""
    columns = COLUMNS[table]
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT * FROM {_rows(len(columns), size)} AND "
        "EXISTS (SELECT 1 FROM harness_meta WHERE name = 'owner' AND value = ?)"
    )


@cache
def _insert_group(tables: tuple[str, ...], size: int) -> str:
    """Return the statement that takes a token, and this many rows of each table."""
    selects = [f"SELECT 'token', ?{', NULL' * (_WIDTH - 1)}"]
    for table in tables:
        width = len(COLUMNS[table])
        columns = [f"column{number}" for number in range(1, width + 1)]
        columns += ["NULL"] * (_WIDTH - width)
        selects.append(f"SELECT '{table}', {', '.join(columns)} FROM {_rows(width, size)}")
    return f"INSERT INTO harness_group {' UNION ALL '.join(selects)}"


def _rows(width: int, size: int) -> str:
    row = f"({', '.join('?' * width)})"
    return f"(VALUES {', '.join([row] * size)}) WHERE column1 IS NOT NULL"
