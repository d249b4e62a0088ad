"""Structured output: a validated value, one repair turn, and an error that says what is wrong."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any, Literal

import attrs
import msgspec
import pytest
import trio
from trio.testing import MockClock

from harness.agents import Agent, tool
from harness.errors import MaxTurnsError, OutputError
from tests.agents.fakes import Fake, Script, calls


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


@attrs.frozen
class Label:
    name: str
    mood: Mood
    score: float = 0.5


class Labels(msgspec.Struct):
    labels: list[Label]


@dataclass
class Place:
    city: str


@pytest.mark.parametrize(
    ("output_type", "text", "expected"),
    [
        (Label, '{"name": "card", "mood": "bad"}', Label("card", Mood.BAD)),
        (
            Labels,
            '{"labels": [{"name": "x", "mood": "good", "score": 1}]}',
            Labels([Label("x", Mood.GOOD, 1.0)]),
        ),
        (Place, '{"city": "Rome"}', Place("Rome")),
        (int, "3", 3),
        (bool, "true", True),
        (list[str], '["a", "b"]', ["a", "b"]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Literal["a", "b"], '"b"', "b"),
        (int | None, "null", None),
        (Place, 'Here it is:\n```json\n{"city": "Rome"}\n```\nAnything else?', Place("Rome")),
        (Place, '```\n{"city": "Rome"}\n```', Place("Rome")),
        (str, "plain {text}", "plain {text}"),
        (None, "plain {text}", "plain {text}"),
    ],
)
async def test_the_output_is_a_value_of_the_type(
    autojump_clock: MockClock, output_type: Any, text: str, expected: object
) -> None:
    reply = await Agent("a", model=Script(text), output_type=output_type).run("hi")
    assert reply.output == expected
    assert type(reply.output) is type(expected)
    assert reply.complete
    assert reply.turns == 1
    assert reply.messages[-1].content == text


async def test_the_model_is_told_the_schema(autojump_clock: MockClock) -> None:
    model = Script('{"name": "card", "mood": "bad"}')
    agent = Agent("a", model=model, instructions="Label it.", output_type=Label)
    await agent.run("hi")
    request = model.requests[0]
    schema = request.output_schema
    assert schema is not None
    assert schema["type"] == "object"
    assert set(schema["properties"]) == {"name", "mood", "score"}
    system = request.messages[0].text
    assert system.startswith("Label it.\n\n")
    assert json.loads(system[system.index("{") :]) == schema
    plain = Script("hi")
    await Agent("a", model=plain).run("hi")
    assert plain.requests[0].output_schema is None


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("a card", "malformed"),
        ('{"name": "card"}', "missing required field `mood`"),
        ('{"name": "card", "mood": "fine"}', "$.mood"),
        ("```json\n[]\n```", "Expected `object`"),
    ],
)
async def test_one_repair_turn_says_what_does_not_fit(
    autojump_clock: MockClock, bad: str, why: str
) -> None:
    model = Script(bad, '{"name": "card", "mood": "bad"}')
    agent = Agent("a", model=model, output_type=Label)
    reply = await agent.run("hi")
    assert reply.output == Label("card", Mood.BAD)
    assert reply.turns == 2
    assert [one.role for one in reply.messages] == ["user", "assistant", "user", "assistant"]
    assert why in reply.messages[2].content

    with pytest.raises(OutputError, match="repair") as caught:
        await Agent("a", model=Script(bad, bad, bad), output_type=Label).run("hi")
    partial = caught.value.partial
    assert partial.turns == 2
    assert partial.output is None
    assert not partial.complete
    assert partial.messages[-1].content == bad


async def test_a_repair_turn_counts_as_a_turn(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=Script("no", "3"), output_type=int, max_turns=1)
    with pytest.raises(MaxTurnsError) as caught:
        await agent.run("hi")
    assert caught.value.partial.output is None


async def test_tools_may_be_called_in_between(autojump_clock: MockClock) -> None:
    @tool
    async def look() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    model = Script(calls(("look", {})), "seven", calls(("look", {})), "7")
    reply = await Agent("a", model=model, output_type=int, tools=[look]).run("hi")
    assert reply.output == 7
    assert reply.turns == 4


async def test_a_streamed_answer_is_validated_too(autojump_clock: MockClock) -> None:
    async with Agent("a", model=Script("no", "3"), output_type=int).stream("hi") as stream:
        async for _ in stream:
            pass
    assert stream.reply.output == 3


async def test_as_a_tool_the_value_goes_on_as_json(autojump_clock: MockClock) -> None:
    child = Agent("child", model=Script('{"name": "card", "mood": "bad"}'), output_type=Label)
    agent = Agent("a", model=Script(calls(("child", {"x": "y"})), "done"), tools=[child.as_tool()])
    reply = await agent.run("hi")
    assert json.loads(reply.messages[2].text) == {"name": "card", "mood": "bad", "score": 0.5}


async def test_a_stopped_run_has_no_value(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=Fake(lambda r: "no", seconds=1), output_type=int)
    async with agent.stream("hi") as stream:
        stream.run.stop()
        async for _ in stream:
            pass
    assert stream.reply.output is None
    assert not stream.reply.complete


@pytest.mark.slow
async def test_a_check_of_the_type_itself_is_a_misfit(autojump_clock: MockClock) -> None:
    """Whatever it raises: an assertion in ``__post_init__`` failed the run, with no repair turn."""

    @dataclass
    class Even:
        number: int

        def __post_init__(self) -> None:
            assert self.number % 2 == 0, "an odd number"

    for first in ('{"number": 3}', '```json\n{"number": 3}\n```', "[" * 100_000):
        model = Script(first, '{"number": 4}')
        reply = await Agent("a", model=model, output_type=Even).run("hi")
        assert reply.output == Even(4)
        assert reply.turns == 2
