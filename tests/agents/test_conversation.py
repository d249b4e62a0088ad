"""Histories: isolated by default, shared and append-only when passed, whole in every case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from harness.agents import Agent, Conversation, tool
from harness.errors import MaxTurnsError
from harness.models import Message, ScriptedModel, ToolCall
from tests.agents.fakes import Fake, Script, calls, is_valid, last_user, said


def echo(seconds: float = 1.0) -> Agent[str]:
    return Agent("echo", model=Fake(lambda r: said(f"re: {last_user(r)}"), seconds=seconds))


def words(messages: tuple[Message, ...]) -> list[str]:
    return [one.text for one in messages]


async def test_a_run_sees_nothing_of_another_by_default(autojump_clock: MockClock) -> None:
    agent = echo()
    await agent.run("first")
    assert words((await agent.run("second")).messages) == ["second", "re: second"]


async def test_a_conversation_goes_on(autojump_clock: MockClock) -> None:
    agent = echo()
    conversation = Conversation()
    first = await agent.run("first", conversation=conversation)
    second = await agent.run("second", conversation=conversation)
    assert words(conversation.messages) == ["first", "re: first", "second", "re: second"]
    assert first.messages == conversation.messages[:2]
    assert second.messages == conversation.messages
    assert second.new_messages == conversation.messages[2:]
    assert len(conversation) == 4
    async with agent.stream("third", conversation=conversation) as stream:
        async for _ in stream:
            pass
    assert words(conversation.messages[4:]) == ["third", "re: third"]


async def test_runs_at_once_see_the_history_of_their_start_and_keep_their_blocks_whole(
    autojump_clock: MockClock,
) -> None:
    """Neither half-done turns of another run, nor messages in between."""

    @tool
    async def wait(seconds: float) -> str:
        await trio.sleep(seconds)
        return f"waited {seconds:g}"

    model = Fake(
        lambda r: (
            said("done")
            if r.messages[-1].role == "tool"
            else calls(("wait", {"seconds": float(last_user(r))}))
        )
    )
    agent = Agent("a", model=model, tools=[wait])
    conversation = Conversation([Message("user", "hello"), Message("assistant", "hi")])
    replies = {}

    async def one(seconds: int) -> None:
        await trio.sleep(seconds / 10)
        replies[seconds] = await agent.run(str(seconds), conversation=conversation)

    async with trio.open_nursery() as nursery:
        for seconds in (3, 1, 2):
            nursery.start_soon(one, seconds)
    for seconds, reply in replies.items():
        assert words(reply.messages) == [
            "hello",
            "hi",
            str(seconds),
            "",
            f"waited {seconds}",
            "done",
        ]
    block = [words(replies[seconds].new_messages) for seconds in (1, 2, 3)]
    assert words(conversation.messages) == ["hello", "hi", *block[0], *block[1], *block[2]]
    assert is_valid(conversation.messages)


async def test_a_run_that_fails_or_is_cancelled_appends_nothing_and_removes_nothing(
    autojump_clock: MockClock,
) -> None:
    """A turn that is rolled back mustn't take with it what another appended meanwhile."""

    @tool
    async def wait() -> str:
        await trio.sleep(5)
        return "waited"

    conversation = Conversation()
    failing = Agent("a", model=Script(*[calls(("wait", {}))] * 2), tools=[wait], max_turns=1)
    caught: list[MaxTurnsError] = []

    async def fail() -> None:
        try:
            await failing.run("A", conversation=conversation)
        except MaxTurnsError as error:
            caught.append(error)

    async def be_cancelled() -> None:
        with trio.move_on_after(2):
            await failing.run("C", conversation=conversation)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        nursery.start_soon(be_cancelled)
        await echo().run("B", conversation=conversation)
    assert words(conversation.messages) == ["B", "re: B"]
    conversation.extend(caught[0].partial.new_messages)
    assert words(conversation.messages) == ["B", "re: B", "A", "", "waited"]


async def test_a_stopped_run_appends_what_it_has(autojump_clock: MockClock) -> None:
    @tool
    async def wait() -> str:
        await trio.sleep(5)
        return "waited"

    conversation = Conversation()
    agent = Agent("a", model=Script(calls(("wait", {})), "never"), tools=[wait])
    async with agent.stream("hi", conversation=conversation) as stream:
        async for _ in stream:
            stream.run.stop()
    assert words(conversation.messages) == ["hi", "", "waited"]
    assert (await echo().run("go on", conversation=conversation)).output == "re: go on"


async def test_a_system_message_of_the_history_joins_the_instructions(
    autojump_clock: MockClock,
) -> None:
    """Models take one system message, and it comes first."""
    for instructions, expected in (("Be brief.", "Be brief.\n\nBe kind."), ("", "Be kind.")):
        conversation = Conversation([Message("system", "Be kind.")])
        model = Fake(lambda r: "ok")
        agent = Agent("a", model=model, instructions=instructions)
        reply = await agent.run("hi", conversation=conversation)
        assert [(m.role, m.content) for m in model.requests[0].messages] == [
            ("system", expected),
            ("user", "hi"),
        ]
        assert words(conversation.messages) == words(reply.messages) == ["Be kind.", "hi", "ok"]


async def test_it_is_saved_and_loaded_as_json(autojump_clock: MockClock) -> None:
    @tool
    async def add(a: int, b: list[float]) -> float:
        await trio.lowlevel.checkpoint()
        return a + sum(b)

    conversation = Conversation()
    agent = Agent("a", model=Script(calls(("add", {"a": 1, "b": [2.5]})), "3.5"), tools=[add])
    await agent.run("1 + 2.5? é\n", conversation=conversation)
    text = conversation.to_json()
    assert isinstance(text, str)
    json.loads(text)
    loaded = Conversation.from_json(text)
    assert loaded.messages == conversation.messages
    assert Conversation.from_json(text.encode()).messages == conversation.messages
    assert (await echo().run("and now?", conversation=loaded)).output == "re: and now?"
    assert len(conversation) == len(loaded) - 2


def joined(text: str) -> str:
    """Return the text with the halves of surrogate pairs that follow each other as one sign."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


texts = st.text(st.characters()).map(joined)
"""Any text, with single halves of surrogate pairs, as in file names that aren't UTF-8."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = []
    for turn in range(draw(st.integers(0, 4))):
        messages.append(Message("user", draw(texts)))
        arguments = draw(st.lists(st.dictionaries(texts, json_values, max_size=3), max_size=3))
        wanted = [ToolCall(f"{turn}-{n}", f"t{n}", given) for n, given in enumerate(arguments)]
        messages.append(Message("assistant", draw(texts), wanted))
        messages += [Message("tool", draw(texts), tool_call_id=call.id) for call in wanted]
    return messages


def test_a_half_of_a_surrogate_pair_is_saved_and_loaded() -> None:
    conversation = Conversation([Message("user", "a \udcb2")])
    text = conversation.to_json()
    assert text.isascii()
    assert Conversation.from_json(text).messages == conversation.messages
    assert Conversation.from_json(text.encode()).messages == conversation.messages


@given(histories())
def test_every_history_comes_back_from_json_as_it_was(messages: list[Message]) -> None:
    conversation = Conversation(messages)
    loaded = Conversation.from_json(conversation.to_json())
    assert loaded.messages == conversation.messages == tuple(messages)
    assert is_valid(loaded.messages)


@pytest.mark.slow
@given(histories().filter(lambda history: any(one.role == "tool" for one in history)), st.data())
def test_a_history_that_no_model_would_take_is_refused(
    messages: list[Message], data: st.DataObject
) -> None:
    """A call without its result, or a result without its call."""
    places = [n for n, one in enumerate(messages) if one.role == "tool" or one.tool_calls]
    del messages[data.draw(st.sampled_from(places))]
    with pytest.raises(ValueError, match=r"without a result|which no assistant message"):
        Conversation(messages)
    conversation = Conversation()
    with pytest.raises(ValueError, match=r"conversation.extend"):
        conversation.extend(messages)
    assert len(conversation) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "messages": []}',
        '{"version": 1, "messages": [{"role": "god"}]}',
    ],
)
def test_what_is_no_saved_conversation_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"saved|form"):
        Conversation.from_json(text)


def test_a_file_in_place_of_its_text_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "saved.json").write_text(Conversation().to_json())
    with (tmp_path / "saved.json").open() as file:
        with pytest.raises(TypeError, match=r"pass what its read\(\) returns"):
            Conversation.from_json(file)  # type: ignore[arg-type]
        assert Conversation.from_json(file.read()).messages == ()


def test_what_is_no_message_is_refused() -> None:
    bad: Any = [{"role": "user", "content": "hi"}]
    with pytest.raises(TypeError, match=r"harness\.models\.Message"):
        Conversation(bad)


async def test_its_messages_are_a_copy(autojump_clock: MockClock) -> None:
    conversation = Conversation()
    before = conversation.messages
    await Agent("a", model=ScriptedModel(["hello"])).run("hi", conversation=conversation)
    assert before == ()
    assert repr(conversation) == "<Conversation of 2 messages>"
