"""Encoding what a function returned."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import uuid
from collections import OrderedDict
from decimal import Decimal
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness._json_value import UnwritableValueError, encode_text, encode_value


class Label(NamedTuple):
    name: str
    score: float


class Size(enum.IntEnum):
    SMALL = 1


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Ticket:
    id: int
    raw: bytes
    more: dict[Any, Any]


@attrs.frozen
class Order:
    tickets: list[Ticket]


class Row(msgspec.Struct):
    total: Decimal


class Model(pydantic.BaseModel):
    at: datetime.date


@pytest.mark.slow
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    )
)
def test_what_json_can_hold_comes_back_from_one_line_of_utf8(value: Any) -> None:
    """Also for readers that cut at every line break of Unicode."""
    text = encode_value(value)
    assert json.loads(text.encode()) == value
    assert len(text.splitlines()) == 1


def test_text_is_written_as_it_reads() -> None:
    assert encode_value("größer 😀") == '"größer 😀"'
    assert encode_text("a\u2028b\ud800") == '"a\\u2028b\\ud800"'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, 2), "[1, 2]"),
        (Label("a", 0.5), '["a", 0.5]'),
        (OrderedDict(a=1), '{"a": 1}'),
        (Size.SMALL, "1"),
        (None, "null"),
        (Decimal("1.50"), '"1.50"'),
        (b"\xff", '"/w=="'),
        (datetime.date(2030, 1, 2), '"2030-01-02"'),
        (datetime.datetime(2030, 1, 2, 3, tzinfo=datetime.UTC), '"2030-01-02T03:00:00+00:00"'),
        (datetime.timedelta(minutes=1), "60.0"),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        ([Colour.RED, {"of": (Colour.RED,)}], '["red", {"of": ["red"]}]'),
        (Ticket(1, b"x", {}), '{"id": 1, "raw": "eA==", "more": {}}'),
        (Order([Ticket(1, b"", {})]), '{"tickets": [{"id": 1, "raw": "", "more": {}}]}'),
        (Row(Decimal(1)), '{"total": "1"}'),
        (Model(at=datetime.date(2030, 1, 2)), '{"at": "2030-01-02"}'),
    ],
)
def test_kinds_of_the_same_shape_are_written_as_their_json(value: Any, text: str) -> None:
    assert encode_value(value) == text


def circle() -> list[Any]:
    value: list[Any] = []
    value.append({"again": value})
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(200_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({1, 2}, "the value is of type set, which JSON can't hold; return a list"),
        ({"a": [0, {"b": {1}}]}, "the value['a'][1]['b'] is of type set"),
        (object(), "of type object"),
        ([Ticket(1, b"x", {"when": object()})], "the value[0].more['when'] is of type object"),
        (Ticket(1, b"x", {1: "a"}), "the value.more is a dict with the key 1"),
        (Ticket(1, b"x", {"in": {2: "a"}}), "the value.more['in'] is a dict with the key 2"),
        (float("nan"), "the value is nan"),
        ({"score": float("-inf")}, "the value['score'] is -inf, which JSON can't hold"),
        ({1: "a"}, "the value is a dict with the key 1, but in JSON all keys are strings"),
        ([{"a": {None: 1}}], "the value[0]['a'] is a dict with the key None"),
        ({(1, 2): "a"}, "the key (1, 2)"),
        (circle(), "contains itself"),
        ([10**5_000], "digits"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(UnwritableValueError) as caught:
        encode_value(value)
    assert words in str(caught.value)


@pytest.mark.slow
def test_value_nested_too_deeply_is_refused_and_not_a_crash() -> None:
    with pytest.raises(UnwritableValueError, match="nested too deeply"):
        encode_value(deep())
