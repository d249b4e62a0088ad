"""What is said of a type counts or is refused, and schemas say what pydantic's would."""

from __future__ import annotations

import datetime
import enum
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional

import annotated_types
import attrs
import msgspec
import pydantic
import pytest
import trio
from typing_extensions import Doc, TypedDict

from harness.agents import Agent, tool
from harness.agents._types import read_type
from harness.errors import OutputError, ToolArgumentsError
from harness.models import ModelResponse, ScriptedModel, ToolCall


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Line:
    begin: Point
    end: Point
    colour: Colour = Colour.RED


class Address(TypedDict):
    street: str
    city: NotRequired[str]


class Pair(NamedTuple):
    left: int
    right: str


@dataclass
class Tree:
    name: str
    branches: list[Tree]


class Ticket(pydantic.BaseModel):
    topic: str
    urgent: bool = False


class Desk(pydantic.BaseModel):
    tickets: list[Ticket]
    limit: Annotated[int, pydantic.Field(ge=1)] = 3


CASES: list[Any] = [
    int,
    float,
    str,
    bool,
    None,
    Any,
    list[int],
    list[list[str]],
    dict[str, int],
    dict[str, list[Point]],
    tuple[int, ...],
    tuple[int, str],
    set[int],
    frozenset[str],
    int | None,
    Optional[str],  # noqa: UP045 (people write it)
    int | str,
    str | int | None,
    list[int | None],
    Literal["a", "b"],
    Literal["b", "a"],
    Literal[3, 1],
    Literal["only"],
    Literal["a", 1],
    Literal["a", None],
    list[Literal["a", "b"]],
    Colour,
    Size,
    Colour | None,
    dict[str, Colour],
    Point,
    Line,
    list[Point],
    Point | None,
    Address,
    list[Address],
    Pair,
    Tree,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
    Annotated[int, annotated_types.Ge(3)],
    Annotated[int, annotated_types.Gt(3), annotated_types.Le(9)],
    Annotated[int, annotated_types.Interval(ge=1, lt=5)],
    Annotated[int, annotated_types.MultipleOf(5)],
    Annotated[str, annotated_types.MinLen(1), annotated_types.MaxLen(9)],
    Annotated[str, annotated_types.Len(2, 4)],
    Annotated[list[int], annotated_types.Len(2)],
    list[Annotated[int, annotated_types.Ge(0)]],
    dict[str, Annotated[float, annotated_types.Le(1.0)]],
    Optional[Annotated[int, annotated_types.Ge(3)]],  # noqa: UP045 (for pyright)
    Annotated[int, Doc("How many.")],
    Annotated[int, annotated_types.doc("How many.")],
]


def meaning(schema: Any, definitions: dict[str, Any] | None = None, depth: int = 6) -> Any:
    """Return what a schema means, without the ways to write it: names, order, references."""
    if isinstance(schema, list):
        return [meaning(one, definitions, depth) for one in schema]
    if not isinstance(schema, dict):
        return schema
    definitions = schema.get("$defs", {}) if definitions is None else definitions
    if reference := schema.get("$ref"):
        if not depth:
            return "..."
        depth -= "$defs" not in schema
        named = definitions.get(reference.removeprefix("#/$defs/"), schema)
        return meaning(
            {**named, **{name: schema[name] for name in schema if name != "$ref"}},
            definitions,
            depth,
        )
    found = {
        name: value
        if name in ("default", "enum", "const", "required")
        else {one: meaning(of, definitions, depth) for one, of in value.items()}
        if name == "properties"
        else meaning(value, definitions, depth)
        for name, value in schema.items()
        if name not in ("title", "$defs", "$comment")
    }
    if "const" in found:
        found["enum"] = [found.pop("const")]
    for name in ("enum", "anyOf", "required"):
        if name in found:
            found[name] = sorted(found[name], key=lambda one: json.dumps(one, sort_keys=True))
    if found.get("items") is False and "prefixItems" in found:
        del found["items"]  # The number of items says it, too.
    if found == {"enum": [None]}:
        return {"type": "null"}
    if found.get("required") == []:
        del found["required"]
    return found


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_schema_means_what_pydantics_does(case: Any) -> None:
    theirs = pydantic.TypeAdapter(case).json_schema()
    if "How many." in str(case):
        theirs["description"] = "How many."  # Which pydantic reads of models' fields only.
    assert meaning(read_type(case).schema) == meaning(theirs)


class Defaults(pydantic.BaseModel):
    count: int = 3
    colour: Colour = Colour.BLUE
    point: Point = Point(1, 2)
    many: list[int] = [1]
    maybe: str | None = None
    choice: Literal["a", "b"] = "b"
    needed: int


def test_a_function_is_described_like_the_model_of_its_parameters() -> None:
    async def act(
        needed: int,
        count: int = 3,
        colour: Colour = Colour.BLUE,
        point: Point = Point(1, 2),  # noqa: B008
        many: list[int] = [1],  # noqa: B006
        maybe: str | None = None,
        choice: Literal["a", "b"] = "b",
    ) -> None: ...

    ours = meaning(tool(act).parameters)
    assert ours.pop("additionalProperties") is False
    assert ours == meaning(Defaults.model_json_schema())


# What annotations say -----------------------------------------------------------------------------


def parameter_of(annotation: Any, docstring: str = "Act.") -> Any:
    async def act(n: Any) -> Any:
        return n

    act.__annotations__["n"] = annotation
    act.__doc__ = docstring
    return tool(act)


SAID: list[tuple[Any, dict[str, Any], Any, Any]] = [
    (
        Annotated[int, pydantic.Field(ge=3, description="The n.")],
        {"type": "integer", "minimum": 3, "description": "The n."},
        3,
        2,
    ),
    (Annotated[str, "The n."], {"type": "string", "description": "The n."}, "x", 2),
    (Annotated[int, annotated_types.Ge(3)], {"type": "integer", "minimum": 3}, 3, 2),
    (Annotated[int, msgspec.Meta(ge=3)], {"type": "integer", "minimum": 3}, 3, 2),
    (
        Annotated[int, "The n.", annotated_types.Interval(gt=0, le=5), msgspec.Meta(title="N")],
        {
            "type": "integer",
            "exclusiveMinimum": 0,
            "maximum": 5,
            "description": "The n.",
            "title": "N",
        },
        5,
        6,
    ),
    (
        list[Annotated[str, pydantic.StringConstraints(max_length=2)]],
        {"type": "array", "items": {"type": "string", "maxLength": 2}},
        ["ab"],
        ["abc"],
    ),
    (
        Annotated[int, pydantic.Field(lt=9), pydantic.AfterValidator(lambda n: n * 2)],
        {"type": "integer", "exclusiveMaximum": 9},
        4,
        9,
    ),
]


@pytest.mark.parametrize(("annotation", "schema", "fits", "misfit"), SAID)
def test_what_an_annotation_says_is_told_and_checked(
    annotation: Any, schema: dict[str, Any], fits: Any, misfit: Any
) -> None:
    made = parameter_of(annotation)
    assert made.parameters["properties"]["n"] == schema
    trio.run(made.invoke, {"n": fits}, "c")
    with pytest.raises(ToolArgumentsError, match=r"`\$\.n"):
        trio.run(made.invoke, {"n": misfit}, "c")


def test_an_annotation_wins_over_the_docstring() -> None:
    docstring = "Act.\n\nArgs:\n  n: The docstring's."
    for annotation in (
        Annotated[int, "Its own."],
        Annotated[int, pydantic.Field(description="Its own.")],
    ):
        made = parameter_of(annotation, docstring)
        assert made.parameters["properties"]["n"]["description"] == "Its own."
    for other in (int, Ticket, Annotated[int, pydantic.Field(ge=1)]):
        made = parameter_of(other, docstring)
        assert made.parameters["properties"]["n"]["description"] == "The docstring's."


@dataclass
class Described:
    name: Annotated[str, "As on the door."]


def test_texts_beside_the_fields_of_classes_are_told() -> None:
    schema = read_type(list[Described]).schema
    assert schema["$defs"]["Described"]["properties"]["name"]["description"] == "As on the door."
    assert "As on the door." in str(parameter_of(Described).parameters)


@dataclass
class Constrained:
    n: Annotated[int, annotated_types.Ge(3)]


@attrs.frozen
class Holder:
    n: Annotated[int, pydantic.Field(ge=3)]


class Held(msgspec.Struct):
    ticket: Ticket


@dataclass
class WithField:
    n: Annotated[int, pydantic.Field(ge=3)]


async def field_as_default(n: int = pydantic.Field(ge=3)) -> None: ...


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: parameter_of(Annotated[int, annotated_types.Predicate(bool)]), "can't be said"),
        (lambda: parameter_of(Constrained), "field 'n' of Constrained"),
        (lambda: parameter_of(list[Constrained]), "would have no effect"),
        (lambda: parameter_of(Holder), "field 'n' of Holder is of pydantic"),
        (lambda: parameter_of(Held), "field 'ticket' of Held is of pydantic"),
        (lambda: parameter_of(list[Ticket] | Point | Card), "Card"),
        (lambda: parameter_of(Annotated[int, pydantic.Field(alias="m")]), r"Field\(alias"),
        (lambda: parameter_of(Annotated[int, pydantic.Field(default=3)]), "after the annotation"),
        (lambda: parameter_of(Annotated[str, annotated_types.Ge(3)]), "ge"),
        (lambda: parameter_of({"type": "object"}), "'object'}' is not supported"),
        (lambda: tool(field_as_default), r"its default is a Field\(\)"),
    ],
)
def test_what_would_have_no_effect_is_refused_when_the_tool_is_made(
    make: Callable[[], Any], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        make()


class Card:
    """A class that nobody can make from JSON."""


def test_a_dataclass_with_pydantics_words_is_read_by_pydantic() -> None:
    made = parameter_of(WithField)
    assert trio.run(made.invoke, {"n": {"n": 3}}, "c") == WithField(3)
    with pytest.raises(ToolArgumentsError, match=r"greater than or equal to 3 - at `\$\.n\.n`"):
        trio.run(made.invoke, {"n": {"n": 2}}, "c")


# Models of pydantic -------------------------------------------------------------------------------


def test_models_are_parameters() -> None:
    made = parameter_of(Desk)
    assert meaning(made.parameters)["properties"]["n"] == meaning(Desk.model_json_schema())
    desk = trio.run(made.invoke, {"n": {"tickets": [{"topic": "refund"}]}}, "c")
    assert desk == Desk(tickets=[Ticket(topic="refund")])
    with pytest.raises(ToolArgumentsError, match=r"`\$\.n\.tickets\[0\]\.topic`"):
        trio.run(made.invoke, {"n": {"tickets": [{}]}}, "c")
    several = parameter_of(dict[str, Ticket] | None)
    assert trio.run(several.invoke, {"n": {"a": {"topic": "x"}}}, "c") == {"a": Ticket(topic="x")}


def test_a_model_as_default_is_told_and_used() -> None:
    async def act(ticket: Ticket = Ticket(topic="any")) -> Ticket:  # noqa: B008
        return ticket

    made = tool(act)
    assert made.parameters["properties"]["ticket"]["default"] == {"topic": "any", "urgent": False}
    assert trio.run(made.invoke, {}, "c") == Ticket(topic="any")


async def test_a_model_is_an_output_type_and_a_result() -> None:
    @tool
    async def find() -> list[Ticket]:
        """Find tickets."""
        return [Ticket(topic="refund")]

    model = ScriptedModel(
        [
            ModelResponse(tool_calls=[ToolCall("c", "find")]),
            lambda request: request.messages[-1].text[1:-1],
        ]
    )
    agent = Agent("a", model=model, tools=[find], output_type=Ticket)
    reply = await agent.run("find one")
    assert reply.output == Ticket(topic="refund")
    assert json.loads(reply.messages[-2].text) == [{"topic": "refund", "urgent": False}]
    plain = agent.value_to_json(reply)
    assert agent.value_from_json(json.loads(json.dumps(plain))) == reply
    assert agent.output_as_json(reply.output) == {"topic": "refund", "urgent": False}


async def test_a_misfit_is_told_in_words_for_the_model() -> None:
    agent = Agent("a", model=ScriptedModel(["{}", "{}"]), output_type=Ticket)
    with pytest.raises(OutputError, match=r"Field required - at `\$\.topic`") as caught:
        await agent.run("find one")
    assert "errors.pydantic.dev" not in str(caught.value)
