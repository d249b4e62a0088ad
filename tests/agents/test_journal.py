"""An agent as the function of a durable fan-out: its replies come back as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import Agent, Reply, tool
from harness.errors import JournalMismatchError
from harness.flow import Pipeline, Router
from harness.journal import open_journal
from harness.models import Message, ModelRequest, ModelResponse
from tests.agents.fakes import Fake, Script, calls, last_user


@attrs.frozen
class Label:
    topic: str
    scores: dict[int, float]


@tool
async def look(number: int) -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return f"saw {number}"


def label(request: ModelRequest) -> str:
    return f'{{"topic": "{last_user(request)}", "scores": {{"1": 0.5}}}}'


@pytest.mark.parametrize("method", [False, True])
async def test_replies_are_kept_and_come_back_as_they_were(tmp_path: Path, method: bool) -> None:
    """It was a `JournalValueError` for each item, after the model had been paid for all of them."""
    model = Script(calls(("look", {"number": 3}), text="let me see"), "done")
    agent = Agent("a", model=model, tools=[look])

    async def session() -> list[Reply[str]]:
        async with open_journal(tmp_path / "journal") as journal:
            function = agent.run if method else agent
            results = await harness.fan_out(function, ["x", "ü"], journal=journal, key=str)
            return list(results.values())

    first = await session()
    assert await session() == first
    assert len(model.requests) == 4, "the second session asks for nothing"
    assert [reply.output for reply in first] == ["done", "done"]
    assert all(isinstance(reply, Reply) and reply.complete for reply in first)
    assert [len(reply.new_messages) for reply in first] == [4, 4]
    assert first[0].usage.total == 20
    assert first[1].messages[0] == Message("user", "ü")


async def test_outputs_come_back_as_values_of_their_type(tmp_path: Path) -> None:
    agent = Agent("labeller", model=Fake(label), output_type=Label)
    for _ in range(2):
        async with open_journal(tmp_path / "journal") as journal:
            results = await harness.fan_out(agent, ["card"], journal=journal, key=str)
        assert results[0].value.output == Label("card", {1: 0.5})


async def test_what_a_fallback_gives_is_kept_beside_replies(tmp_path: Path) -> None:
    def fail(request: ModelRequest) -> ModelResponse:
        raise OSError("down")

    agent = Agent("a", model=Fake(fail))
    each = harness.Attempt(fallback=lambda item, error: {"instead of": item})
    for _ in range(2):
        async with open_journal(tmp_path / "journal") as journal:
            results = await harness.fan_out(agent, ["x"], journal=journal, key=str, each=each)
        assert results[0].value == {"instead of": "x"}


async def test_what_was_left_in_an_inbox_costs_nobody_an_answer(tmp_path: Path) -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    async def answer(request: ModelRequest) -> str:
        for late in (Odd(), "late", Message("user", "later")):
            harness.current_run().inbox.put(late)
        return "done"

    agent = Agent("a", model=Fake(answer))
    async with open_journal(tmp_path / "journal") as journal:
        results = await harness.fan_out(agent, ["x"], journal=journal, key=str)
    assert results[0].value.undelivered == ("<odd>", "late", Message("user", "later"))


async def test_encode_of_the_journal_goes_first(tmp_path: Path) -> None:
    agent = Agent("a", model=Script("done"))

    def encode(reply: Any) -> str:
        return str(reply.output)

    async with open_journal(tmp_path / "journal", encode=encode, decode=str) as journal:
        results = await harness.fan_out(agent, ["x"], journal=journal, key=str)
    assert results.values() == ["done"]


@pytest.mark.slow
async def test_a_mock_is_no_function_with_a_form_of_its_own(tmp_path: Path) -> None:
    """It has every attribute it is asked for."""
    async with open_journal(tmp_path / "journal") as journal:
        mock = AsyncMock(return_value=3)
        results = await harness.fan_out(mock, ["x"], journal=journal, key=str, name="mocked")
        assert results.values() == [3]


@pytest.mark.parametrize("method", [False, True])
async def test_two_agents_in_one_journal_keep_their_answers_apart(
    tmp_path: Path, method: bool
) -> None:
    """Each batch was called ``Agent``: the second agent was given the answers of the first."""
    async with open_journal(tmp_path / "journal") as journal:
        for name in ("triage", "writer"):
            agent = Agent(name, model=Script(f"the {name}'s"))
            function = agent.run if method else agent
            results = await harness.fan_out(function, ["x"], journal=journal, key=str)
            assert [reply.output for reply in results.values()] == [f"the {name}'s"]


async def test_a_fan_out_of_an_agent_has_the_agents_name(autojump_clock: MockClock) -> None:
    paths: list[str] = []

    def answer(request: ModelRequest) -> str:
        paths.append(harness.current_run().path)
        return "done"

    await harness.fan_out(Agent("triage", model=Fake(answer)), ["x"])
    assert paths == ["triage/0/triage"]


# What an agent is made of --------------------------------------------------------------------


@tool
async def find(text: str) -> str:
    """Find."""
    await trio.lowlevel.checkpoint()
    return text


def look_anew(number: int, deep: bool = False) -> str:
    """Look."""
    return f"{number}{deep}"


class Named(Script):
    def __init__(self, name: str) -> None:
        super().__init__(*["done"] * 9)
        self.name = name


def an_agent(**changes: Any) -> Any:
    inner_model = changes.pop("inner_model", None) or Named("m")
    inner = Agent("inner", model=inner_model, instructions=changes.pop("inner", "help"))
    made: dict[str, Any] = {"model": Named("m"), "instructions": "be kind", "tools": [look]}
    made |= changes
    made["tools"] = [*made["tools"], inner.as_tool()]
    return Agent("a", **made)


@pytest.mark.parametrize("through", ["itself", "its method", "a pipeline", "a router"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"instructions": "be short"}, "instructions was 'be kind' and is 'be short'"),
        ({"model": Named("n")}, "model was 'm' and is 'n'"),
        ({"tools": [find]}, "tool find was not given and is"),
        ({"tools": []}, "tool look was"),
        ({"tools": [tool(look_anew, name="look")]}, "tool look was"),
        ({"output_type": Label}, "output_type was not given and is"),
        ({"inner": "don't help"}, "tool inner was"),
        ({"inner_model": Named("n")}, "tool inner was"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.slow
async def test_an_agent_of_other_making_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str, through: str
) -> None:
    """It was answered from the journal, under the instructions of the day before."""

    def function(agent: Any) -> Any:
        return {
            "itself": agent,
            "its method": agent.run,
            "a pipeline": Pipeline(agent),
            "a router": Router(lambda item: "a", tracks={"a": agent}),
        }[through]

    async def session(agent: Any, **options: Any) -> Any:
        async with open_journal(tmp_path / "journal", **options) as journal:
            return await harness.fan_out(function(agent), ["x"], journal=journal, key=str, name="n")

    first = await session(an_agent())
    assert (await session(an_agent())).values() == first.values(), "it was made in the same way"
    with pytest.raises(JournalMismatchError, match=words):
        await session(an_agent(**dict(changes)))
    if "output_type" not in changes:
        assert (await session(an_agent(**dict(changes)), force=True)).values() == first.values()
