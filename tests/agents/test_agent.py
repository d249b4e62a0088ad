"""What an agent is: a frozen value that answers, and refuses what makes no sense."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import Agent, Reply, TextDelta, UsageReported, tool
from harness.errors import (
    BudgetExceeded,
    HarnessError,
    MaxTurnsError,
    OutputError,
    RunCancelled,
    RunEndedError,
)
from harness.flow import Pipeline
from harness.models import (
    FunctionModel,
    Message,
    ModelRequest,
    ModelResponse,
    ModelStream,
    ScriptedModel,
    ToolCall,
    ToolDescription,
    Usage,
)
from tests.agents.fakes import Fake, Script, calls, is_valid, said
from tests.scale import scaled


@tool
async def double(number: int) -> int:
    """Double a number."""
    await trio.lowlevel.checkpoint()
    return 2 * number


async def test_an_agent_answers(autojump_clock: MockClock) -> None:
    model = Script(calls(("double", {"number": 4}), text="let me see"), "it is 8")
    agent = Agent("calculator", model=model, instructions="Be brief.", tools=[double])
    async with harness.open_run("outer") as outer:
        reply = await agent.run("what is twice 4?")
    assert reply.output == "it is 8"
    assert reply.complete
    assert reply.turns == 2
    assert reply.usage == Usage(15, 5)
    assert reply.undelivered == ()
    assert reply.run_id != outer.id
    assert [(one.role, one.content) for one in reply.messages] == [
        ("user", "what is twice 4?"),
        ("assistant", "let me see"),
        ("tool", "8"),
        ("assistant", "it is 8"),
    ]
    assert reply.messages == reply.new_messages
    assert is_valid(reply.messages)
    first, second = model.requests
    assert first.messages == (Message("system", "Be brief."), Message("user", "what is twice 4?"))
    assert first.tools == (ToolDescription("double", "Double a number.", double.parameters),)
    assert second.messages == (first.messages[0], *reply.messages[:-1])


async def test_the_reply_holds_no_run_and_no_agent(autojump_clock: MockClock) -> None:
    reply = await Agent("a", model=ScriptedModel(["hello"])).run("hi")
    assert copy.deepcopy(reply) == reply
    assert "Agent" not in repr(reply)


async def test_deps_are_those_given_or_the_ones_around(autojump_clock: MockClock) -> None:
    @tool
    async def who() -> str:
        await trio.lowlevel.checkpoint()
        return str(harness.current_run().deps)

    agent = Agent("a", model=Script(calls(("who", {})), "done"), tools=[who])
    async with harness.open_run("outer", deps="around"):
        replies = [await agent.run("hi"), await agent.run("hi", deps="given")]
        async with agent.stream("hi", deps="streamed") as stream:
            async for _ in stream:
                pass
    told = [reply.messages[2].content for reply in (*replies, stream.reply)]
    assert told == ["around", "given", "streamed"]


async def test_attributes_are_the_same_after_a_thousand_runs(autojump_clock: MockClock) -> None:
    """Nothing is ever written to an agent or a tool."""
    agent = Agent(
        "a",
        model=ScriptedModel([calls(("double", {"number": 1})), "done"]),
        instructions="Be brief.",
        tools=[double],
    )
    names = ("name", "model", "instructions", "tools", "max_turns", "output_type", "_setup")
    tool_names = [name for cls in type(double).__mro__ for name in getattr(cls, "__slots__", ())]

    def state() -> list[object]:
        return [
            *(getattr(agent, name) for name in names),
            *(getattr(double, name) for name in tool_names if name != "__weakref__"),
            copy.deepcopy(double.parameters),
        ]

    before = state()
    results = await harness.fan_out(agent, ["hi"] * scaled(200, full=1_000), limit=50)
    assert {reply.output for reply in results.values()} == {"done"}
    after = state()
    assert all(one is other for one, other in zip(before[:-1], after[:-1], strict=True))
    assert before[-1] == after[-1]


def test_an_agent_and_a_tool_are_frozen() -> None:
    agent = Agent("a", model=ScriptedModel([]), tools=[double])
    with pytest.raises(AttributeError, match="frozen"):
        agent.name = "b"
    with pytest.raises(AttributeError, match="frozen"):
        del agent.name
    with pytest.raises(AttributeError):
        agent.brand_new = 1
    with pytest.raises(AttributeError):
        double.timeout = 3  # type: ignore[misc]
    assert agent.name == "a"
    assert agent.tools == (double,)
    assert repr(agent) == "<Agent 'a'>"
    assert repr(double) == "<FunctionTool 'double'>"


def test_an_agent_can_be_copied() -> None:
    agent = Agent("a", model=ScriptedModel([]), tools=[double], max_turns=3, output_type=int)
    for twin in (copy.copy(agent), copy.deepcopy(agent)):
        assert (twin.name, twin.max_turns, twin.output_type) == ("a", 3, int)
        assert [one.name for one in twin.tools] == ["double"]


async def test_a_list_of_tools_that_changes_later_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    tools: list[Any] = [double]
    agent = Agent("a", model=ScriptedModel(["hi"]), tools=tools)
    tools.clear()
    assert agent.tools == (double,)


async def test_functions_are_made_tools(autojump_clock: MockClock) -> None:
    async def triple(number: int) -> int:
        """Triple."""
        await trio.lowlevel.checkpoint()
        return 3 * number

    agent = Agent("a", model=Script(calls(("triple", {"number": 2})), "done"), tools=[triple])
    assert (await agent.run("hi")).messages[2].content == "6"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"name": ""}, ValueError, "name"),
        ({"name": 3}, TypeError, "name"),
        ({"instructions": None}, TypeError, "instructions"),
        ({"model": len}, TypeError, "FunctionModel"),
        ({"model": FunctionModel}, TypeError, "the class FunctionModel"),
        ({"max_turns": 0}, ValueError, "max_turns"),
        ({"max_turns": 2.5}, TypeError, "max_turns"),
        ({"tools": double}, TypeError, r"\[lookup\]"),
        ({"tools": [double, double]}, ValueError, "two tools of the name 'double'"),
        ({"tools": [3]}, TypeError, "function"),
        ({"tools": [lambda number: number]}, (TypeError, ValueError), "lambda"),
        ({"output_type": object()}, TypeError, "output_type"),
        ({"output_type": type("Odd", (), {})}, TypeError, "Odd"),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_agent_is_made(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    make: Any = Agent
    with pytest.raises(error, match=words):
        make(**({"name": "a", "model": ScriptedModel([])} | arguments))


async def test_what_makes_no_sense_is_refused_when_it_is_run(autojump_clock: MockClock) -> None:
    agent: Agent[Any] = Agent("a", model=ScriptedModel(["hi"]))
    for bad in ({"text": "hi"}, None, Message("user", "hi")):
        with pytest.raises(TypeError, match="prompt as a string"):
            await agent.run(bad)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="prompt as a string"):
            agent.stream(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prompt with text"):
        await agent.run("")
    with pytest.raises(TypeError, match="Conversation"):
        await agent.run("hi", conversation=[])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="buffer"):
        agent.stream("hi", buffer=0)


async def test_as_an_item_function_its_value_is_the_reply(autojump_clock: MockClock) -> None:
    agent = Agent("echo", model=FunctionModel(lambda request: request.messages[-1].text))
    results = await harness.fan_out(agent, ["a", "b", "c"], limit=2, name="many")
    assert [reply.output for reply in results.values()] == ["a", "b", "c"]
    assert all(isinstance(value, Reply) for value in results.values())


async def test_the_run_stands_below_the_one_it_is_called_in(autojump_clock: MockClock) -> None:
    paths: list[str] = []

    def answer(request: ModelRequest) -> str:
        paths.append(harness.current_run().path)
        return "hi"

    agent = Agent("a", model=Fake(answer))
    await agent.run("hi")
    async with harness.open_run("outer"):
        await agent.run("hi")
        assert harness.current_run().path == "outer"
    assert harness.current_run_or_none() is None
    assert paths == ["a", "outer/a"]


# Endings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [BudgetExceeded, MaxTurnsError, OutputError])
def test_an_error_with_a_partial_reply_reads_as_its_message(error: type[HarnessError]) -> None:
    """One read as a tuple, in logs and in the last event of its run."""
    assert str(error("what happened")) == "what happened"


async def test_max_turns_is_an_error_with_the_partial_reply(autojump_clock: MockClock) -> None:
    again = calls(("double", {"number": 1}), text="once more")
    agent = Agent("a", model=Script(*[again] * 9), tools=[double], max_turns=3)
    with pytest.raises(MaxTurnsError, match=r"max_turns=3") as caught:
        await agent.run("hi")
    partial = caught.value.partial
    assert partial.turns == 3
    assert partial.output == "once more"
    assert not partial.complete
    assert partial.usage == Usage(30, 6)
    assert len(partial.messages) == 7
    assert is_valid(partial.messages)
    assert "in run a" in caught.value.__notes__


async def test_a_run_that_is_cancelled_raises_with_the_partial_reply(
    autojump_clock: MockClock,
) -> None:
    """`RunCancelled` has the reason and what was done; the caller goes on."""
    agent = Agent(
        "a", model=Script(calls(("double", {"number": 4})), "late", seconds=5), tools=[double]
    )
    async with harness.open_run("outer") as outer:
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                await trio.sleep(7)
                outer.children[0].cancel("not needed")

            nursery.start_soon(cancel)
            with pytest.raises(RunCancelled, match="not needed") as caught:
                await agent.run("hi")
        await trio.sleep(1)
    assert caught.value.reason == "not needed"
    partial = caught.value.partial
    assert partial.turns == 2
    assert not partial.complete
    assert is_valid(partial.messages)
    assert outer.status == "ok"


async def test_a_cancel_from_outside_passes_through(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=Script("late", seconds=5))
    with trio.move_on_after(1) as scope:
        await agent.run("hi")
    assert scope.cancelled_caught
    async with harness.open_run("outer") as outer:
        outer.cancel("no")
        await agent.run("hi")
    assert outer.status == "cancelled"
    with pytest.raises(harness.errors.RunTimedOut):
        async with harness.open_run("outer", timeout=2):
            await agent.run("hi")
    assert trio.current_time() == 3


async def test_a_cancel_that_comes_too_late_changes_nothing(autojump_clock: MockClock) -> None:
    def answer(request: ModelRequest) -> str:
        harness.current_run().cancel("too late")
        return "hi"

    assert (await Agent("a", model=Fake(answer)).run("hi")).output == "hi"


async def test_no_model_is_asked_once_the_run_is_cancelled(autojump_clock: MockClock) -> None:
    """Even one that would do its work before its first checkpoint."""
    asked: list[int] = []

    class Hasty:
        async def complete(self, request: ModelRequest) -> ModelResponse:
            asked.append(1)
            harness.current_run().cancel("enough")
            return calls(("unknown", {}))

        def stream(self, request: ModelRequest) -> Any:
            raise NotImplementedError

    with pytest.raises(RunCancelled):
        await Agent("a", model=Hasty()).run("hi")
    assert asked == [1]


async def test_an_item_whose_agent_was_cancelled_is_cancelled_and_not_failed(
    autojump_clock: MockClock,
) -> None:
    """It is no failure: not retried, and it breaks no policy."""

    @tool
    async def cancel_caller() -> str:
        harness.current_run().cancel("not needed")
        await trio.sleep(1)
        return "never"

    model = Script(calls(("cancel_caller", {})), "never")
    agent = Agent("a", model=model, tools=[cancel_caller])
    each = harness.Attempt(retry=harness.Retry(3))
    results = await harness.fan_out(agent, ["q"], each=each)
    assert [(result.status, result.attempts) for result in results] == [("cancelled", 1)]
    error = results[0].error
    assert isinstance(error, RunCancelled)
    assert error.reason == "not needed"
    assert error.run_id == error.partial.run_id
    assert error.partial.turns == 1


@pytest.mark.parametrize("form", ["fan_out", "pipeline"])
async def test_an_item_is_not_done_with_the_partial_reply_of_a_stopped_agent(
    autojump_clock: MockClock, form: str
) -> None:
    """It was handed on as an answer, and a journal never asked for it again."""
    agent = Agent("a", model=ScriptedModel([calls(("look", {})), "hi"]), tools=[look])
    async with harness.open_run("outer") as outer, trio.open_nursery() as nursery:
        nursery.start_soon(stop_later, outer)
        if form == "fan_out":
            results = await harness.fan_out(agent, ["q"], policy=harness.BestEffort())
        else:
            results = await Pipeline(agent).run(["q"], policy=harness.BestEffort())
    assert [result.status for result in results] == ["cancelled"]
    error = results[0].error
    assert isinstance(error, RunCancelled)
    assert error.reason == "the run was asked to stop: enough"
    assert (error.partial.turns, error.partial.complete) == (1, False)


@tool
async def look() -> str:
    """Look for a while."""
    await trio.sleep(2)
    return "seen"


async def stop_later(run: harness.Run) -> None:
    await trio.sleep(1)
    run.stop("enough")


async def test_a_run_always_has_a_checkpoint(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=ScriptedModel(["hi"]))
    with trio.testing.assert_checkpoints():
        await agent.run("hi")
    async with harness.open_run("outer") as outer:
        outer.stop()
        with trio.testing.assert_checkpoints():
            await agent.run("hi")
    with trio.testing.assert_checkpoints():
        stream = await agent.stream("hi").__aenter__()
    await stream.__aexit__(None, None, None)


async def test_the_models_error_comes_out_as_itself(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=ScriptedModel([OSError("no route")]))
    with pytest.raises(OSError, match="no route") as caught:
        await agent.run("hi")
    assert caught.value.__notes__ == ["in run a, waiting for an answer of its model"]
    with pytest.raises(HarnessError, match="script"):
        await Agent("a", model=ScriptedModel([])).run("hi")


@pytest.mark.strays
async def test_an_ended_run_can_not_be_gone_on_with(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=ScriptedModel(["hi"]))
    async with trio.open_nursery() as nursery:

        async def stray() -> None:
            await trio.sleep(1)
            with pytest.raises(RunEndedError):
                await agent.run("hi")
            with pytest.raises(RunEndedError):
                async with agent.stream("hi"):
                    pass

        async with harness.open_run("over"):
            nursery.start_soon(stray)


# Replies of models that make no sense ------------------------------------------------------------


class Odd:
    """A model that gives what it is told to, whatever that is."""

    def __init__(self, *given: Any) -> None:
        self.given = given

    async def complete(self, request: ModelRequest) -> Any:
        await trio.lowlevel.checkpoint()
        return self.given[0]

    def stream(self, request: ModelRequest) -> Any:
        return OddStream(self.given)


class OddStream:
    def __init__(self, given: tuple[Any, ...]) -> None:
        self.given = given

    async def __aenter__(self) -> Any:
        self.pieces = self._pieces()
        return self.pieces

    async def __aexit__(self, *_: object) -> None:
        await self.pieces.aclose()

    async def _pieces(self) -> Any:
        for one in self.given:
            await trio.lowlevel.checkpoint()
            yield one


@pytest.mark.parametrize("given", ["a text", None, {"content": "x"}, ModelResponse])
async def test_what_is_no_response_is_a_typed_error(autojump_clock: MockClock, given: Any) -> None:
    agent = Agent("a", model=Odd(given))
    with pytest.raises(harness.errors.ModelReplyError, match="'a'"):
        await agent.run("hi")


@pytest.mark.parametrize("given", [(), ("hi",), ("hi", 3), (None,), ({"delta": "hi"},)])
async def test_a_stream_that_makes_no_sense_is_a_typed_error(
    autojump_clock: MockClock, given: tuple[Any, ...]
) -> None:
    events = []
    with pytest.raises(harness.errors.ModelReplyError, match="'a'"):
        async with Agent("a", model=Odd(*given)).stream("hi") as stream:
            async for event in stream:
                events.append(event.payload)
    assert events[-1].status == "failed"
    assert "ModelReplyError" in events[-1].error
    assert stream.run.status == "failed"


async def test_what_a_stream_says_after_its_response_is_not_waited_for(
    autojump_clock: MockClock,
) -> None:
    async with Agent("a", model=Odd(said("hi"), "more", 3)).stream("hi") as stream:
        async for _ in stream:
            pass
    assert stream.reply.output == "hi"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_single_error_in_groups_of_the_model_is_unwrapped_with_its_cause(
    autojump_clock: MockClock, streamed: bool
) -> None:
    """A model that opens a nursery for each request; code that catches its error has to find it."""
    cause = ValueError("the cause")

    async def answer(request: ModelRequest) -> ModelResponse:
        async def ask() -> None:
            raise OSError("the line is busy") from cause

        async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            outer.start_soon(trio.sleep_forever)
        raise AssertionError

    agent = Agent("a", model=Fake(answer))
    with pytest.raises(OSError, match="busy") as caught:
        if streamed:
            async with agent.stream("hi") as stream:
                async for _ in stream:
                    pass
        else:
            await agent.run("hi")
    assert caught.value.__cause__ is cause
    assert "in run a" in caught.value.__notes__


async def test_several_errors_of_the_model_stay_a_group(autojump_clock: MockClock) -> None:
    def answer(request: ModelRequest) -> ModelResponse:
        raise ExceptionGroup("both", [OSError("one"), ValueError("two")])

    with pytest.raises(ExceptionGroup, match="both"):
        await Agent("a", model=Fake(answer)).run("hi")


async def test_an_empty_reply_is_asked_again_and_then_an_error(autojump_clock: MockClock) -> None:
    answers = iter(["", "  \n", "", "at last"])
    model = Fake(lambda request: next(answers))
    with pytest.raises(harness.errors.ModelReplyError, match="empty"):
        await Agent("a", model=model).run("hi")
    reply = await Agent("a", model=model).run("hi")
    assert reply.output == "at last"
    assert reply.turns == 2
    assert all(one.content for one in reply.messages), "no provider takes an empty message"
    assert "empty" in model.requests[-1].messages[-1].content


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"content": None}, "gave None"),
        ({"content": b"bytes"}, "text for its content"),
        ({"usage": None}, "a Usage"),
        ({"usage": Usage(None, 1)}, "whole numbers from 0 upwards"),  # type: ignore[arg-type]
        ({"usage": Usage(1, -1)}, "whole numbers from 0 upwards"),
        ({"usage": Usage(1, 2, cached_input_tokens=0.5)}, "whole numbers"),  # type: ignore[arg-type]
        ({"tool_calls": ({"name": "double"},)}, "a ToolCall"),
        ({"tool_calls": (ToolCall("c1", None, {}),)}, "the name of a tool"),  # type: ignore[arg-type]
        ({"tool_calls": (ToolCall("c1", ["double"], {}),)}, "the name of a tool"),  # type: ignore[arg-type]
        ({"tool_calls": (ToolCall(7, "double", {}),)}, "the id of a tool call"),  # type: ignore[arg-type]
    ],
)
async def test_a_response_with_something_else_in_it_is_a_typed_error(
    given: dict[str, Any], words: str, streamed: bool, autojump_clock: MockClock
) -> None:
    """It was an AttributeError from the middle of the loop, and bytes were an answer."""
    response = ModelResponse("text")
    for field, value in given.items():
        object.__setattr__(response, field, value)

    class Broken(Fake):
        @asynccontextmanager
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStream]:
            async def pieces() -> ModelStream:
                yield await self.complete(request)

            yield pieces()

    agent = Agent("a", model=Broken(lambda _: response), tools=[double])
    with pytest.raises(harness.errors.ModelReplyError, match=words) as caught:
        if streamed:
            async with agent.stream("hi") as stream:
                async for _ in stream:
                    pass
        else:
            await agent.run("hi")
    assert "agent 'a'" in str(caught.value)
    assert "run 'a'" in str(caught.value)


async def test_an_answer_that_was_cut_short_is_not_complete(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=ScriptedModel([ModelResponse("the first", finish="length")]))
    reply = await agent.run("hi")
    assert reply.output == "the first"
    assert not reply.complete


async def test_an_unknown_tool_is_answered_with_those_there_are(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=Script(calls(("divide", {})), "sorry"), tools=[double])
    reply = await agent.run("hi")
    assert reply.output == "sorry"
    assert reply.messages[2].content == "there is no tool 'divide'; there are: double"
    reply = await Agent("a", model=Script(calls(("divide", {})), "sorry")).run("hi")
    assert "none at all" in reply.messages[2].content


async def test_calls_with_one_id_get_ids_of_their_own(autojump_clock: MockClock) -> None:
    """A result is matched by its call's id; two with the same id couldn't be sent again."""
    from_model = ModelResponse(
        tool_calls=[
            harness.models.ToolCall(id_, "double", {"number": number})
            for number, id_ in enumerate(["x", "x", "", "", "x-2", "call-3"])
        ]
    )
    reply = await Agent("a", model=Script(from_model, "done"), tools=[double]).run("hi")
    ids = [call.id for call in reply.messages[1].tool_calls]
    assert len(set(ids)) == 6
    assert ids[0] == "x"
    assert ids[4:] == ["x-2", "call-3"], "those that are fine are kept"
    assert all(ids)
    assert [one.tool_call_id for one in reply.messages[2:-1]] == ids
    assert [one.content for one in reply.messages[2:-1]] == ["0", "2", "4", "6", "8", "10"]


# Without a reader --------------------------------------------------------------------------------


async def test_whoever_listens_hears_a_run_that_is_not_streamed(autojump_clock: MockClock) -> None:
    heard: list[object] = []
    with harness.observing(lambda event: heard.append(event.payload)):
        await Agent("a", model=Script("hello")).run("hi")
    assert TextDelta("hello") in heard
    assert UsageReported(Usage(5, 3)) in heard
    assert len(heard) == 4


async def test_a_run_without_tool_calls_needs_no_task(autojump_clock: MockClock) -> None:
    task = trio.lowlevel.current_task()
    seen: list[object] = []

    def answer(request: ModelRequest) -> str:
        seen.append((trio.lowlevel.current_task(), len(task.child_nurseries)))
        return "hi"

    nurseries = len(task.child_nurseries)
    await Agent("a", model=Fake(answer)).run("hi")
    assert seen == [(task, nurseries)]


def test_the_public_signatures_are_those_of_the_contract() -> None:
    assert list(inspect.signature(Agent.run).parameters) == [
        "self",
        "prompt",
        "deps",
        "conversation",
    ]


class Database:
    def __repr__(self) -> str:
        return "<a database>"


async def test_an_agent_gets_deps_of_the_class_it_works_with() -> None:
    @tool
    async def look_up() -> str:
        """Look it up."""
        return f"found in {harness.current_run(Database).deps}"

    call = ModelResponse(tool_calls=[ToolCall("1", "look_up", {})])
    model = ScriptedModel([call, lambda request: request.messages[-1].text] * 2)
    agent = Agent("desk", model=model, tools=[look_up], deps_type=Database)
    assert (await agent.run("hello", deps=Database())).output == "found in <a database>"
    async with harness.open_run("around", deps=Database()):  # Inherited ones will do.
        assert (await copy.copy(agent)("hello")).output == "found in <a database>"


@pytest.mark.parametrize("deps", [None, "a string"])
async def test_an_agent_refuses_other_deps_before_its_model_is_asked(deps: Any) -> None:
    model = ScriptedModel(["an answer"])
    agent = Agent("desk", model=model, deps_type=Database).with_model(model)
    with pytest.raises(TypeError, match=r"run 'desk' has .* instance of Database"):
        await agent.run("hello", deps=deps)
    with pytest.raises(TypeError, match=r"run 'desk' has .* instance of Database"):
        async with agent.stream("hello", deps=deps) as stream:
            async for _ in stream:
                pass
    assert (await Agent("free", model=model).run("hello", deps=deps)).output == "an answer"


def test_deps_type_is_a_class() -> None:
    with pytest.raises(TypeError, match=r"Agent\(deps_type=...\) takes a class, not 3"):
        Agent("desk", model=ScriptedModel(["an answer"]), deps_type=3)  # type: ignore[call-overload]
