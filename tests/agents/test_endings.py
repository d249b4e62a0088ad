"""How a model's answer ended is seen by whoever asked for it, with every model."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import Agent, Conversation, Reply, RunEnded, ToolReturned, tool
from harness.errors import FanOutError, ModelError, ModelReplyError, OutputError
from harness.limits import Limiter
from harness.models import (
    FallbackModel,
    Finish,
    FunctionModel,
    Message,
    Model,
    ModelRequest,
    ModelResponse,
    RecordedModel,
    ScriptedModel,
    ToolCall,
)
from harness.testing.provider import Answer, ProviderRequest
from tests.models.providers import WAYS, open_model

MODELS = (*WAYS, "scripted", "function", "fallback", "recorded", "replayed")


@pytest.fixture
def autojump_clock() -> MockClock:
    """A virtual clock that leaves sockets the time to answer."""
    return MockClock(autojump_threshold=0.02)


@asynccontextmanager
async def model_that_says(
    kind: str, tmp_path: Path, *answers: ModelResponse
) -> AsyncGenerator[Model]:
    """Give a model of this kind that says these, one after another, in each history."""

    def said(messages: Any) -> ModelResponse:
        asked = [m for m in messages if (m["role"] if isinstance(m, dict) else m.role) == "user"]
        return answers[len(asked) - 1]

    def by_provider(request: ProviderRequest) -> Answer:
        # Anthropic's consecutive messages of the user are one.
        content = request["messages" if "messages" in request else "input"][-1]["content"]
        number = len(content) - 1 if isinstance(content, list) else None
        whole = said(request.get("messages") or request["input"]) if number is None else None
        whole = whole or answers[number or 0]
        return Answer(whole.content, finish=whole.finish)

    function = FunctionModel(lambda request: said(request.messages))
    if kind in WAYS:
        async with open_model(kind, answer=by_provider) as (model, _):
            yield model
    elif kind == "scripted":
        yield ScriptedModel(answers)
    elif kind == "function":
        yield function
    elif kind == "fallback":
        yield FallbackModel([(Limiter("first", concurrent=9), function)])
    else:
        path = tmp_path / "cassette"
        if kind == "replayed":
            await Agent("a", model=RecordedModel(path, function)).run("go")
        yield RecordedModel(path, function if kind == "recorded" else None)


async def run(agent: Agent[Any], streamed: bool) -> Reply[Any]:
    if not streamed:
        return await agent.run("go")
    async with agent.stream("go") as stream:
        async for _ in stream:
            pass
    return stream.reply


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", MODELS)
async def test_an_empty_reply_is_asked_again_once(
    kind: str, streamed: bool, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Providers' own empty replies were errors of the model, so only functions were asked again."""
    answers = (ModelResponse(" "), ModelResponse("answer"))
    async with model_that_says(kind, tmp_path, *answers) as model:
        reply = await run(Agent("a", model=model), streamed)
    assert (reply.output, reply.finish, reply.complete, reply.turns) == ("answer", "stop", True, 2)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("finish", sorted({*get_args(Finish)} - {"tool_calls"}))
@pytest.mark.parametrize("kind", MODELS)
async def test_the_caller_sees_how_an_answer_ended(
    kind: str, finish: Finish, streamed: bool, tmp_path: Path, autojump_clock: MockClock
) -> None:
    if kind == "replayed" and streamed:
        pytest.skip("recorded whole, so it is the case of a model that records")
    async with model_that_says(kind, tmp_path, ModelResponse("half", finish=finish)) as model:
        reply = await run(Agent("a", model=model), streamed)
    assert (reply.output, reply.finish) == ("half", finish)
    assert reply.complete is (finish == "stop")


@pytest.mark.parametrize("finish", ["length", "content_filter", "refusal"])
async def test_structured_output_does_not_parse_half_an_answer(
    finish: Finish, autojump_clock: MockClock
) -> None:
    """What came by then may well be JSON that fits, and still lack what was to follow."""

    @attrs.frozen
    class Ticket:
        topics: list[str]

    half = ModelResponse('{"topics": ["card"]}', finish=finish)
    model = ScriptedModel([half, half])
    with pytest.raises(OutputError, match="because its") as caught:
        await Agent("a", model=model, output_type=Ticket).run("go")
    partial = caught.value.partial
    assert (partial.finish, partial.turns, partial.output) == (finish, 1, None)
    assert partial.messages[-1] == Message("assistant", half.content)


async def test_a_refusal_without_words_is_an_answer(autojump_clock: MockClock) -> None:
    reply = await Agent("a", model=ScriptedModel([ModelResponse(finish="refusal")])).run("go")
    assert (reply.output, reply.finish, reply.messages) == ("", "refusal", (Message("user", "go"),))


async def test_an_answer_that_was_all_thought_says_what_to_do(autojump_clock: MockClock) -> None:
    model = ScriptedModel([ModelResponse(finish="length", reasoning="hm")])
    with pytest.raises(ModelReplyError, match="larger max_output_tokens"):
        await Agent("a", model=model).run("go")


@pytest.mark.parametrize(
    ("finish", "made"), [("tool_calls", [1, 2]), ("length", [1]), ("content_filter", [])]
)
async def test_no_half_call_is_made(
    finish: Finish, made: list[int], autojump_clock: MockClock
) -> None:
    """A call cut off before its arguments reads like one without any."""
    calls = [ToolCall("1", "note", {"n": 1}), ToolCall("2", "note", {"n": 2})]
    noted: list[int] = []

    async def note(n: int = 0) -> str:
        noted.append(n)
        return "noted"

    model = ScriptedModel([ModelResponse("I note", tool_calls=calls, finish=finish), "done"])
    reply = await Agent("a", model=model, tools=[note]).run("go")
    assert sorted(noted) == made
    Conversation(reply.messages)  # Each call has its result.
    if finish == "length":
        assert "limit of output" in reply.messages[3].content
    assert reply.output == ("I note" if finish == "content_filter" else "done")


async def test_a_reply_tells_a_stop_from_an_answer(autojump_clock: MockClock) -> None:
    async def stop() -> str:
        run = harness.current_run()
        run.stop()
        return "stopped"

    model = ScriptedModel([ModelResponse(tool_calls=[ToolCall("1", "stop")]), "never"])
    reply = await Agent("a", model=model, tools=[stop]).run("go")
    assert (reply.finish, reply.complete) == ("tool_calls", False)


def test_a_response_is_whole_by_default() -> None:
    assert ModelResponse("x").finish == "stop"
    assert ModelResponse(tool_calls=[ToolCall("1", "t")]).finish == "tool_calls"


async def test_an_ending_that_does_not_exist_is_refused(autojump_clock: MockClock) -> None:
    odd: Callable[[ModelRequest], ModelResponse] = lambda _: ModelResponse("x", finish="ended")  # type: ignore[arg-type]  # noqa: E731
    with pytest.raises(ModelReplyError, match="one of content_filter, length"):
        await Agent("a", model=FunctionModel(odd)).run("go")


async def test_an_error_of_the_model_has_what_was_done(autojump_clock: MockClock) -> None:
    """Also if a function raises one and the same error in many runs at once."""
    down = ModelError("down")

    async def work() -> str:
        return "worked"

    def answer(request: ModelRequest) -> ModelResponse:
        if request.messages[-1].role == "tool":
            raise down
        return ModelResponse(tool_calls=[ToolCall("1", "work")])

    agent = Agent("a", model=FunctionModel(answer), tools=[work])
    results = await harness.fan_out(agent, ["x", "y", "z"], policy=harness.BestEffort())
    for result, prompt in zip(results, "xyz", strict=True):
        assert isinstance(result.error, ModelError)
        partial = result.error.partial
        assert (partial.messages[0].content, partial.turns) == (prompt, 2)
        assert partial.messages[-1] == Message("tool", "worked", tool_call_id="1")
    with pytest.raises(ModelReplyError, match="empty") as caught:
        await Agent("a", model=ScriptedModel(["", ""])).run("go")
    assert caught.value.partial.turns == 2


@pytest.mark.parametrize("on_error", ["model", "run"])
async def test_each_error_of_a_group_reaches_the_model_and_the_caller(
    on_error: Literal["model", "run"], autojump_clock: MockClock
) -> None:
    """Both were told of a nursery with 2 sub-exceptions."""

    async def fail(path: str) -> None:
        raise OSError(f"disk {path}")

    @tool(on_error=on_error)
    async def nursery() -> None:
        async with trio.open_nursery() as nursery:
            for path in "ab":
                nursery.start_soon(fail, path)

    @tool(on_error=on_error)
    async def fan_out() -> None:
        await harness.fan_out(fail, ["a", "b", "b"], policy=harness.Quorum(2))

    for one in (nursery, fan_out):
        model = ScriptedModel([ModelResponse(tool_calls=[ToolCall("1", one.name)]), "done"])
        agent = Agent("a", model=model, tools=[one])
        ended: list[RunEnded] = []
        told: list[str] = []
        async with agent.stream("go") as stream:
            with contextlib.suppress(ExceptionGroup):
                async for event in stream:
                    if isinstance(event.payload, RunEnded):
                        ended.append(event.payload)
                    if isinstance(event.payload, ToolReturned):
                        told.append(event.payload.content)
        heard = [*told, *([str(ended[-1].error)] if on_error == "run" else [])]
        for words in heard:
            assert "OSError: disk a" in words
            assert "OSError: disk b" in words
        if on_error == "run":
            with pytest.raises(FanOutError, match=r"disk [ab].*disk [ab]"):
                await harness.fan_out(agent, ["x"])
