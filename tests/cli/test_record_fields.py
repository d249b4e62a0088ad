"""Naming records by a field."""

from __future__ import annotations

from typing import Any

import pytest

from harness.cli._errors import InputError
from harness.cli._record_fields import KEY, RecordField, with_fields
from harness.cli._records import Record

ID = [RecordField(KEY, "id")]


def keyed(*values: Any, problem: str | None = None) -> list[str | None]:
    records = (Record(i, i + 1, value, str(i), problem) for i, value in enumerate(values))
    return [record.key for record in with_fields(records, ID, source="tickets.jsonl")]


def test_keys_are_text() -> None:
    assert keyed({"id": "a"}, {"id": 7}, {"id": 1.5}, {"id": 0}) == ["a", "7", "1.5", "0"]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({}, "the key 'id' is missing; the record's fields are none"),
        ({"ID": 1, "x": 2}, "the record's fields are 'ID', 'x'"),
        ({"id": None}, "is empty"),
        ({"id": ""}, "is empty"),
        ({"id": [1]}, "is of type list"),
        ({"id": True}, "is of type bool"),
        ("text", "no JSON object"),
        (None, "no JSON object"),
    ],
)
def test_record_without_a_key_is_refused_where_it_stands(record: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        keyed({"id": "a"}, record)
    assert caught.value.message.startswith("tickets.jsonl, line 2: ")
    assert words in caught.value.message


@pytest.mark.parametrize(("one", "other"), [("a", "a"), (7, "7"), (1.0, "1.0")])
def test_same_key_twice_is_refused_where_it_stands(one: Any, other: Any) -> None:
    with pytest.raises(
        InputError, match=r", line 3: the key 'id' .* earlier record, that of line 1;"
    ):
        keyed({"id": one}, {"id": "between"}, {"id": other})


def test_records_before_the_missing_key_come_out_first() -> None:
    records = (Record(i, i, {"id": i} if i < 3 else {}, str(i)) for i in range(10))
    seen = []
    with pytest.raises(InputError):
        for record in with_fields(records, ID, source="x"):
            seen.append(record.key)
    assert seen == ["0", "1", "2"]


def test_record_that_cannot_be_read_has_no_key() -> None:
    assert keyed("oops", "oops", problem="not JSON") == [None, None]


def test_half_a_surrogate_pair_is_a_key_too() -> None:
    assert keyed({"id": "\ud800"}) == ["\ud800"]
