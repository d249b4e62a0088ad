"""What a model is told about a function, and what it may pass."""

from __future__ import annotations

import datetime
import enum
import functools
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import attrs
import msgspec
import pytest
import trio

from harness.agents import Agent, tool
from harness.errors import ToolArgumentsError
from tests.agents.fakes import Script


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


@attrs.frozen
class Card:
    number: str
    colour: Colour = Colour.RED


class Box(msgspec.Struct):
    points: list[Point]


def call(fn: Any, arguments: dict[str, Any]) -> Any:
    """Call the tool made of an async function as a model would."""
    return trio.run(tool(fn).invoke, arguments, "c1")


async def everything(
    text: str,
    number: float,
    choice: Literal["a", "b"],
    colour: Colour,
    point: Point,
    card: Card,
    box: Box,
    maybe: int | None,
    anything: Any,
    many: list[str],
    when: datetime.date,
    limit: int = 10,
    where: Point = Point(1, 2),  # noqa: B008 (a default that JSON can say)
) -> dict[str, Any]:
    """Do everything.

    And more than that.

    Args:
      text: What to say,
        over two lines.
      number (float): How much.
      limit: How many: at most.

    Returns:
      What was given.

    Raises:
      ValueError: never.
    """
    return dict(locals())


ARGUMENTS: dict[str, Any] = {
    "text": "hi",
    "number": 2,
    "choice": "b",
    "colour": "blue",
    "point": {"x": 3},
    "card": {"number": "17"},
    "box": {"points": [{"x": 1}]},
    "maybe": None,
    "anything": {"a": [1]},
    "many": ["x"],
    "when": "2024-02-29",
}


def test_the_description_is_the_docstring_without_what_only_callers_need() -> None:
    assert tool(everything).description == "Do everything.\n\nAnd more than that."


def test_the_schema_is_that_of_the_signature() -> None:
    schema = tool(everything).parameters
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == set(ARGUMENTS)
    properties = schema["properties"]
    assert properties["text"] == {"type": "string", "description": "What to say, over two lines."}
    assert properties["number"]["description"] == "How much."
    assert properties["limit"] == {
        "type": "integer",
        "description": "How many: at most.",
        "default": 10,
    }
    assert properties["choice"] == {"enum": ["a", "b"], "type": "string"}
    assert properties["where"]["default"] == {"x": 1, "y": 2}
    assert properties["anything"] == {}
    for name in ("Point", "Card", "Box", "Colour"):
        assert name in schema["$defs"]
    msgspec.json.encode(schema)


def test_arguments_become_what_the_signature_says() -> None:
    given = call(everything, ARGUMENTS)
    assert given == {
        "text": "hi",
        "number": 2.0,
        "choice": "b",
        "colour": Colour.BLUE,
        "point": Point(3, 0),
        "card": Card("17", Colour.RED),
        "box": Box([Point(1)]),
        "maybe": None,
        "anything": {"a": [1]},
        "many": ["x"],
        "when": datetime.date(2024, 2, 29),
        "limit": 10,
        "where": Point(1, 2),
    }
    assert type(given["number"]) is float


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"text": 3}, r"\$\.text"),
        ({"choice": "c"}, r"\$\.choice"),
        ({"colour": "green"}, r"\$\.colour"),
        ({"point": {"x": "3"}}, r"\$\.point\.x"),
        ({"many": ["x", 3]}, r"\$\.many\[1\]"),
        ({"when": "yesterday"}, r"\$\.when"),
        ({"limit": None}, r"\$\.limit"),
        ({"more": 1}, "more"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolArgumentsError, match=words):
        call(everything, ARGUMENTS | change)


def test_a_function_without_parameters_is_a_tool() -> None:
    async def now() -> str:
        """Tell the time."""
        return "noon"

    assert tool(now).parameters == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }
    assert call(now, {}) == "noon"
    with pytest.raises(ToolArgumentsError):
        call(now, {"a": 1})


def test_a_mutable_default_is_the_functions_own() -> None:
    """As Python has it; a copy made once for the tool would be shared by strangers."""

    async def collect(item: int, into: list[int] = []) -> list[int]:  # noqa: B006
        into.append(item)
        return into

    assert call(collect, {"item": 1, "into": [5]}) == [5, 1]
    assert call(collect, {"item": 1}) == [1]
    assert collect.__defaults__ == ([1],)


def test_parameters_that_have_no_name_for_callers_are_given_by_place() -> None:
    async def f(a: int, b: int = 2, c: int = 3, /, d: int = 4, *, e: int) -> list[int]:
        return [a, b, c, d, e]

    assert call(f, {"a": 1, "c": 9, "e": 5}) == [1, 2, 9, 4, 5]


def test_annotated_types_keep_what_they_say() -> None:
    async def f(
        count: Annotated[int, msgspec.Meta(ge=1, le=5, description="How many.")],
    ) -> int:
        return count

    assert tool(f).parameters["properties"]["count"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 5,
        "description": "How many.",
    }
    with pytest.raises(ToolArgumentsError, match=">= 1"):
        call(f, {"count": 0})


@dataclass
class Tree:
    name: str
    branches: list[Tree]


def test_a_type_that_holds_itself() -> None:
    async def f(tree: Tree) -> str:
        return tree.branches[0].name

    assert call(f, {"tree": {"name": "a", "branches": [{"name": "b", "branches": []}]}}) == "b"
    assert tool(f).parameters["$defs"]["Tree"]["properties"]["branches"]["items"] == {
        "$ref": "#/$defs/Tree"
    }


def test_sphinx_fields_are_understood() -> None:
    async def f(a: int, b: str = "x") -> int:
        """Do it.

        :param a: The first.
        :param str b: The second.
        :returns: The sum.
        """
        return a

    made = tool(f)
    assert made.description == "Do it."
    assert made.parameters["properties"]["a"]["description"] == "The first."
    assert made.parameters["properties"]["b"]["description"] == "The second."


def test_methods_and_callable_objects() -> None:
    class Shop:
        async def price(self, item: str) -> str:
            """Tell a price."""
            return f"price of {item}"

        async def __call__(self, item: str) -> str:
            """Sell."""
            return f"sold {item}"

    shop = Shop()
    assert call(shop.price, {"item": "tea"}) == "price of tea"
    assert tool(shop.price).name == "price"
    sell = tool(shop, name="sell")
    assert sell.description == "Sell."
    assert trio.run(sell.invoke, {"item": "tea"}, "c1") == "sold tea"


def test_keys_of_a_dictionary_may_be_numbers() -> None:
    """In JSON they are text, so no model could ever have given them."""

    async def total(amounts: dict[int, float], by_place: dict[Literal[1, 2], str]) -> str:
        return repr((amounts, by_place))

    given = {"amounts": {"7": 1}, "by_place": {"2": "second"}}
    assert call(total, given) == "({7: 1.0}, {2: 'second'})"
    with pytest.raises(ToolArgumentsError, match="int"):
        call(total, {**given, "amounts": {"seven": 1}})


def test_a_check_of_the_class_itself_is_about_the_arguments() -> None:
    """So the model is told, even if the tool's own errors fail the run."""

    @dataclass
    class Span:
        start: int
        end: int

        def __post_init__(self) -> None:
            assert self.start <= self.end, "it ends before it starts"

    async def book(span: Span) -> str:
        return "booked"

    book.__annotations__["span"] = Span
    with pytest.raises(ToolArgumentsError, match="it ends before it starts"):
        call(book, {"span": {"start": 2, "end": 1}})


async def untyped(a, b: int):  # type: ignore[no-untyped-def]
    pass


async def many(*items: int) -> None: ...
async def named(**items: int) -> None: ...
async def odd(a: object) -> None: ...
async def unknown(a: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821
async def steps(a: int):  # type: ignore[no-untyped-def]
    yield a


async def mangled(__a: int) -> None: ...


class Method:
    async def bare(self, a: int) -> None: ...


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: tool(untyped), TypeError, "no type for its parameter 'a'"),
        (lambda: tool(odd), TypeError, r"from JSON: type <class 'object'> is not supported; use"),
        (lambda: tool(mangled), TypeError, "__a"),
        (lambda: tool(Agent("b", model=Script())), TypeError, r"as_tool\(\)"),
        (lambda: tool(many), TypeError, r"\*items"),
        (lambda: tool(named), TypeError, r"\*\*items"),
        (lambda: tool(unknown), TypeError, "Unknown"),
        (lambda: tool(steps), TypeError, "generator"),
        (lambda: tool(Method.bare), TypeError, "bound"),
        (lambda: tool(functools.partial(named), name="p"), TypeError, "partial"),
        (lambda: tool(3), TypeError, "function"),  # type: ignore[call-overload]
        (lambda: tool(Method), TypeError, "function"),
        (lambda: tool(tool(everything)), TypeError, "tool already"),
        (lambda: tool(everything, name="no good"), ValueError, "64 letters"),
        (lambda: tool(everything, name="x" * 65), ValueError, "64 letters"),
        (lambda: tool(everything, timeout=-1), ValueError, "timeout"),
        (lambda: tool(everything, timeout="1"), TypeError, "timeout"),  # type: ignore[call-overload]
        (lambda: tool(everything, on_error="raise"), ValueError, "on_error"),  # type: ignore[call-overload]
    ],
)
def test_what_can_be_no_tool_is_refused_when_it_is_made(
    make: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make()
