"""Values that aren't plain data: kept, and the same in every session."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import uuid
import zoneinfo
from collections.abc import AsyncIterator, Callable, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pydantic
import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import MockClock

import harness
from harness._value_types import ValueTypes
from harness.errors import FanOutError, HarnessWarning, JournalValueError
from harness.flow import Pipeline, Router
from harness.journal import open_journal, read_journal
from harness.journal._codec import Codec
from tests.support.memory_journal import MemoryJournal


class Colour(enum.Enum):
    RED = (255, 0, 0)
    BLUE = (0, 0, 255)


class Word(enum.StrEnum):
    YES = "yes"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: int
    when: datetime.date
    colour: Colour = Colour.RED


@attrs.frozen(cache_hash=True)
class Path_:
    _points: tuple[Point, ...]
    raw: bytes = b""


class Total(msgspec.Struct):
    sum: Decimal
    of: list[Path_]


class Pair(NamedTuple):
    left: int
    right: Total | None


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    id: uuid.UUID
    points: list[Point] = []
    link: pydantic.HttpUrl | None = None
    _seen: int = pydantic.PrivateAttr(default=0)


class Note(TypedDict):
    text: str
    colour: Colour


Anything = Point | Path_ | Total | Pair | Order | Word | Right


async def gives_anything(item: Any) -> dict[str, Anything] | Note:
    raise NotImplementedError


ZONES: list[Any] = [None, datetime.UTC, datetime.timezone(datetime.timedelta(hours=-3), "here")]
ZONES += [zoneinfo.ZoneInfo("Europe/Berlin")]

texts = st.text(max_size=8)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=8)
    | st.binary(max_size=8).map(bytearray)
    | st.dates()
    | st.datetimes(timezones=st.sampled_from(ZONES))
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.sampled_from([*Colour, *Word, Right.READ, Right.READ | Right.WRITE, Right(0)])
)
hashable = st.none() | st.booleans() | st.integers() | texts | st.dates() | st.sampled_from(Colour)
points = st.builds(Point, st.integers(), st.dates(), st.sampled_from(Colour))
paths = st.builds(Path_, st.lists(points, max_size=2).map(tuple), st.binary(max_size=4))
totals = st.builds(Total, st.decimals(allow_nan=False), st.lists(paths, max_size=2))


def an_order(id: uuid.UUID, points: list[Point], more: dict[str, Any], seen: int) -> Order:
    order = Order(id=id, points=points, **more)
    order._seen = seen
    return order


more = st.dictionaries(st.sampled_from(["a", "$", "v"]), leaves, max_size=2)
orders = st.builds(an_order, st.uuids(), st.lists(points, max_size=2), more, st.integers())
objects = points | paths | totals | st.builds(Pair, st.integers(), st.none() | totals) | orders
values = st.recursive(
    leaves | objects,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts | st.just("$"), inner, max_size=3)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.sets(hashable, max_size=3)
        | st.frozensets(hashable, max_size=3)
    ),
    max_leaves=12,
)


def shape(value: Any) -> Any:
    """Return what `==` doesn't see: of which class everything is."""
    if isinstance(value, dict):
        pairs = [(shape(key), shape(one)) for key, one in value.items()]
        return (type(value), pairs)
    if isinstance(value, list | tuple):
        return (type(value), [shape(one) for one in value])
    return type(value)


def codec_for(function: Callable[..., Any]) -> Codec:
    types = ValueTypes()
    assert types.add_returned(function) is None
    return Codec(classes=types.classes)


@given(values)
def test_values_come_back_as_they_were(value: Any) -> None:
    """In this session from what was written, and in the next from the text alone."""
    text, now = codec_for(gives_anything).encode(value)
    later = codec_for(gives_anything).decode(text)
    for back in (now, later):
        assert back == value
        assert shape(back) == shape(value)
    assert json.loads(text) is not Ellipsis, "any tool can read the file"


@given(values)
def test_two_values_never_have_one_text(value: Any) -> None:
    """What is a tag and what a value that looks like one can always be told."""
    codec = codec_for(gives_anything)
    text, _ = codec.encode(value)
    assert codec.encode(json.loads(text))[0] != text or shape(json.loads(text)) == shape(value)


nothing_named = st.recursive(
    st.none() | st.integers() | texts | st.binary(max_size=8) | st.dates() | st.uuids(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["$", "v", "a", "é"]) | st.integers(), inner, max_size=3)
    ),
)


@given(nothing_named)
@example({"$": "date", "v": "2030-01-01"})
def test_values_of_no_class_of_ones_own_need_no_annotation(value: Any) -> None:
    text, now = Codec().encode(value)
    for back in (now, Codec().decode(text)):
        assert back == value
        assert shape(back) == shape(value)


def test_what_pydantic_alone_can_write_comes_back() -> None:
    order = Order.model_validate({"id": uuid.UUID(int=1), "link": "https://example.org/"})
    codec = codec_for(gives_anything)
    assert codec.decode(codec.encode(order)[0]) == order


def test_objects_that_were_read_back_are_whole() -> None:
    codec = codec_for(gives_anything)
    [path] = codec.decode(codec.encode([Path_((), b"x")])[0])
    assert hash(path) == hash(Path_((), b"x"))
    order = an_order(uuid.UUID(int=1), [], {}, 7)
    back = codec.decode(codec.encode(order)[0])
    assert (back._seen, back.model_fields_set) == (7, order.model_fields_set)


# Over sessions ------------------------------------------------------------------------------------


class Answer(NamedTuple):
    of: int
    on: datetime.date


@dataclasses.dataclass
class Reply:
    answers: list[Answer]
    cost: Decimal


class Asked:
    """A function that says what it returns, and counts."""

    def __init__(self) -> None:
        self.items: list[int] = []

    async def __call__(self, item: int) -> Reply:
        self.items.append(item)
        await trio.sleep(1)
        return Reply([Answer(item, datetime.date(2030, 1, 1))], Decimal("1.10"))


async def session(path: str, function: Any, items: Any, **options: Any) -> Any:
    into = {name: options.pop(name) for name in ("types", "retry_failed") if name in options}
    async with open_journal(path, **into) as journal:
        options = {"policy": harness.BestEffort(), "name": "n", **options}
        return await harness.fan_out(function, items, journal=journal, key=str, **options)


@pytest.mark.slow
async def test_values_are_the_same_in_the_next_session(
    journal_path: str, autojump_clock: MockClock
) -> None:
    """They failed, every one of them, after all had been paid for."""
    asked = Asked()
    first = await session(journal_path, asked, range(3))
    assert first.complete
    assert await session(journal_path, asked, range(3)) is not first
    again = (await session(journal_path, asked, range(3))).values()
    assert again == first.values()
    assert again[0] == Reply([Answer(0, datetime.date(2030, 1, 1))], Decimal("1.10"))
    assert type(again[0].answers[0]) is Answer
    assert sorted(asked.items) == [0, 1, 2]


async def test_a_class_that_the_code_of_a_function_names_is_known(
    journal_path: str, autojump_clock: MockClock
) -> None:
    @dataclasses.dataclass
    class Local:
        text: str

    async def answer(item):  # type: ignore[no-untyped-def]
        return {"of": (Local(str(item)), Word.YES)}

    for _ in range(2):
        [value] = (await session(journal_path, answer, [1])).values()
        assert value == {"of": (Local("1"), Word.YES)}
        assert value["of"][1] is Word.YES


def made_elsewhere(item: int) -> Any:
    return Point(item, datetime.date(2030, 1, 1))


async def test_a_class_that_nothing_names_is_told_at_once_and_read_once_it_is_given(
    journal_path: str, autojump_clock: MockClock
) -> None:
    """The answers aren't lost; but whoever resumes at night has to hear of it in time."""

    async def answer(item: int) -> Any:
        return made_elsewhere(item)

    with pytest.warns(HarnessWarning, match="annotate the function with -> Point, or give"):
        results = await session(journal_path, answer, range(2))
    assert results.values()[1] == made_elsewhere(1)
    with pytest.raises(JournalValueError, match=r"has a Point, .* types=\[Point\]"):
        await session(journal_path, answer, range(2))
    results = await session(journal_path, answer, range(3), types=[Point])
    assert results.values() == [made_elsewhere(item) for item in range(3)]


def test_a_class_that_only_the_file_names_is_never_looked_up() -> None:
    """Else whoever can write the file could have any class of the program made."""
    for name in ("harness.errors:HarnessError", "subprocess:Popen", f"{__name__}:Point", "os:x"):
        text = json.dumps({"$": name, "v": {"x": 1}})
        with pytest.raises(JournalValueError, match="the function doesn't say that it returns one"):
            Codec().decode(text)
    for name in ("no form", "dict:", ""):
        with pytest.raises(JournalValueError):
            Codec().decode(json.dumps({"$": name, "v": []}))


@pytest.mark.slow
async def test_pipelines_and_routers_say_what_their_functions_return(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def first(item: int) -> int:
        return item

    async def last(item: int) -> Point:
        return Point(item, datetime.date(2030, 1, 1))

    router = Router(lambda item: "only", tracks={"only": last})
    for number, function in enumerate((Pipeline(first, last), router, partial(last))):
        path = str(tmp_path / f"{number}.db")
        for _ in range(2):
            [value] = (await session(path, function, [1])).values()
            assert value == Point(1, datetime.date(2030, 1, 1))


# A class that has changed -------------------------------------------------------------------------


def old_text(cls: type, **fields: Any) -> str:
    """Return what an older version of a class left in the file."""
    return json.dumps({"$": f"{cls.__module__}:{cls.__qualname__}", "v": fields})


def test_fields_that_a_class_has_got_since_take_their_defaults() -> None:
    @dataclasses.dataclass
    class New:
        a: int
        b: list[int] = dataclasses.field(default_factory=list)
        c: int = 3

    @attrs.frozen
    class NewToo:
        a: int
        b: list[int] = attrs.field(factory=list)
        c: int = 3

    class Struct(msgspec.Struct):
        a: int
        b: list[int] = []
        c: int = 3

    class Tuple(NamedTuple):
        a: int
        b: tuple[int, ...] = ()
        c: int = 3

    for cls in (New, NewToo, Struct, Tuple):
        read = Codec(classes=[cls]).decode(old_text(cls, a=1))
        assert read == cls(1)


def test_fields_that_a_class_has_lost_or_must_have_are_said() -> None:
    codec = Codec(classes=[Point, Total])
    with pytest.raises(JournalValueError, match="a Point has no 'y' any more"):
        codec.decode(old_text(Point, x=1, when=None, y=1))
    with pytest.raises(JournalValueError, match="a Point has 'when' now, which has no default"):
        codec.decode(old_text(Point, x=1))
    with pytest.raises(JournalValueError, match="'of'"):
        codec.decode(old_text(Total, sum=1))


def test_a_class_of_a_script_is_known_where_the_script_is_imported() -> None:
    text = json.dumps({"$": "__main__:Word", "v": "YES"})
    assert Codec(classes=[Word]).decode(text) is Word.YES


def test_what_is_more_than_its_fields_is_refused() -> None:
    @dataclasses.dataclass
    class Listed(list[int]):
        a: int

    @dataclasses.dataclass
    class More:
        a: int

    more = More(1)
    more.b = 2  # type: ignore[attr-defined]
    for value, why in ((Listed(1), "more than its fields"), (more, "'b', which is none of its")):
        with pytest.raises(JournalValueError, match=why):
            Codec(classes=[type(value)]).encode(value)


# What can't be kept -------------------------------------------------------------------------------


class Connection:
    """Nobody can write this down."""


@dataclasses.dataclass
class Holds:
    connections: list[Connection]


@dataclasses.dataclass
class MayHold:
    connection: Connection | None = None


async def gives_connection(item: int) -> Connection:
    raise AssertionError("nothing is called")


async def gives_holder(item: int) -> dict[str, Holds]:
    raise AssertionError("nothing is called")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (gives_connection, r"gives_connection\(\) is annotated to return Connection, which"),
        (gives_holder, "to return Holds with Connection in it"),
    ],
)
async def test_what_cannot_be_kept_is_refused_before_it_is_paid_for(
    tmp_path: Path, function: Any, words: str
) -> None:
    path = str(tmp_path / "run.db")
    with pytest.raises(JournalValueError, match=words):
        await session(path, function, range(3))
    with pytest.raises(JournalValueError, match=words):
        async with open_journal(path) as journal:
            async with harness.open_fan_out(function, range(3), journal=journal, key=str):
                pass
    async with open_journal(path, encode=repr, decode=repr) as journal:
        assert (await harness.fan_out(function, [], journal=journal, key=str)).values() == []


def test_what_an_annotation_leaves_open_is_not_refused() -> None:
    class Base:
        pass

    @dataclasses.dataclass
    class Derived(Base):
        a: int

    class Text(str):
        pass

    hints: list[Any] = [
        Any,
        object,
        None,
        int | None,
        MayHold,
        Connection | None,
        Mapping[str, Any],
        Callable[[int], Connection],
        Base,
        Text,
        Literal[Colour.RED, 1],
        Note,
        dict[str, tuple[int, ...]],
        AsyncIterator[int],
    ]
    for hint in hints:
        assert ValueTypes().add(hint) is None, hint
    hints = [Connection, list[Connection], tuple[int, Connection], Connection | Holds]
    for hint in hints:
        assert ValueTypes().add(hint) is not None, hint


async def test_types_are_classes_that_can_be_kept(tmp_path: Path) -> None:
    for types in ([Connection], [Holds], ["Point"]):
        with pytest.raises(TypeError, match=r"open_journal\(types="):
            open_journal(tmp_path / "run.db", types=types)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="leave types= out"):
        open_journal(tmp_path / "run.db", types=[Point], encode=repr, decode=eval)


@pytest.mark.parametrize("kept_before", [False, True])
async def test_a_fan_out_ends_if_none_of_its_first_20_values_can_be_kept(
    journal_path: str, autojump_clock: MockClock, kept_before: bool
) -> None:
    """Two thousand answers were paid for and none was kept."""
    called: list[int] = []

    async def answer(item: int) -> Any:
        called.append(item)
        await trio.sleep(1)
        return "kept" if kept_before and item == 7 else open_journal

    if kept_before:
        results = await session(journal_path, answer, range(100), limit=5)
        assert (len(results.failed), len(called)) == (99, 100)
        return
    with pytest.raises(JournalValueError, match="none of the first 20 values of the batch 'n'"):
        await session(journal_path, answer, range(2000), limit=5)
    assert len(called) <= 25
    with read_journal(journal_path) as reader:
        totals = reader.totals("n")
    assert (totals.failed, totals.attempts, totals.lost_attempts) == (20, 20, 0)


async def test_fewer_items_than_that_just_fail(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def answer(item: int) -> Any:
        return open_journal

    results = await session(str(tmp_path / "run.db"), answer, range(19))
    assert [type(one.error) for one in results] == [JournalValueError] * 19
    with pytest.raises(FanOutError, match="in an earlier session"):
        await session(str(tmp_path / "run.db"), answer, range(19), policy=harness.FailFast())


async def test_a_fallback_counts_as_a_value(autojump_clock: MockClock) -> None:
    journal = MemoryJournal()

    async def answer(item: int) -> Any:
        return open_journal

    results = await harness.fan_out(
        answer,
        range(100),
        journal=journal,
        key=str,
        each=harness.Attempt(fallback=lambda item, error: "instead"),
        policy=harness.BestEffort(),
    )
    assert results.values() == ["instead"] * 100
