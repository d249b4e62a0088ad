"""Tool calls: concurrent, in order, in time, each with a result, even after a mistake."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import Agent, Conversation, Tool, ToolCalled, ToolReturned, TurnStarted, tool
from harness.errors import ToolTimeoutError
from harness.models import Message, ModelRequest, ScriptedModel, ToolCall
from tests.agents.fakes import Fake, Script, calls, is_valid
from tests.scale import PATIENCE_SECONDS
from tests.support.context import planted, third_party, unchanged_context


def agent_of(*tools: Any, **wanted: Any) -> Agent[str]:
    """Return an agent that calls each tool with no arguments, and then answers."""
    names = [one.name if isinstance(one, Tool) else one.__name__ for one in tools]
    return Agent("a", model=Script(calls(*[(n, {}) for n in names]), "done"), tools=tools, **wanted)


async def results_of(agent: Agent[str]) -> list[str]:
    reply = await agent.run("hi")
    assert is_valid(reply.messages)
    return [one.text for one in reply.messages if one.role == "tool"]


def named(name: str, **options: Any) -> Callable[[Any], Tool]:
    return tool(name=name, **options)


# Side by side ------------------------------------------------------------------------------------


async def test_calls_of_a_turn_run_side_by_side_and_results_stand_in_their_order(
    autojump_clock: MockClock,
) -> None:
    @tool
    async def wait(seconds: float) -> str:
        await trio.sleep(seconds)
        return f"after {seconds:g}"

    model = Script(calls(*[("wait", {"seconds": s}) for s in (3, 1, 2)]), "done")
    events: list[object] = []
    async with Agent("a", model=model, tools=[wait]).stream("hi") as stream:
        async for event in stream:
            events.append(event.payload)
    assert trio.current_time() == 3
    tools = [one for one in stream.reply.messages if one.role == "tool"]
    assert tools == [
        Message("tool", "after 3", tool_call_id="c1"),
        Message("tool", "after 1", tool_call_id="c2"),
        Message("tool", "after 2", tool_call_id="c3"),
    ]
    assert [one.call_id for one in events if isinstance(one, ToolCalled)] == ["c1", "c2", "c3"]
    assert [one.call_id for one in events if isinstance(one, ToolReturned)] == ["c2", "c3", "c1"]


async def test_a_sequential_tool_loses_no_update(autojump_clock: MockClock) -> None:
    """20 calls read, wait and write one counter; run concurrently, they would all read 0."""

    async def count_up() -> int:
        deps = harness.current_run().deps
        seen: int = deps["count"]
        await trio.sleep(1)
        deps["count"] = seen + 1
        return seen

    model = Script(calls(*[("count_up", {})] * 20), "done")
    for sequential, expected in ((True, 20), (False, 1)):
        deps = {"count": 0}
        agent = Agent("a", model=model, tools=[tool(count_up, sequential=sequential)])
        reply = await agent.run("hi", deps=deps)
        assert deps["count"] == expected
        seen = [int(one.text) for one in reply.messages if one.role == "tool"]
        assert seen == (list(range(20)) if sequential else [0] * 20)


async def test_calls_of_a_turn_are_bounded(autojump_clock: MockClock) -> None:
    """A model that asks for thousands gets them, a hundred at once, each in its own context."""
    running = most = 0

    @tool
    async def count(number: int) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        before = third_party.get()
        third_party.set(f"set by {number}")
        await trio.sleep(1)
        running -= 1
        return before

    model = ScriptedModel([calls(*[("count", {"number": n}) for n in range(1_000)]), "done"])
    reply = await Agent("a", model=model, tools=[count]).run("hi")
    assert most == 100
    assert trio.current_time() == 10
    assert {one.content for one in reply.messages if one.role == "tool"} == {"unset"}


async def test_sequential_calls_have_contexts_of_their_own(autojump_clock: MockClock) -> None:
    @tool(sequential=True)
    async def look() -> str:
        before = third_party.get()
        third_party.set("set by a call")
        await trio.sleep(1)
        return before

    model = ScriptedModel([calls(*[("look", {})] * 3), "done"])
    with planted("by the caller"):
        reply = await Agent("a", model=model, tools=[look]).run("hi")
    told = [one.content for one in reply.messages if one.role == "tool"]
    assert told == ["by the caller"] * 3


async def test_no_call_begins_once_the_run_is_cancelled(autojump_clock: MockClock) -> None:
    """Not even its first step: an effect before the first checkpoint would happen."""
    effects: list[str] = []

    @tool(sequential=True)
    async def hasty(number: int) -> str:
        effects.append(f"began {number}")
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        return "done"

    def cancel_when_called(event: harness.Event) -> None:
        if isinstance(event.payload, ToolCalled):
            harness.current_run().cancel("changed my mind")

    model = ScriptedModel([calls(*[("hasty", {"number": n}) for n in range(3)]), "done"])
    agent = Agent("a", model=model, tools=[hasty])
    with harness.observing(cancel_when_called), pytest.raises(harness.errors.RunCancelled):
        await agent.run("hi")
    assert effects == []
    async with agent.stream("hi") as stream:
        await trio.sleep(0.5)
        stream.run.cancel("now")
    assert effects == ["began 0"]
    assert is_valid(stream.reply.messages)

    @tool(on_error="run")
    async def broken() -> None:
        await trio.sleep(0.5)
        raise OSError("broken")

    model = ScriptedModel(
        [calls(("hasty", {"number": 7}), ("hasty", {"number": 8}), ("broken", {}))]
    )
    with pytest.raises(OSError, match="broken"):
        await Agent("a", model=model, tools=[hasty, broken]).run("hi")
    assert effects == ["began 0", "began 7"]


async def test_sequential_counts_for_one_tool_in_one_run(autojump_clock: MockClock) -> None:
    @tool(sequential=True)
    async def slow() -> str:
        await trio.sleep(1)
        return "slow"

    @tool
    async def other() -> str:
        await trio.sleep(1)
        return "other"

    model = Script(calls(("slow", {}), ("other", {}), ("slow", {}), ("other", {})), "done")
    agent = Agent("a", model=model, tools=[slow, other])
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(agent.run, "hi")
    assert trio.current_time() == 2


@pytest.mark.slow
async def test_a_counter_of_a_tool_belongs_to_the_run(autojump_clock: MockClock) -> None:
    """A tool that fails once per run: 50 runs at once, and none fails because of another."""
    tries: harness.RunLocal[list[int]] = harness.RunLocal(list, name="tries")

    @tool
    async def flaky() -> str:
        tries.get().append(1)
        await trio.sleep(1)
        if len(tries.get()) > 2:
            raise AssertionError("tries of another run were counted")
        if len(tries.get()) == 1:
            raise OSError("try again")
        return "worked"

    agent = Agent(
        "a", model=Script(calls(("flaky", {})), calls(("flaky", {})), "done"), tools=[flaky]
    )
    results = await harness.fan_out(agent, ["hi"] * 50, limit=50)
    for reply in results.values():
        tools = [one.content for one in reply.messages if one.role == "tool"]
        assert tools == ["the tool failed: OSError: try again", "worked"]


async def test_ten_runs_share_one_slow_connection(autojump_clock: MockClock) -> None:
    """What is shared has an owner task; runs borrow it, and a cancelled one breaks nothing."""

    class Connection:
        def __init__(self) -> None:
            self.send, self.receive = trio.open_memory_channel[Any](0)

        async def own(self) -> None:
            async for question, answer_to in self.receive:
                await trio.sleep(1)
                answer_to.append(f"answer to {question}")
                answer_to.done.set()

    class Box(list[str]):
        def __init__(self) -> None:
            self.done = trio.Event()

    connection = Connection()

    @tool
    async def ask(question: str) -> str:
        box = Box()
        await connection.send.send((question, box))
        await box.done.wait()
        return box[0]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.own)
        replies: dict[int, str] = {}

        async def one(number: int) -> None:
            model = Script(calls(("ask", {"question": str(number)})), "done")
            with trio.move_on_after(3.5 if number % 2 else 1_000):
                reply = await Agent("a", model=model, tools=[ask]).run("hi")
                replies[number] = reply.messages[2].text

        async with trio.open_nursery() as runs:
            for number in range(10):
                runs.start_soon(one, number)
        nursery.cancel_scope.cancel()
    assert {n for n in range(10) if n % 2 == 0} <= set(replies)
    assert all(answer == f"answer to {number}" for number, answer in replies.items())


# Context -----------------------------------------------------------------------------------------


async def test_a_tool_sees_the_agents_run_and_the_callers_context(
    autojump_clock: MockClock,
) -> None:
    """Each call has a copy of the caller's context: what it sets is seen by nobody else."""
    seen: list[tuple[str, str]] = []

    async def look() -> None:
        seen.append((harness.current_run().path, third_party.get()))
        third_party.set("set in a call")
        await trio.sleep(1)

    @tool
    async def first() -> None:
        await look()

    @tool
    async def second() -> None:
        await look()

    @tool
    def plain() -> None:
        seen.append((harness.current_run().path, third_party.get()))
        third_party.set("set in a thread")

    third_party.set("planted")
    model = Script(calls(("first", {}), ("second", {})), calls(("plain", {})), "done")
    agent = Agent("a", model=model, tools=[first, second, plain])
    async with harness.open_run("outer"):
        await agent.run("hi")
        assert third_party.get() == "planted"
        async with agent.stream("hi") as stream:
            async for _ in stream:
                assert third_party.get() == "planted"
                assert harness.current_run().path == "outer"
    assert seen == [("outer/a", "planted")] * 6


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_model_sees_the_agents_run_and_the_callers_context(
    autojump_clock: MockClock, streamed: bool
) -> None:
    seen: list[tuple[str, str]] = []

    def answer(request: ModelRequest) -> str:
        seen.append((harness.current_run().path, third_party.get()))
        return "hi"

    with planted("in the reader"), unchanged_context():
        async with harness.open_run("outer"):
            agent = Agent("a", model=Fake(answer))
            if streamed:
                async with agent.stream("hi") as stream:
                    async for _ in stream:
                        assert third_party.get() == "in the reader"
            else:
                await agent.run("hi")
    assert seen == [("outer/a", "in the reader")]


async def test_fifty_runs_with_plain_tools_each_see_their_own_run(
    autojump_clock: MockClock,
) -> None:
    ids: list[str] = []

    @tool(timeout=None)
    def which() -> str:
        return harness.current_run().id

    agent = agent_of(which)
    results = await harness.fan_out(agent, ["hi"] * 50, limit=50)
    for reply in results.values():
        assert reply.messages[2].content == reply.run_id
        ids.append(reply.run_id)
    assert len(set(ids)) == 50


# Results -----------------------------------------------------------------------------------------


async def test_what_a_tool_returns_is_text_or_json(autojump_clock: MockClock) -> None:
    @tool
    async def text() -> str:
        return "as it is"

    @tool
    async def data() -> dict[str, Any]:
        return {"a": [1, None]}

    @tool
    async def nothing() -> None:
        pass

    @tool
    async def odd() -> object:
        return object()

    @tool
    def decorated() -> Any:
        return text()

    told = await results_of(agent_of(text, data, nothing, odd, decorated))
    assert told[:3] == ["as it is", '{"a":[1,null]}', "null"]
    assert "can't be written as JSON" in told[3]
    assert told[4] == "as it is"


@pytest.mark.parametrize("fails", [False, True])
async def test_text_that_no_request_can_hold_is_told_in_words(
    autojump_clock: MockClock, fails: bool
) -> None:
    """Like file names that aren't UTF-8. The whole history couldn't be sent or saved."""

    @tool
    async def name_of_file() -> str:
        if fails:
            raise OSError("no file caf\udce9 ☕")
        return "caf\udce9 ☕"

    agent = Agent("a", model=Script(calls(("name_of_file", {})), "done"), tools=[name_of_file])
    reply = await agent.run("hi")
    assert "caf\\udce9 ☕" in reply.messages[2].content
    assert Conversation.from_json(Conversation(reply.messages).to_json()).messages == reply.messages


async def test_a_history_can_be_sent_whatever_halves_of_pairs_came_in(
    autojump_clock: MockClock,
) -> None:
    """From the user, and from a model whose text was cut between two halves: no client could."""
    given: list[Any] = []

    @tool
    async def look_up(where: dict[str, Any], names: list[str]) -> str:
        given.append((where, names))
        return "found"

    arguments = {"where": {"caf\udce9": ["\ud83d\ude00"]}, "names": ["Zo\udceb", "Ada"]}
    wanted = attrs.evolve(calls(("look_up", arguments)), content="\ud83d" + "\ude00 ☕")
    model = Script(wanted, "caf\udce9")
    async with Agent("a", model=model, tools=[look_up]).stream("Where is caf\udce9?") as stream:
        async for event in stream:
            if isinstance(event.payload, ToolCalled):
                stream.inject("or \udce9")
    messages = stream.reply.messages
    assert [one.content for one in messages] == [
        "Where is caf\\udce9?",
        "😀 ☕",
        "found",
        "or \\udce9",
        "caf\\udce9",
    ]
    assert given == [({"caf\\udce9": ["😀"]}, ["Zo\\udceb", "Ada"])]
    assert messages[1].tool_calls[0].arguments == {"where": given[0][0], "names": given[0][1]}
    assert arguments["names"] == ["Zo\udceb", "Ada"], "the model's own"
    assert Conversation.from_json(Conversation(messages).to_json()).messages == messages


async def test_an_error_goes_back_to_the_model(autojump_clock: MockClock) -> None:
    @tool
    async def broken() -> str:
        raise KeyError("no such card")

    @tool
    async def fine() -> str:
        await trio.sleep(1)
        return "fine"

    assert await results_of(agent_of(broken, fine)) == [
        "the tool failed: KeyError: 'no such card'",
        "fine",
    ]


async def test_an_error_fails_the_run_by_choice(autojump_clock: MockClock) -> None:
    """It comes out unchanged, the other calls are cut short, and each has a result."""
    ended: list[str] = []
    events: list[object] = []

    @tool(on_error="run")
    async def broken() -> str:
        await trio.sleep(1)
        raise KeyError("no such card")

    @tool
    async def slow() -> str:
        try:
            await trio.sleep(10)
        finally:
            ended.append("slow")
        return "slow"

    agent = agent_of(slow, broken)
    with harness.observing(lambda event: events.append(event.payload)):
        with pytest.raises(KeyError, match="no such card") as caught:
            async with harness.open_run("outer"):
                await agent.run("hi")
    assert ended == ["slow"]
    assert trio.current_time() == 1
    assert caught.value.__notes__[0] == "in tool 'broken' of run outer/a"
    returned = [one for one in events if isinstance(one, ToolReturned)]
    assert [(one.name, one.ok) for one in returned] == [("broken", False), ("slow", False)]


async def test_several_errors_fail_the_run_with_the_first_in_the_order_of_the_calls(
    autojump_clock: MockClock,
) -> None:
    def broken(name: str) -> Any:
        @tool(name=name, on_error="run")
        async def inner() -> str:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            raise OSError(name)

        return inner

    with pytest.raises(OSError, match="first"):
        await agent_of(broken("first"), broken("second")).run("hi")


class RetryableError(Exception):
    pass


@pytest.mark.parametrize("on_error", ["model", "run"])
async def test_a_single_error_in_groups_is_unwrapped_with_its_cause(
    autojump_clock: MockClock, on_error: Any
) -> None:
    """A tool that opens a nursery raises a group; `except RetryableError` must find it."""

    async def inner() -> None:
        try:
            raise OSError("reset by peer")
        except OSError as error:
            raise RetryableError("try again") from error

    @tool(on_error=on_error)
    async def nested() -> None:
        async with trio.open_nursery():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(inner)

    if on_error == "model":
        assert await results_of(agent_of(nested)) == ["the tool failed: RetryableError: try again"]
    else:
        with pytest.raises(RetryableError) as caught:
            await agent_of(nested).run("hi")
        assert isinstance(caught.value.__cause__, OSError)
        assert "in tool 'nested' of run a" in caught.value.__notes__


@pytest.mark.parametrize(("on_error", "status"), [("run", "failed"), ("model", "cancelled")])
async def test_an_error_beside_a_cancel_is_the_error(
    autojump_clock: MockClock, on_error: Any, status: str
) -> None:
    """A tool that breaks while it is being cancelled: the cancels in its group say nothing."""

    async def break_in_cleanup() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise RetryableError("broke in its cleanup")

    @tool(on_error=on_error)
    async def nested() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(break_in_cleanup)

    agent = agent_of(nested)
    expected = pytest.raises(RetryableError) if on_error == "run" else contextlib.nullcontext()
    with expected:
        async with agent.stream("hi") as stream:
            async for event in stream:
                if isinstance(event.payload, ToolCalled):
                    await trio.sleep(1)
                    stream.run.cancel()
    assert stream.run.status == status
    assert stream.reply.messages[2].content == (
        "the tool failed: RetryableError: broke in its cleanup"
    )


async def test_what_is_no_error_is_never_told_to_a_model(autojump_clock: MockClock) -> None:
    @tool
    async def interrupted() -> None:
        raise KeyboardInterrupt

    @tool
    async def fine() -> None:
        await trio.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        await agent_of(interrupted, fine).run("hi")
    with pytest.raises(KeyboardInterrupt):
        async with agent_of(interrupted, fine).stream("hi") as stream:
            async for _ in stream:
                pass


async def test_arguments_that_do_not_fit_are_answered_so_that_the_model_can_try_again(
    autojump_clock: MockClock,
) -> None:
    called: list[int] = []

    @tool(on_error="run")
    async def square(number: int) -> int:
        called.append(number)
        await trio.lowlevel.checkpoint()
        return number * number

    bad: list[dict[str, Any]] = [{}, {"number": "3"}, {"number": 3, "unit": "cm"}, {"number": None}]
    model = Script(
        calls(*[("square", arguments) for arguments in bad]),
        calls(("square", {"number": 3})),
        "9",
    )
    reply = await Agent("a", model=model, tools=[square]).run("hi")
    assert [one.content for one in reply.messages if one.role == "tool"] == [
        "the arguments don't fit: Object missing required field `number`",
        "the arguments don't fit: Expected `int`, got `str` - at `$.number`",
        "the arguments don't fit: Object contains unknown field `unit`",
        "the arguments don't fit: Expected `int`, got `null` - at `$.number`",
        "9",
    ]
    assert called == [3]


async def test_a_function_that_changes_its_arguments_changes_nobody_elses(
    autojump_clock: MockClock,
) -> None:
    """They are in the history too, and in the script, which other runs share."""

    @tool
    async def change(some: dict[str, Any], more: list[Any], any_: Any, typed: list[int]) -> str:
        seen = repr((some, more, any_, typed))
        some["in"].append(1)
        some["new"] = more.pop()
        any_["deep"]["deeper"] = True
        typed.clear()
        return seen

    given = {"some": {"in": []}, "more": [[1]], "any_": {"deep": {}}, "typed": [1]}
    kept = copy.deepcopy(given)
    model = ScriptedModel([calls(("change", given)), "done"])
    agent = Agent("a", model=model, tools=[change])
    replies = [await agent.run("hi") for _ in range(2)]
    told = [reply.messages[2].content for reply in replies]
    assert told == ["({'in': []}, [[1]], {'deep': {}}, [1])"] * 2
    for reply in replies:
        assert reply.messages[1].tool_calls[0].arguments == kept
    assert given == kept


async def test_arguments_that_are_no_object_are_answered(autojump_clock: MockClock) -> None:
    called: list[int] = []

    @tool
    async def act() -> None:
        called.append(1)

    model = Script(
        calls(
            harness.models.ToolCall("c1", "act", unreadable='{"a": '),
            harness.models.ToolCall("c2", "act", [1]),  # type: ignore[arg-type]
        ),
        "done",
    )
    reply = await Agent("a", model=model, tools=[act]).run("hi")
    told = [one.content for one in reply.messages if one.role == "tool"]
    assert all("no JSON object" in one for one in told)
    assert '{"a": ' in told[0]
    assert "[1]" in told[1]
    assert called == []
    saved = Conversation(reply.messages).to_json()
    assert Conversation.from_json(saved).messages == reply.messages, "it could not be read again"


# Time and cancellation ---------------------------------------------------------------------------


async def test_each_call_has_a_time_of_its_own(autojump_clock: MockClock) -> None:
    @tool(timeout=2)
    async def slow() -> str:
        await trio.sleep(5)
        return "late"

    @tool(timeout=None)
    async def slower() -> str:
        await trio.sleep(500)
        return "in the end"

    @tool
    async def usual() -> str:
        await trio.sleep_forever()
        return ""

    told = await results_of(agent_of(slow, slower, usual))
    assert "timeout of 2 s" in told[0]
    assert told[1] == "in the end"
    assert "timeout of 60 s" in told[2]
    assert trio.current_time() == 500

    with pytest.raises(ToolTimeoutError, match="'slow'") as caught:
        await agent_of(tool(slow._function, name="slow", timeout=2, on_error="run")).run("hi")
    assert isinstance(caught.value, trio.TooSlowError)


async def test_the_time_of_a_sequential_call_starts_when_it_does(
    autojump_clock: MockClock,
) -> None:
    @tool(timeout=2, sequential=True)
    async def slow() -> str:
        await trio.sleep(1.5)
        return "in time"

    model = Script(calls(*[("slow", {})] * 4), "done")
    assert await results_of(Agent("a", model=model, tools=[slow])) == ["in time"] * 4


async def test_a_too_slow_error_from_inside_is_the_tools_own(autojump_clock: MockClock) -> None:
    @tool
    async def strict() -> None:
        with trio.fail_after(1):
            await trio.sleep_forever()

    assert await results_of(agent_of(strict)) == ["the tool failed: TooSlowError"]


async def test_a_cancel_during_a_tool_keeps_its_effect_from_happening(
    autojump_clock: MockClock,
) -> None:
    """Cancelled means stopped: the effect doesn't happen, and the state stays cancelled."""
    effects: list[str] = []

    @tool
    async def pay() -> str:
        await trio.sleep(5)
        effects.append("paid")
        return "paid"

    @tool
    async def quick() -> str:
        await trio.sleep(1)
        return "quick"

    agent = agent_of(pay, quick)
    async with trio.open_nursery() as nursery:
        async with agent.stream("hi") as stream:

            async def cancel() -> None:
                await trio.sleep(2)
                stream.run.cancel("changed my mind")

            nursery.start_soon(cancel)
            async for _ in stream:
                pass
    await trio.sleep(100)
    assert effects == []
    assert stream.run.status == "cancelled"
    reply = stream.reply
    assert [one.content for one in reply.messages if one.role == "tool"] == [
        "this call was cut short before it had a result",
        "quick",
    ]
    assert is_valid(reply.messages)
    # It can be sent again.
    history = harness.agents.Conversation(reply.messages)
    again = await Agent("b", model=Script("-", "welcome back")).run("hi", conversation=history)
    assert again.output == "welcome back"


async def test_a_tool_that_ignores_its_cancel_is_waited_for_and_named(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def stubborn() -> str:
        until = trio.current_time() + 20
        while trio.current_time() < until:
            try:
                await trio.sleep(1)
            except trio.Cancelled:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)
        return "at last"

    async with agent_of(stubborn).stream("hi") as stream:
        async for event in stream:
            if isinstance(event.payload, ToolCalled):
                await trio.sleep(1)
                break
    assert trio.current_time() == 20
    assert stream.run.status == "cancelled"
    assert "ended 14.0 s after the time for its cleanup" in caplog.text


async def test_a_run_says_which_tools_it_waits_for(autojump_clock: MockClock) -> None:
    @tool
    async def slow() -> None:
        await trio.sleep(30)

    model = ScriptedModel([calls(*[("slow", {})] * 7), "done"], delay=1)
    agent = Agent("a", model=model, tools=[slow])
    words: list[str] = []
    async with agent.stream("hi") as stream:
        async for event in stream:
            if isinstance(event.payload, TurnStarted):
                words.append(stream.run.waiting_for)
            if isinstance(event.payload, ToolCalled):
                await trio.sleep(1)
                words.append(stream.run.waiting_for)
    assert words[0] == "an answer of its model"
    assert words[1] == "its tools: slow, slow, slow, slow, slow and 2 more"
    with pytest.raises(harness.errors.RunTimedOut, match="in its tools: slow"):
        async with harness.open_run("outer", timeout=10):
            await agent.run("hi")


# Threads -----------------------------------------------------------------------------------------


@pytest.mark.real_clock
async def test_plain_tools_do_not_block_each_other() -> None:
    """Each of four goes on only when all have begun."""
    all_here = threading.Barrier(4, timeout=PATIENCE_SECONDS)

    @tool
    def meet() -> str:
        all_here.wait()
        return "rested"

    model = Script(calls(*[("meet", {})] * 4), "done")
    reply = await Agent("a", model=model, tools=[meet]).run("hi")
    assert [one.content for one in reply.messages[2:6]] == ["rested"] * 4


@pytest.mark.real_clock
@pytest.mark.parametrize("abandon", [False, True])
async def test_a_thread_is_waited_for_or_abandoned_by_choice(abandon: bool) -> None:
    go_on, ended = threading.Event(), threading.Event()

    @tool(timeout=0.05, abandon_on_cancel=abandon)
    def slow() -> str:
        go_on.wait(PATIENCE_SECONDS)
        ended.set()
        return "late"

    async with trio.open_nursery() as nursery:
        if not abandon:
            # Long after its timeout; were it not waited for, its result would have come by then.
            nursery.start_soon(set_after, 0.3, go_on)
        told = await results_of(agent_of(slow))
    if abandon:
        assert "timeout of 0.05 s" in told[0]
        assert not ended.is_set()
        go_on.set()
        await trio.to_thread.run_sync(ended.wait, PATIENCE_SECONDS)
    else:
        assert told == ["late"], "it was waited for, so what it returned counts"
    assert ended.is_set()


async def set_after(seconds: float, event: threading.Event) -> None:
    await trio.sleep(seconds)
    event.set()


@pytest.mark.real_clock
async def test_threads_of_tools_are_limited_and_keep_those_of_others_free() -> None:
    running: list[int] = []
    most: list[int] = []

    @tool
    def work() -> None:
        running.append(1)
        most.append(len(running))
        time.sleep(0.02)
        running.pop()

    model = Script(calls(*[("work", {})] * 100), "done")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Agent("a", model=model, tools=[work]).run, "hi")
        await trio.sleep(0.01)
        assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
    assert max(most) <= 40
    assert len(most) == 100


# Kinds of one's own ------------------------------------------------------------------------------


async def test_a_kind_of_its_own_derives_from_tool(autojump_clock: MockClock) -> None:
    class Remote(Tool):
        async def invoke(self, arguments: Any, call_id: str) -> Any:
            await trio.sleep(1)
            return [call_id, arguments]

    remote = Remote(name="remote", description="Far away.", parameters={"type": "object"})
    agent = Agent("a", model=Script(calls(("remote", {"x": 1})), "done"), tools=[remote])
    assert await results_of(agent) == ['["c1",{"x":1}]']


async def test_a_tool_is_still_the_function(autojump_clock: MockClock) -> None:
    @tool
    async def add(a: int, b: int = 1) -> int:
        await trio.lowlevel.checkpoint()
        return a + b

    @tool
    def plain(a: int) -> int:
        return -a

    assert await add(2) == 3
    assert await add(2, b=5) == 7
    assert plain(2) == -2


# Keys of effects ---------------------------------------------------------------------------------


async def test_each_tool_call_has_a_key_of_its_own_for_its_effect() -> None:
    """Two mails of one turn had the item's one key, and a mail server would have sent one."""
    seen: list[tuple[str, str]] = []

    @tool
    async def send_mail(to: str) -> str:
        seen.append((to, harness.current_run().effect_key()))
        await trio.lowlevel.checkpoint()
        return "sent"

    mails = [("send_mail", {"to": to}) for to in ("ada", "bob", "ada")]
    agent = Agent("a", model=Script(calls(*mails), "done"), tools=[send_mail])
    await harness.fan_out(agent, ["q"])
    assert len(seen) == len({key for _, key in seen}) == 3


async def test_a_tool_call_has_the_same_key_in_every_attempt_at_its_item(
    autojump_clock: MockClock,
) -> None:
    """Also if the model orders the arguments, or names the call, in another way; in a thread."""
    seen: list[str] = []

    @tool
    def send_mail(to: str, text: str) -> str:
        seen.append(harness.current_run().effect_key())
        return "sent"

    def answer(request: ModelRequest) -> Any:
        if request.messages[-1].role != "tool":
            mail = {"to": "ada", "text": "Hi"}
            mail = dict(reversed(mail.items())) if seen else mail
            return calls(ToolCall(f"call-{len(seen)}", "send_mail", mail))
        if len(seen) == 1:
            raise ConnectionError
        return "done"

    agent = Agent("a", model=Fake(answer), tools=[send_mail])
    each = harness.Attempt(retry=harness.Retry(3))
    (await harness.fan_out(agent, ["q", "q"], each=each, limit=1)).raise_if_incomplete()
    first, second, other_item = seen
    assert first == second != other_item


async def test_a_call_that_failed_and_its_repetition_ask_for_one_effect() -> None:
    seen: list[str] = []

    @tool
    async def send_mail(to: str) -> str:
        seen.append(harness.current_run().effect_key())
        if len(seen) == 1:
            raise ConnectionError("no route")
        return "sent"

    mail = calls(("send_mail", {"to": "ada"}))
    await Agent("a", model=Script(mail, mail, mail, "done"), tools=[send_mail]).run("q")
    assert seen[0] == seen[1] != seen[2]
