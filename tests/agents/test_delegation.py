"""Agents as tools: each call a run of its own, heard with its origin, and never a deadlock."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import (
    Agent,
    Delegated,
    RunEnded,
    TextDelta,
    ToolCalled,
    ToolReturned,
    tool,
)
from harness.errors import MaxTurnsError
from harness.limits import Limiter
from harness.models import ModelRequest, ModelResponse, ScriptedModel, Usage
from tests.agents.fakes import Fake, Script, calls, last_user, said


def echo(name: str = "child") -> Agent[str]:
    """Return an agent that repeats what it was told, in a few words and some time."""
    model = Fake(lambda request: said(f"about {last_user(request)} ok"), seconds=1)
    return Agent(name, model=model, instructions="Echo.")


def boss(*questions: str, child: Agent[str] | None = None, private: bool = False) -> Agent[str]:
    """Return an agent that asks one child all the questions in one turn."""
    child = child or echo()
    wanted = [(child.name, {"prompt": question}) for question in questions]
    return Agent(
        "boss", model=Script(calls(*wanted), "done"), tools=[child.as_tool(private=private)]
    )


async def read(
    agent: Agent[str], *, buffer: int = 256
) -> tuple[list[harness.Event], harness.agents.Reply[str]]:
    async with agent.stream("hi", buffer=buffer) as stream:
        events = [event async for event in stream]
    return events, stream.reply


async def test_eight_calls_of_one_agent_in_one_turn_have_eight_histories(
    autojump_clock: MockClock,
) -> None:
    questions = [f"question {number}" for number in range(8)]
    child = echo()
    reply = await boss(*questions, child=child).run("hi")
    assert trio.current_time() == 1, "side by side"
    tools = [one.content for one in reply.messages if one.role == "tool"]
    assert tools == [f"about {question} ok" for question in questions]
    model = child.model
    assert isinstance(model, Fake)
    histories = [request.messages for request in model.requests]
    assert len(histories) == 8
    assert {tuple(one.content for one in history) for history in histories} == {
        ("Echo.", question) for question in questions
    }


async def test_each_call_has_a_fresh_id_below_the_caller(autojump_clock: MockClock) -> None:
    events, reply = await read(boss(*"abcde"))
    delegated = [event for event in events if isinstance(event.payload, Delegated)]
    ids = {event.payload.run_id for event in delegated}
    assert len(ids) == 5
    assert reply.run_id not in ids
    assert {event.payload.call_id for event in delegated} == {"c1", "c2", "c3", "c4", "c5"}
    assert {event.payload.agent for event in delegated} == {"child"}
    for event in events:
        if event.run_id in ids:
            assert (event.parent_id, event.path, event.depth) == (reply.run_id, "boss/child", 1)
        else:
            assert (event.run_id, event.path, event.depth) == (reply.run_id, "boss", 0)


@pytest.mark.parametrize("buffer", [1, 256])
async def test_the_events_of_children_keep_their_order_and_come_before_the_parents_end(
    autojump_clock: MockClock, buffer: int
) -> None:
    events, reply = await read(boss("a", "b", "c"), buffer=buffer)
    assert events[-1].run_id == reply.run_id
    assert events[-1].payload == RunEnded("ok")
    of_run: dict[str, list[harness.Event]] = defaultdict(list)
    for event in events:
        of_run[event.run_id].append(event)
    assert len(of_run) == 4
    for run_id, own in of_run.items():
        assert [event.sequence for event in own] == sorted(event.sequence for event in own)
        assert own[-1].payload == RunEnded("ok")
        if run_id != reply.run_id:
            text = "".join(e.payload.text for e in own if isinstance(e.payload, TextDelta))
            assert text in {"about a ok ", "about b ok ", "about c ok "}
            # A call's result comes after all that its run told.
            call = next(
                event.payload.call_id
                for event in events
                if isinstance(event.payload, Delegated) and event.payload.run_id == run_id
            )
            returned = next(
                place
                for place, event in enumerate(events)
                if isinstance(event.payload, ToolReturned) and event.payload.call_id == call
            )
            assert events.index(own[-1]) < returned


async def test_origin_is_kept_at_depth_three(autojump_clock: MockClock) -> None:
    agent = echo("d3")
    for depth in (2, 1, 0):
        model = Script(calls((agent.name, {"task": "go"})), f"from d{depth}")
        agent = Agent(f"d{depth}", model=model, tools=[agent.as_tool()])
    events, _ = await read(agent)
    ids: dict[str, set[tuple[str, str | None, int]]] = defaultdict(set)
    for event in events:
        ids[event.path].add((event.run_id, event.parent_id, event.depth))
    paths = ["d0", "d0/d1", "d0/d1/d2", "d0/d1/d2/d3"]
    assert list(ids) == paths
    parent: str | None = None
    for depth, path in enumerate(paths):
        [(run_id, parent_id, depth_told)] = ids[path]
        assert (parent_id, depth_told) == (parent, depth)
        parent = run_id


async def test_a_private_delegation_is_heard_by_nobody_above(autojump_clock: MockClock) -> None:
    private, reply = await read(boss("a", "b", private=True))
    assert {event.run_id for event in private} == {reply.run_id}
    assert reply.messages[2].content == "about a ok"


async def test_an_unrelated_agent_in_a_tool_can_be_run_privately(
    autojump_clock: MockClock,
) -> None:
    """Its tokens don't appear in the stream of the run that happens to be around it."""
    other = echo("other")

    @tool
    async def consult() -> str:
        async with harness.open_run("consulting", private=True):
            reply = await other.run("hush")
        return reply.output

    @tool
    async def consult_openly() -> str:
        async with other.stream("loud") as stream:
            async for event in stream:
                assert event.run_id == stream.run.id
        return stream.reply.output

    agent = Agent(
        "boss",
        model=Script(calls(("consult", {})), calls(("consult_openly", {})), "done"),
        tools=[consult, consult_openly],
    )
    events, reply = await read(agent)
    text = [e.payload.text for e in events if isinstance(e.payload, TextDelta) and e.depth]
    assert "".join(text) == "about loud ok "
    assert reply.messages[2].content == "about hush ok"


async def test_what_an_agent_says_of_itself_and_takes(autojump_clock: MockClock) -> None:
    made = Agent(
        "card expert!", model=ScriptedModel(["x"]), instructions="You know cards."
    ).as_tool()
    assert made.name == "card_expert_"
    assert "card expert!" in made.description
    assert "You know cards." in made.description
    assert list(made.parameters["properties"]) == ["prompt"]
    assert made.parameters["properties"]["prompt"]["type"] == "string"
    assert made.timeout is None


async def test_arguments_that_are_not_one_string_are_answered(autojump_clock: MockClock) -> None:
    bad: list[dict[str, Any]] = [{}, {"prompt": 3}, {"a": "x", "b": "y"}]
    agent = Agent(
        "boss",
        model=Script(calls(*[("child", arguments) for arguments in bad]), "done"),
        tools=[echo().as_tool()],
    )
    reply = await agent.run("hi")
    told = [one.content for one in reply.messages if one.role == "tool"]
    assert all("one argument, a string" in one for one in told)


async def test_usage_is_each_runs_own_and_sums_exactly(autojump_clock: MockClock) -> None:
    """20 runs at once; what agents below used is counted separately, however deep."""

    def answer(request: ModelRequest) -> ModelResponse:
        number = int(last_user(request).split()[-1])
        return ModelResponse("ok", usage=Usage(number, 1))

    child = Agent("child", model=Fake(answer, seconds=1))
    middle = Agent(
        "middle",
        model=Fake(
            lambda r: (
                said("ok")
                if r.messages[-1].role == "tool"
                else calls(("child", {"x": last_user(r)}), ("child", {"x": last_user(r)}))
            )
        ),
        tools=[child.as_tool()],
    )
    top = Agent(
        "top",
        model=Fake(
            lambda r: (
                said("ok")
                if r.messages[-1].role == "tool"
                else calls(("middle", {"x": last_user(r)}))
            )
        ),
        tools=[middle.as_tool()],
    )
    results = await harness.fan_out(top, [f"number {n}" for n in range(20)], limit=20)
    for number, reply in enumerate(results.values()):
        assert reply.usage == Usage(15, 5)
        assert reply.delegated_usage == Usage(15 + 2 * number, 5 + 2)
    own = [(await child.run(f"number {n}")).usage.input_tokens for n in range(20)]
    assert own == list(range(20))


async def test_an_error_below_is_told_to_the_model_above(autojump_clock: MockClock) -> None:
    @tool
    async def nothing() -> None:
        await trio.lowlevel.checkpoint()

    child = Agent(
        "child", model=Script(*[calls(("nothing", {}))] * 3), tools=[nothing], max_turns=2
    )
    reply = await boss("a", child=child).run("hi")
    assert "MaxTurnsError" in reply.messages[2].content
    assert reply.output == "done"
    assert reply.delegated_usage == Usage(20, 4), "what failed was used all the same"


async def test_an_error_of_another_agent_keeps_its_own_partial_reply(
    autojump_clock: MockClock,
) -> None:
    @tool
    async def nothing() -> None:
        await trio.lowlevel.checkpoint()

    child = Agent(
        "child", model=Script(*[calls(("nothing", {}))] * 3), tools=[nothing], max_turns=2
    )

    @tool(on_error="run")
    async def ask() -> str:
        return (await child.run("from the boss")).output

    with pytest.raises(MaxTurnsError) as caught:
        await Agent("boss", model=Script(calls(("ask", {})), "done"), tools=[ask]).run("hi")
    assert caught.value.partial.messages[0].content == "from the boss"


async def test_a_child_that_is_cancelled_is_an_error_of_its_call_alone(
    autojump_clock: MockClock,
) -> None:
    async with boss("a", "b").stream("hi") as stream:
        async for event in stream:
            if isinstance(event.payload, Delegated):
                last = event.payload
                if last.call_id == "c1":
                    child = next(run for run in stream.run.children if run.id == last.run_id)
                    child.cancel("not you")
    tools = [one.content for one in stream.reply.messages if one.role == "tool"]
    assert tools == [
        "the tool failed: RunCancelled: the run was cancelled: not you",
        "about b ok",
    ]
    assert stream.reply.complete


async def test_a_limiter_for_one_is_shared_down_five_levels_without_deadlock(
    autojump_clock: MockClock,
) -> None:
    """Models reserve per request, never per run: a parent can't starve the child it waits for."""
    limiter = Limiter("one at a time", concurrent=1)
    agent = Agent("level-5", model=ScriptedModel(["deep"], limiter=limiter, delay=1))
    for level in (4, 3, 2, 1, 0):
        wanted = calls((agent.name, {"x": "a"}), (agent.name, {"x": "b"}))
        model = ScriptedModel([wanted, f"level {level}"], limiter=limiter, delay=1)
        agent = Agent(f"level-{level}", model=model, tools=[agent.as_tool()])
    with trio.fail_after(1_000):
        reply = await agent.run("hi")
        assert reply.output == "level 0"
        _, streamed = await read(agent, buffer=1)
    assert streamed.output == "level 0"
    assert limiter.statistics().in_flight == 0


async def test_a_delegation_has_the_callers_deps(autojump_clock: MockClock) -> None:
    @tool
    async def who() -> str:
        await trio.lowlevel.checkpoint()
        return f"for {harness.current_run().deps}"

    child = Agent(
        "child",
        model=Fake(
            lambda r: (
                said(r.messages[-1].text) if r.messages[-1].role == "tool" else calls(("who", {}))
            )
        ),
        tools=[who],
    )
    agent = boss("a", child=child)
    assert (await agent.run("hi", deps="us")).messages[2].content == "for us"


async def test_an_agent_is_cancelled_with_all_that_it_delegated(autojump_clock: MockClock) -> None:
    ended: list[str] = []

    @tool
    async def wait() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(harness.current_run().path)

    child = Agent("child", model=Script(calls(("wait", {}))), tools=[wait])
    async with boss("a", "b", child=child).stream("hi") as stream:
        waiting = 0
        async for event in stream:
            waiting += isinstance(event.payload, ToolCalled) and event.depth == 1
            if waiting == 2:
                await trio.sleep(1)
                stream.run.cancel()
    assert ended == ["boss/child"] * 2
    assert stream.run.children == ()
