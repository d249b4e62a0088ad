"""Steering a run from outside: a message, a stop after the turn, a cancel now."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import Agent, Conversation, ToolCalled, TurnStarted, tool
from harness.errors import InboxFullError, RunEndedError
from harness.models import Message
from tests.agents.fakes import Fake, Script, calls, is_valid


@tool
async def work() -> str:
    await trio.sleep(5)
    return "worked"


def agent_with(*replies: Any) -> Agent[str]:
    return Agent("a", model=Script(*replies), tools=[work])


def users(messages: tuple[Message, ...]) -> list[str]:
    return [one.text for one in messages if one.role == "user"]


async def test_a_message_is_taken_before_the_next_model_call(autojump_clock: MockClock) -> None:
    agent = agent_with(calls(("work", {})), "done")
    async with agent.stream("hi") as stream:
        async for event in stream:
            if isinstance(event.payload, ToolCalled):
                stream.inject("and be quick")
                stream.inject(Message("user", "please"))
    reply = stream.reply
    assert [one.role for one in reply.messages] == [
        "user",
        "assistant",
        "tool",
        "user",
        "user",
        "assistant",
    ]
    assert users(reply.messages) == ["hi", "and be quick", "please"]
    assert reply.undelivered == ()
    model = agent.model
    assert isinstance(model, Fake)
    assert model.requests[1].messages == reply.messages[:-1]


async def test_a_message_before_the_first_model_call(autojump_clock: MockClock) -> None:
    async with agent_with("done").stream("hi") as stream:
        stream.inject("more")
        async for _ in stream:
            pass
    assert users(stream.reply.messages) == ["hi"], "the model had been asked"
    assert stream.reply.undelivered == ("more",)


async def test_what_comes_too_late_is_handed_back(autojump_clock: MockClock) -> None:
    """An answer ends the run; a message that came while it was being given isn't lost."""
    model = Fake(lambda request: "done", seconds=3)
    async with trio.open_nursery() as nursery:
        async with Agent("a", model=model).stream("hi") as stream:

            async def late() -> None:
                await trio.sleep(1)
                stream.inject("first")
                stream.inject("second")

            nursery.start_soon(late)
            async for _ in stream:
                pass
    assert stream.reply.output == "done"
    assert stream.reply.undelivered == ("first", "second")
    assert len(model.requests) == 1


async def test_a_message_to_an_ended_run_is_refused(autojump_clock: MockClock) -> None:
    """It is not kept for some later run that has nothing to do with it."""
    agent = agent_with("done")
    async with agent.stream("hi") as stream:
        async for _ in stream:
            pass
        with pytest.raises(RunEndedError):
            stream.inject("too late")
    with pytest.raises(RunEndedError):
        stream.inject("far too late")
    assert users((await agent.run("hi")).messages) == ["hi"]


async def test_what_is_no_message_is_refused(autojump_clock: MockClock) -> None:
    bad: tuple[Any, ...] = (None, 3, {"role": "user"}, Message("system", "x"), Message("tool", "x"))
    async with agent_with("done").stream("hi") as stream:
        for message in bad:
            with pytest.raises(TypeError, match="role 'user'"):
                stream.inject(message)
        async for _ in stream:
            pass


async def test_an_empty_message_never_reaches_a_model(autojump_clock: MockClock) -> None:
    """No provider accepts a history with an empty message, so one would have failed the run."""
    model = Script(calls(("work", {})), "done")
    agent = Agent("a", model=model, tools=[work])
    async with agent.stream("hi") as stream:
        for empty in ("", Message("user", "")):
            with pytest.raises(ValueError, match="empty"):
                stream.inject(empty)
            stream.run.inbox.put(empty)
        async for _ in stream:
            pass
    sent = [one for request in model.requests for one in request.messages]
    assert all(one.content or one.tool_calls for one in sent)
    assert users(stream.reply.messages) == ["hi"]
    assert stream.reply.undelivered == ("", Message("user", ""))


async def test_a_full_inbox_is_an_error(autojump_clock: MockClock) -> None:
    async with agent_with("done").stream("hi") as stream:
        with pytest.raises(InboxFullError):
            for number in range(1_000):
                stream.inject(str(number))
        async for _ in stream:
            pass
    assert stream.reply.undelivered == tuple(str(number) for number in range(256))


async def test_what_others_put_into_the_inbox_and_no_model_can_read_is_handed_back(
    autojump_clock: MockClock,
) -> None:
    agent = agent_with(calls(("work", {})), "done")
    async with agent.stream("hi") as stream:
        async for event in stream:
            if isinstance(event.payload, ToolCalled):
                stream.run.inbox.put({"not": "text"})
                stream.run.inbox.put("text")
    assert users(stream.reply.messages) == ["hi", "text"]
    assert stream.reply.undelivered == ({"not": "text"},)


async def test_a_message_to_the_agents_below_by_choice(autojump_clock: MockClock) -> None:
    def child(name: str) -> Agent[str]:
        return Agent(name, model=Script(calls(("work", {})), "done"), tools=[work])

    @tool
    async def in_a_plain_run() -> str:
        async with harness.open_run("plain") as run:
            reply = await child("grandchild").run("go")
        assert run.undelivered == (), "only agents are told"
        return " and ".join(users(reply.messages))

    parent = Agent(
        "parent",
        model=Script(calls(("child", {"prompt": "go"}), ("in_a_plain_run", {})), "done"),
        tools=[child("child").as_tool(), in_a_plain_run],
    )
    for children, told in ((True, ["go", "hurry"]), (False, ["go"])):
        async with parent.stream("hi") as stream:
            async for event in stream:
                if isinstance(event.payload, ToolCalled) and event.path == "parent/child":
                    await trio.sleep(1)
                    stream.inject("hurry", children=children)
        tools = [one.content for one in stream.reply.messages if one.role == "tool"]
        assert tools == ["done", " and ".join(told)]
        assert users(stream.reply.messages) == ["hi", "hurry"]


async def test_a_child_with_a_full_inbox_is_an_error_and_the_others_are_told(
    autojump_clock: MockClock,
) -> None:
    child = Agent("child", model=Script(calls(("work", {})), "done"), tools=[work])
    parent = Agent(
        "parent",
        model=Script(calls(("child", {"x": "one"}), ("child", {"x": "two"})), "done"),
        tools=[child.as_tool()],
    )
    async with parent.stream("hi") as stream:
        async for event in stream:
            if isinstance(event.payload, ToolCalled) and event.path == "parent/child":
                await trio.sleep(1)
                first, second = stream.run.children
                for number in range(256):
                    first.inbox.put(str(number))
                with pytest.raises(InboxFullError):
                    stream.inject("hurry", children=True)
                assert len(second.inbox) == 1
                break


# Stop --------------------------------------------------------------------------------------------


async def test_a_stop_ends_the_run_after_the_turn_with_what_it_has(
    autojump_clock: MockClock,
) -> None:
    agent = agent_with(calls(("work", {}), text="working"), "never said")
    async with agent.stream("hi") as stream:
        async for event in stream:
            if isinstance(event.payload, TurnStarted):
                stream.run.stop("enough")
                stream.inject("nobody reads this")
    reply = stream.reply
    assert stream.run.status == "ok"
    assert not reply.complete
    assert reply.turns == 1
    assert reply.output == "working"
    assert reply.messages[-1].content == "worked", "the turn's calls came to their end"
    assert is_valid(reply.messages)
    assert reply.undelivered == ("nobody reads this",)


async def test_a_stop_of_the_run_around_it_stops_the_agent(autojump_clock: MockClock) -> None:
    agent = agent_with(calls(("work", {})), "never said")
    async with harness.open_run("outer") as outer:
        outer.stop()
        reply = await agent.run("hi")
        assert (reply.turns, reply.output, reply.complete) == (0, "", False)
        assert users(reply.messages) == ["hi"]
    async with harness.open_run("outer") as outer, trio.open_nursery() as nursery:

        async def stop() -> None:
            await trio.sleep(1)
            outer.stop()

        nursery.start_soon(stop)
        reply = await agent.run("hi")
    assert (reply.turns, reply.complete) == (1, False)
    assert trio.current_time() == 5


async def test_a_stop_during_the_last_turn_changes_nothing(autojump_clock: MockClock) -> None:
    async with agent_with("done").stream("hi") as stream:
        async for event in stream:
            if isinstance(event.payload, TurnStarted):
                stream.run.stop()
    assert stream.reply.complete
    assert stream.reply.output == "done"


async def test_a_stop_reaches_delegated_runs_and_the_whole_tree_ends_with_what_it_has(
    autojump_clock: MockClock,
) -> None:
    child = Agent("child", model=Script(calls(("work", {}), text="so far"), "never"), tools=[work])
    parent = Agent(
        "parent", model=Script(calls(("child", {"x": "go"})), "never"), tools=[child.as_tool()]
    )
    async with parent.stream("hi") as stream:
        async for event in stream:
            if isinstance(event.payload, ToolCalled) and event.path == "parent/child":
                stream.run.stop()
    assert trio.current_time() == 5
    assert stream.reply.messages[-1].content == "so far"
    assert is_valid(stream.reply.messages)


async def test_a_cancel_with_grace_is_a_stop_and_then_a_cancel(autojump_clock: MockClock) -> None:
    for grace, status in ((10, "ok"), (2, "cancelled")):
        agent = agent_with(calls(("work", {})), "never said")
        async with agent.stream("hi") as stream:
            async for event in stream:
                if isinstance(event.payload, ToolCalled):
                    stream.run.cancel("closing down", grace=grace)
        assert stream.run.status == status
        assert stream.reply.turns == 1
        assert not stream.reply.complete
        history = Conversation(stream.reply.messages)
        again = await agent_with("-", "hello again").run("hi again", conversation=history)
        assert again.output == "hello again"
