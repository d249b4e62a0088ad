"""Two values have the same hash if and only if their content is the same."""

import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import subprocess
import sys
import uuid
from collections import OrderedDict
from typing import Any, NamedTuple

import attrs
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fanin import content_hash


@dataclasses.dataclass
class Fact:
    subject: str
    about: Any
    seen_at: float = dataclasses.field(default=0.0, compare=False)


@attrs.define
class Finding:
    subject: str
    about: Any
    seen_at: float = attrs.field(default=0.0, eq=False)


class Pair(NamedTuple):
    first: int
    second: int


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Struct:
    """As msgspec's structs show themselves."""

    __struct_fields__ = ("a", "b")

    def __init__(self, a: int, b: int) -> None:
        self.a, self.b = a, b


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    id: int
    _origin: str = pydantic.PrivateAttr("here")


def model(origin: str = "here", **fields: Any) -> Model:
    made = Model(id=1, **fields)
    made._origin = origin
    return made


@dataclasses.dataclass
class Rows(list[int]):
    source: str


@dataclasses.dataclass
class OwnEq:
    """What it compares is in its own code."""

    number: int
    unit: str = dataclasses.field(compare=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnEq) and (self.number, self.unit) == (other.number, other.unit)

    __hash__ = None  # type: ignore[assignment]


class Tagged(dict[str, int]):
    """A dict that compares more than a dict does."""

    __slots__ = ("tag",)

    def __init__(self, tag: str, **fields: int) -> None:
        super().__init__(fields)
        self.tag = tag

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tagged) and self.tag == other.tag and super().__eq__(other)

    __hash__ = None


@attrs.define(eq=False)
class Identity:
    number: int


@dataclasses.dataclass(eq=False)
class IdentityToo:
    number: int = dataclasses.field(compare=False)


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


SAME: list[tuple[Any, Any]] = [
    ({"a": 1, "b": [2, {"c": 3}]}, {"b": [2, {"c": 3}], "a": 1}),
    ([1, 2], (1, 2)),
    (Pair(1, 2), [1, 2]),
    ({3, 1, 2}, frozenset([1, 2, 3])),
    (1, 1.0),
    (0.0, -0.0),
    (math.nan, float("nan")),
    (10**400, 10**400),
    (b"x", bytearray(b"x")),
    (Fact("a", {"x": [1]}, 1.0), Fact("a", {"x": [1]}, 2.0)),
    (Finding("a", None, 1.0), Finding("a", None, 2.0)),
    (Struct(1, 2), Struct(1, 2)),
    (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    (datetime.date(2024, 1, 1), datetime.date(2024, 1, 1)),
    (Color.RED, Color.RED),
    (Rights(0), Rights(0)),
    (model(a=1), model(a=1)),
    (Rows("a"), Rows("a")),
    (Tagged("a", x=1), Tagged("a", x=1)),
    (Identity(1), Identity(1)),
    (OrderedDict(a=1, b=2), {"b": 2, "a": 1}),
    ("\ud800", "\ud800"),
]
DIFFERENT: list[tuple[Any, Any]] = [
    (1, True),
    (0, False),
    (0, None),
    ("1", 1),
    ("x", b"x"),
    ("", None),
    ([], {}),
    ([], set()),
    ([1, 2], [2, 1]),
    ([1, 2], {1, 2}),
    (["ab"], ["a", "b"]),
    ([["a"], "b"], [["a", "b"]]),
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, [("a", 1)]),
    ({1: "a"}, {"1": "a"}),
    (Fact("a", 1), Finding("a", 1)),
    (Fact("a", 1), {"subject": "a", "about": 1, "seen_at": 0.0}),
    (Fact("a", 1), Fact("b", 1)),
    (Color.RED, Color.BLUE),
    (Color.RED, 1),
    (0.1 + 0.2, 0.3),
    (2**53, 2**53 + 1),
    (datetime.date(2024, 1, 1), "2024-01-01"),
    (pathlib.PurePosixPath("a"), "a"),
    (uuid.UUID(int=1), uuid.UUID(int=2)),
    ("é", "e\u0301"),
    (model(text="old"), model(text="new")),
    (model(text="old"), model()),
    (model("here"), model("there")),
    (Rows("a"), Rows("b")),
    (OwnEq(1, "m"), OwnEq(1, "km")),
    (Tagged("a", x=1), Tagged("b", x=1)),
    (Identity(1), Identity(2)),
    (IdentityToo(1), IdentityToo(2)),
    (Rights(0), Rights.READ),
    (Rights.READ, Rights.READ | Rights.WRITE),
]

EXACTLY_DIFFERENT: list[tuple[Any, Any]] = [
    ([1, 2], (1, 2)),
    (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_content_has_the_same_hash(one: Any, other: Any) -> None:
    assert content_hash(one) == content_hash(other)
    assert content_hash([one]) == content_hash([other])
    assert content_hash({"in": one}) == content_hash({"in": other})


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_other_content_has_another_hash(one: Any, other: Any) -> None:
    assert content_hash(one) != content_hash(other)
    assert content_hash([one]) != content_hash([other])


@pytest.mark.parametrize(("one", "other"), [*DIFFERENT, *EXACTLY_DIFFERENT])
def test_the_exact_hash_sees_all_that_equality_sees(one: Any, other: Any) -> None:
    assert content_hash(one, exact=True) != content_hash(other, exact=True)
    assert content_hash(Fact("a", [one]), exact=True) != content_hash(
        Fact("a", [other]), exact=True
    )


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_exact_hash_is_the_same_for_what_is_equal(one: Any, other: Any) -> None:
    if one == other and type(one) is type(other):
        assert content_hash(one, exact=True) == content_hash(other, exact=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@pytest.mark.slow
@given(one=JSON, other=JSON)
def test_of_json_the_hash_tells_what_sorted_json_tells(one: Any, other: Any) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            return int(value)  # As ``==`` has it, 1 and 1.0 are the same.
        if isinstance(value, list):
            return [plain(entry) for entry in value]
        if isinstance(value, dict):
            return {name: plain(entry) for name, entry in value.items()}
        return value

    same = json.dumps(plain(one), sort_keys=True) == json.dumps(plain(other), sort_keys=True)
    assert (content_hash(one) == content_hash(other)) is same
    assert content_hash(json.loads(json.dumps(one))) == content_hash(one)


@pytest.mark.slow
def test_the_hash_is_the_same_in_every_process() -> None:
    """Each orders sets and hashes text differently."""
    program = "from harness.fanin import content_hash as h; print(h({'x': {'a', 'b', 'c', 1.5}}))"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == content_hash({"x": {"a", "b", "c", 1.5}})


class Connection:
    pass


def test_what_has_no_visible_content_is_refused_with_the_way_to_it() -> None:
    with pytest.raises(TypeError, match=r"content of a Connection can't be hashed; return plain"):
        content_hash(Connection())
    inside = {"items": [1, Fact("a", (2, Connection()))]}
    with pytest.raises(TypeError) as caught:
        content_hash(inside)
    assert "Connection can't be hashed (at ['items'][1].about[1] of a dict)" in str(caught.value)
    with pytest.raises(TypeError, match="dedupe=lambda"):
        content_hash(lambda: None)


def test_what_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="contains itself"):
        content_hash(endless)
