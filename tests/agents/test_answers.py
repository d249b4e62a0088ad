"""Models wrap their answers in words, fences and thoughts; what a person can tell is read so."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import msgspec
import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import MockClock

from harness.agents import Agent, TextDelta
from harness.agents._json_in_text import find_values, value_so_far
from harness.errors import OutputError
from harness.models import FunctionModel, ModelResponse, ScriptedModel

# Written by hand after what models are known to answer: a type, a text, and the value that a person
# sees in it. One without a value has none that a person could tell.
ANSWERS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "answers.jsonl").read_text(encoding="utf-8").splitlines()
]


@attrs.frozen
class Ticket:
    topic: str
    n: int = 0


@attrs.frozen
class Maybe:
    topic: str | None


@attrs.frozen
class Item:
    sku: str
    quantity: int


@attrs.frozen
class Order:
    id: int
    items: list[Item]
    note: str | None = None


TYPES: Mapping[str, Any] = {
    "Ticket": Ticket,
    "Tickets": list[Ticket],
    "Maybe": Maybe,
    "Order": Order,
    "Words": list[str],
    "Counts": dict[str, int],
    "Whole": int,
    "Number": float,
    "Truth": bool,
    "Choice": Literal["refund", "card", "delivery"],
    "Day": datetime.date,
}


def test_there_are_200_answers() -> None:
    assert sum("value" in answer for answer in ANSWERS) >= 200


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: ascii(answer["text"])[:60])
async def test_an_answer_is_read_as_a_person_reads_it(
    answer: dict[str, Any], autojump_clock: MockClock
) -> None:
    text = answer["text"]
    agent = Agent(
        "a",
        model=FunctionModel(lambda _: text),
        output_type=TYPES[answer["type"]],
        output_repairs=0,
    )
    if "value" not in answer:
        with pytest.raises(OutputError):
            await agent.run("go")
        return
    reply = await agent.run("go")
    assert msgspec.to_builtins(reply.output) == answer["value"]
    assert reply.messages[-1].content == text


async def test_thoughts_are_kept_on_the_reply(autojump_clock: MockClock) -> None:
    text = '<think>Refund? {"topic": "refund"}</think>{"topic": "card"}<think>Yes.</think>'
    model = ScriptedModel([ModelResponse(text, reasoning="The user is angry.")])
    reply = await Agent("a", model=model, output_type=Ticket).run("go")
    assert reply.output == Ticket("card")
    assert reply.reasoning == 'The user is angry.\n\nRefund? {"topic": "refund"}\n\nYes.'
    assert reply.messages[-1].content == text, "the history has what was said"


async def test_a_stream_gives_what_has_come_of_the_value(autojump_clock: MockClock) -> None:
    text = '<think>{"topic": "refund"}</think> Here: {"topic": "card is lost", "n": 12}'
    so_far: list[Any] = []
    agent = Agent("a", model=ScriptedModel([text], piece_delay=1), output_type=Ticket)
    async with agent.stream("go") as stream:
        async for event in stream:
            if isinstance(event.payload, TextDelta) and stream.output_so_far not in so_far:
                so_far.append(stream.output_so_far)
    assert so_far == [
        None,
        {},
        {"topic": "card "},
        {"topic": "card is "},
        {"topic": "card is lost"},
        {"topic": "card is lost", "n": 12},
    ]
    assert stream.output_so_far == {"topic": "card is lost", "n": 12}
    assert stream.reply.output == Ticket("card is lost", 12)


async def test_a_stream_gives_a_value_of_any_type_as_json(autojump_clock: MockClock) -> None:
    pydantic = pytest.importorskip("pydantic")
    ticket = pydantic.create_model("Ticket", topic=(str, ...))
    model = ScriptedModel(['Here: {"topic": "card"}'])
    agent: Agent[Any] = Agent("a", model=model, output_type=ticket)
    async with agent.stream("go") as stream:
        async for _ in stream:
            pass
    assert stream.reply.output.topic == "card"
    assert stream.output_so_far == {"topic": "card"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
).filter(lambda value: isinstance(value, (list, dict)))


@given(JSON, st.booleans())
@example(["\\", "\\u0"], False)
def test_what_has_come_grows_into_the_value(value: Any, spaced: bool) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=1 if spaced else None)

    def is_part(part: Any, whole: Any) -> bool:
        if isinstance(part, dict) and isinstance(whole, dict):
            return all(name in whole and is_part(part[name], whole[name]) for name in part)
        if isinstance(part, list) and isinstance(whole, list):
            return len(part) <= len(whole) and all(map(is_part, part, whole))
        if isinstance(part, str) and isinstance(whole, str):
            return whole.startswith(part)
        return bool(part == whole)

    for end in range(1, len(text)):
        part = value_so_far(text[:end])
        assert part is not None
        assert is_part(part, value)
    assert value_so_far(text) == value
    assert [json.loads(one) for one in find_values(f"Here: {text} Bye.").values] == [value]


@given(st.text(alphabet="{}[]\"':,\\/ \n`<>think#*1ntrue.", max_size=60))
def test_no_text_is_too_odd(text: str) -> None:
    value_so_far(text)
    for value in find_values(text).values:
        json.loads(value)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["[" * 200_000, '{"' * 100_000, "{a:" * 60_000, "{'" * 100_000])
def test_a_hostile_text_is_given_up(text: str) -> None:
    """Without a bound, a text of brackets would take the square of its length."""
    assert find_values(text).values == []
    value_so_far(text)


async def test_an_answer_is_told_so_as_often_as_allowed(autojump_clock: MockClock) -> None:
    for repairs in (0, 1, 3):
        model = ScriptedModel(["no"] * 3 + ["[1]"])
        agent = Agent("a", model=model, output_type=list[int], output_repairs=repairs)
        if repairs == 3:
            assert (await agent.run("go")).output == [1]
            continue
        with pytest.raises(OutputError) as caught:
            await agent.run("go")
        assert caught.value.partial.turns == repairs + 1
        assert caught.value.partial.finish == "other"
    with pytest.raises(ValueError, match="from 0 upwards"):
        Agent("a", model=ScriptedModel([]), output_repairs=-1)


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_answer_must_pass_the_users_check(
    is_async: bool, autojump_clock: MockClock
) -> None:
    def check(ticket: Ticket) -> None:
        if ticket.n < 3:
            raise ValueError("n must be at least 3")

    async def check_slowly(ticket: Ticket) -> None:
        await trio.sleep(1)
        check(ticket)

    model = ScriptedModel(['{"topic": "card", "n": 1}', '{"topic": "card", "n": 5}'])
    agent = Agent(
        "a", model=model, output_type=Ticket, output_check=check_slowly if is_async else check
    )
    reply = await agent.run("go")
    assert (reply.output.n, reply.turns) == (5, 2)
    assert "n must be at least 3" in reply.messages[2].content


async def test_a_check_of_text_asks_for_text_again(autojump_clock: MockClock) -> None:
    def check(answer: str) -> None:
        if not answer.endswith("."):
            raise ValueError("end with a full stop")

    agent = Agent("a", model=ScriptedModel(["Yes", "Yes."]), output_check=check)
    reply = await agent.run("go")
    assert reply.output == "Yes."
    assert "JSON" not in reply.messages[2].content
    with pytest.raises(TypeError, match="output_check"):
        Agent("a", model=ScriptedModel([]), output_check=3)  # type: ignore[call-overload]
