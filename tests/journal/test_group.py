"""The statement that appends a whole group of records: all of it or nothing, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import JournalError, JournalLockedError
from harness.journal import _group
from harness.journal._owner import this_process
from harness.journal._sqlite import SqliteBackend


def rows(numbers: range) -> dict[str, list[Any]]:
    """Return an item, an attempt and an ending for each number."""
    made: dict[str, list[Any]] = {
        "harness_items": [],
        "harness_attempts": [],
        "harness_endings": [],
    }
    for n in numbers:
        made["harness_items"] += n, 1, b"digest", str(n), b"hash"
        made["harness_attempts"] += 2 * n, n, 1, 0, 1.5
        made["harness_endings"] += (
            *(2 * n + 1, n, 2 * n, 1, "ok", 1, 0, 2.5, 1.0),
            *('{"é":1}', None, None, 3, 0.25, "in f", "run-1"),
        )
    return made


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    opened = SqliteBackend(tmp_path / "run.db")
    opened.open(this_process())
    yield opened
    opened.close()


def all_of(backend: SqliteBackend, table: str) -> list[Any]:
    return [value for row in backend.fetch(f"SELECT * FROM {table} ORDER BY id") for value in row]


@pytest.mark.parametrize("count", [1, 2, 3, 50, 256, 257, 600])
def test_every_row_arrives_in_its_table_as_it_was(backend: SqliteBackend, count: int) -> None:
    """Also at the sizes where a statement is full, or padded."""
    given = rows(range(1, count + 1))
    backend.write(given)
    for table, values in given.items():
        assert all_of(backend, table) == values


@pytest.mark.parametrize("table", ["harness_items", "harness_attempts", "harness_endings"])
def test_rows_of_one_table_arrive_too(backend: SqliteBackend, table: str) -> None:
    given = rows(range(1, 301))[table]
    backend.write({table: given})
    assert all_of(backend, table) == given


@pytest.mark.parametrize("tables", [1, 2, 3])
def test_most_groups_are_one_statement(tables: int) -> None:
    """Each one gives Python's lock away, and waits for milliseconds until it has it back."""
    some = dict(list(rows(range(1, 257)).items())[:tables])
    assert len(_group.appends(some, "token")) == 1


def test_nothing_is_no_statement() -> None:
    assert _group.appends({"harness_items": []}, "token") == []


@pytest.mark.parametrize("count", [1, 300])
@pytest.mark.parametrize("tables", [1, 3])
def test_without_the_token_nothing_is_written(
    backend: SqliteBackend, count: int, tables: int
) -> None:
    """However the group is written."""
    stranger = '{"token": "x", "pid": 7, "host": "far", "since": 1e9}'
    backend.change([("UPDATE harness_meta SET value = ? WHERE name = 'owner'", (stranger,))])
    given = dict(list(rows(range(1, count + 1)).items())[:tables])
    with pytest.raises(JournalLockedError, match="taken over by process 7 on far"):
        backend.write(given)
    for table in given:
        assert all_of(backend, table) == []


@pytest.mark.parametrize("count", [2, 300])
def test_a_row_that_is_refused_takes_its_group_along(backend: SqliteBackend, count: int) -> None:
    """A number that is taken: a mistake of ours, and told as what it is."""
    backend.write({"harness_attempts": [2 * count, 0, 1, 0, 1.5]})
    with pytest.raises(JournalError, match="UNIQUE"):
        backend.write(rows(range(1, count + 1)))
    assert all_of(backend, "harness_items") == []
    backend.write({"harness_attempts": [2 * count + 2, 0, 1, 0, 1.5]})
    assert len(all_of(backend, "harness_attempts")) == 10
