"""Whatever a model asks for and whenever a run ends, its history can be sent again."""

from __future__ import annotations

from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import harness
from harness.agents import Agent, Conversation, RunEnded, ToolCalled, ToolReturned, tool
from harness.errors import HarnessError
from harness.models import ModelRequest, ModelResponse, ToolCall
from tests.agents.fakes import Fake, Script, calls, is_valid, said
from tests.support.checkpoints import cancel_at_every_checkpoint


class ToolFailed(Exception):
    pass


@tool
async def quick(seconds: int = 0) -> str:
    await trio.sleep(seconds)
    return "quick"


@tool(sequential=True, timeout=2)
async def queued(seconds: int = 1) -> str:
    await trio.sleep(seconds)
    return "queued"


@tool
async def failing(seconds: int = 0) -> str:
    await trio.sleep(seconds)
    raise ToolFailed("told to the model")


@tool(on_error="run")
async def fatal(seconds: int = 0) -> str:
    await trio.sleep(seconds)
    raise ToolFailed("fails the run")


@tool
async def stop_it() -> str:
    harness.current_run().stop("from a tool")
    await trio.lowlevel.checkpoint()
    return "stopped"


@tool
async def cancel_it() -> str:
    harness.current_run().cancel("from a tool")
    await trio.lowlevel.checkpoint()
    return "never"


child = Agent("child", model=Script(calls(("quick", {})), "from the child"), tools=[quick])
TOOLS = [quick, queued, failing, fatal, stop_it, cancel_it, child.as_tool()]

tool_calls = st.builds(
    ToolCall,
    st.sampled_from(["c1", "c2", "c3", ""]),
    st.sampled_from(
        ["quick"] * 4 + ["queued", "failing", "fatal", "stop_it", "cancel_it", "child", "unknown"]
    ),
    st.sampled_from([{}, {}, {"seconds": 1}, {"seconds": 3}, {"seconds": "soon"}, {"task": "go"}]),
)
responses = st.builds(
    ModelResponse,
    st.sampled_from(["", "some text", "more text to be said"]),
    tool_calls=st.lists(tool_calls, max_size=4),
)


@given(
    st.lists(responses, max_size=5),
    st.one_of(st.none(), st.integers(0, 8)),
    st.integers(1, 3),
    st.booleans(),
)
def test_whatever_happens_the_history_is_valid_and_every_call_has_its_result(
    script: list[ModelResponse],
    cancel_at: int | None,
    buffer: int,
    streamed: bool,
) -> None:
    state = {"turn": 0}

    def answer(request: ModelRequest) -> ModelResponse:
        assert is_valid(request.messages)
        assert all(one.content or one.tool_calls for one in request.messages if one.role != "tool")
        state["turn"] += 1
        return script[state["turn"] - 1] if state["turn"] <= len(script) else said("the end")

    async def main() -> None:
        events: list[harness.Event] = []
        conversation = Conversation()
        agent = Agent(
            "a", model=Fake(answer, seconds=0.5, seconds_per_word=0.1), tools=TOOLS, max_turns=4
        )
        reply: Any = None
        stream = agent.stream("hi", buffer=buffer, conversation=conversation)
        with harness.observing(events.append), trio.CancelScope() as scope:
            if cancel_at is not None:
                scope.deadline = trio.current_time() + cancel_at / 2
            try:
                if streamed:
                    async with stream:
                        async for _ in stream:
                            await trio.sleep(0.05)
                else:
                    reply = await agent.run("hi", conversation=conversation)
            except (ToolFailed, HarnessError) as error:
                reply = getattr(error, "partial", None)
        if streamed:
            reply = stream.reply
            assert stream.run.status != "running"
        by_run: dict[str, list[Any]] = {}
        for event in events:
            by_run.setdefault(event.run_id, []).append(event.payload)
        for payloads in by_run.values():
            assert isinstance(payloads[-1], RunEnded)
            assert sum(isinstance(one, RunEnded) for one in payloads) == 1
            called = [one.call_id for one in payloads if isinstance(one, ToolCalled)]
            returned = [one.call_id for one in payloads if isinstance(one, ToolReturned)]
            assert sorted(called) == sorted(returned)
        if reply is not None:
            assert is_valid(reply.messages)
            assert Conversation(reply.messages).messages == reply.messages
        assert is_valid(conversation.messages)

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_a_run_with_tools_can_be_cancelled_at_every_checkpoint(
    autojump_clock: MockClock,
) -> None:
    """Nothing is held, the context is as before, and each reported call has its result."""
    conversations: list[Conversation] = []
    model = Script(
        calls(("quick", {}), ("queued", {}), ("queued", {}), ("child", {"task": "go"})),
        calls(("failing", {"seconds": 1})),
        "done",
    )
    agent = Agent("a", model=model, tools=TOOLS)
    events: list[Any] = []
    runs: list[harness.Run] = []

    def watch(event: harness.Event) -> None:
        events.append(event.payload)

    async def use() -> None:
        events.clear()
        conversations.append(Conversation())
        with harness.observing(watch):
            async with harness.open_run("outer") as run:
                runs.append(run)
                await agent.run("hi", conversation=conversations[-1])

    def check() -> None:
        assert all(run.status != "running" and not run.children for run in runs)
        called = [one.call_id for one in events if isinstance(one, ToolCalled)]
        returned = [one.call_id for one in events if isinstance(one, ToolReturned)]
        assert sorted(called) == sorted(returned)
        assert len(conversations[-1]) == (0 if runs[-1].status == "cancelled" else 9)
        model.requests.clear()

    assert await cancel_at_every_checkpoint(use, check) > 15
    assert len(conversations[-1]) == 9


async def test_a_plain_tool_can_be_cancelled_at_every_checkpoint() -> None:
    """In a thread that can't be cut short: its end is waited for, shielded."""

    @tool(timeout=None)
    def plain() -> str:
        return harness.current_run().path

    agent = Agent("a", model=Script(calls(("plain", {})), "done"), tools=[plain])
    borrowed: list[int] = []

    async def use() -> None:
        await agent.run("hi")

    def check() -> None:
        borrowed.append(trio.to_thread.current_default_thread_limiter().borrowed_tokens)

    assert await cancel_at_every_checkpoint(use, check, patience_seconds=60) >= 2
    assert set(borrowed) == {0}
