"""What is sent in long runs, and instructions that are made for each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import harness
from harness.agents import Agent, Conversation, HistoryView, keep_last_turns, summarise, tool
from harness.errors import ApprovalPending, BudgetExceeded
from harness.limits import Limiter
from harness.models import AnthropicModel, FallbackModel, Message, Model, OpenAIModel, Usage
from tests.agents.fakes import Fake, Said, Script, calls, is_valid


@tool
async def look(number: int) -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return f"saw {number}"


def looks(count: int) -> list[Said]:
    return [
        calls(("look", {"number": number}), ("look", {"number": -number}))
        for number in range(count)
    ]


async def test_the_last_turns_are_sent_whole_and_everything_is_kept() -> None:
    model = Script(*looks(1), "unused")
    model.answer = lambda request: (
        looks(6)[len(model.requests) - 1] if len(model.requests) < 6 else "Done."
    )
    agent = Agent(
        "a", model=model, tools=[look], instructions="Be kind.", history=keep_last_turns(2)
    )
    conversation = Conversation([Message("user", "hi"), Message("assistant", "hello")])
    reply = await agent.run("count", conversation=conversation)
    for request in model.requests:
        assert is_valid(request.messages)
        assert request.messages[0] == Message("system", "Be kind.")
        assert Message("user", "count") in request.messages
    assert [len(one.messages) for one in model.requests] == [4, 7, 8, 8, 8, 8]
    assert len(reply.messages) == len(conversation) == 3 + 5 * 3 + 1
    assert is_valid(reply.messages)


async def test_a_summary_stays_until_the_history_is_long_again() -> None:
    writer = Fake(lambda request: "They looked.")
    model = Fake(
        lambda request: looks(9)[len(model.requests) - 1] if len(model.requests) < 9 else "Done."
    )
    history = summarise(writer, above_tokens=60, keep_turns=1)
    reply = await Agent("a", model=model, tools=[look], history=history).run("count")
    summary = Message("user", "Summary of the conversation so far:\nThey looked.")
    assert 1 < len(writer.requests) < 8
    assert model.requests[-1].messages[0] == summary
    assert all(is_valid(one.messages) for one in (*model.requests, *writer.requests))
    assert summary in writer.requests[-1].messages, "a summary is summarised with what came since"
    assert len(reply.messages) == 1 + 8 * 3 + 1
    spent = Usage(10 * 8 + 5 * (1 + len(writer.requests)), 2 * 8 + 3 * (1 + len(writer.requests)))
    assert reply.usage == spent, "with what the summaries cost"


async def test_a_summary_is_asked_for_by_the_window_of_the_model() -> None:
    seen: list[HistoryView] = []
    model = Script(*looks(2), "Done.")
    shorten = summarise(Fake(lambda request: "short"))

    async def history(messages: tuple[Message, ...], view: HistoryView) -> Sequence[Message]:
        seen.append(view)
        return list(await shorten(messages, view))  # type: ignore[misc]

    agent = Agent("a", model=model, tools=[look], history=history)
    with pytest.raises(ValueError, match="the model says no context_tokens; give it"):
        await agent.run("count")
    model.context_tokens = 1_000  # type: ignore[attr-defined]
    await agent.run("count")
    assert [one.context_tokens for one in seen] == [None, 1_000, 1_000, 1_000]
    assert [one.usage.total for one in seen[1:]] == [0, 12, 24]
    assert seen[-1].last_usage == Usage(10, 2)


def chain(*windows: int | None) -> FallbackModel:
    return FallbackModel(
        [
            OpenAIModel("m", limiter=Limiter(f"{number}", concurrent=1), context_tokens=window)
            for number, window in enumerate(windows)
        ]
    )


@pytest.mark.parametrize(
    ("model", "window"),
    [
        (OpenAIModel("m"), None),
        (OpenAIModel("m", context_tokens=1_000), 1_000),
        (AnthropicModel("m", context_tokens=1_000), 1_000),
        (chain(2_000, 1_000), 1_000),
        (chain(2_000, None), None),
    ],
)
async def test_a_processor_is_told_the_window_that_the_model_was_given(
    model: Model, window: int | None
) -> None:
    class Seen(Exception):
        pass

    def history(messages: tuple[Message, ...], view: HistoryView) -> tuple[Message, ...]:
        raise Seen(view.context_tokens)

    with pytest.raises(Seen) as caught:
        await Agent("a", model=model, history=history).run("hi")
    assert caught.value.args == (window,)


def test_a_window_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"AnthropicModel\(context_tokens=\.\.\.\)"):
        AnthropicModel("m", context_tokens=0)


@pytest.mark.parametrize("part", [slice(2, None), slice(0, 2)])
async def test_a_processor_that_parts_a_call_from_its_result_is_named(part: slice) -> None:
    def careless(messages: tuple[Message, ...], view: HistoryView) -> tuple[Message, ...]:
        return messages[part] if len(messages) > 1 else messages

    agent = Agent("a", model=Script(*looks(1), "Done."), tools=[look], history=careless)
    with pytest.raises(ValueError, match=r"history processor \S*careless got .*c1"):
        await agent.run("count")


@pytest.mark.parametrize(
    ("made", "words"),
    [("text", "returned 'text', where messages"), ([], "left nothing for the model to answer")],
)
async def test_a_processor_that_gives_no_history_is_refused(made: Any, words: str) -> None:
    agent = Agent("a", model=Script("hi"), history=lambda messages, view: made)
    with pytest.raises((TypeError, ValueError), match=words):
        await agent.run("count")


async def test_a_run_that_waited_goes_on_with_its_shortened_history(tmp_path: Path) -> None:
    seen: list[int] = []

    @tool(approve=True)
    async def pay() -> str:
        """Pay."""
        await trio.lowlevel.checkpoint()
        return "paid"

    def shorten(messages: tuple[Message, ...], view: HistoryView) -> Sequence[Message]:
        seen.append(len(messages))
        return messages if len(messages) == 1 else [Message("user", "short"), *messages[-2:]]

    said: list[Said] = [calls(("look", {"number": 1})), calls(("pay", {})), "Done."]
    model = Fake(lambda request: said[len(model.requests) - 1])
    agent = Agent("a", model=model, tools=[look, pay], history=shorten)
    with pytest.raises(ApprovalPending) as caught:
        await agent.run("count")
    caught.value.approve()
    reply = await agent.resume(caught.value)
    assert seen == [1, 3, 5]
    assert len(model.requests[-1].messages) == 3
    assert len(reply.messages) == 6


# Instructions -------------------------------------------------------------------------------------


@attrs.frozen
class Customer:
    name: str


async def greet(run: harness.Run[Customer]) -> str:
    await trio.lowlevel.checkpoint()
    return f"You talk to {run.deps.name}."


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.slow
async def test_instructions_are_made_for_each_run(plain: bool) -> None:
    model = Script("Hello.")
    instructions: Any = (lambda run: f"You talk to {run.deps.name}.") if plain else greet
    agent = Agent("a", model=model, instructions=instructions, deps_type=Customer)
    for name in ("Ada", "Bob"):
        reply = await agent.run("hi", deps=Customer(name))
        assert reply.messages[0].role == "user", "instructions aren't in the history"
    assert [one.messages[0] for one in model.requests] == [
        Message("system", "You talk to Ada."),
        Message("system", "You talk to Bob."),
    ]


async def test_instructions_that_are_no_text_are_refused() -> None:
    agent = Agent("a", model=Script("Hello."), instructions=lambda run: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="returned None, where text was expected"):
        await agent.run("hi")
    with pytest.raises(TypeError, match="takes a string, or a function of the run"):
        Agent("a", model=Script("hi"), instructions=7)  # type: ignore[call-overload]


async def test_a_summary_is_paid_from_the_budget_of_the_run() -> None:
    writer = Script("short")

    async def expensive(messages: tuple[Message, ...], view: HistoryView) -> Sequence[Message]:
        await view.ask(writer, messages)
        raise BudgetExceeded("all spent")

    agent = Agent("a", model=Script("hi"), history=expensive)
    with pytest.raises(BudgetExceeded) as caught:
        await agent.run("count")
    assert caught.value.partial.usage == Usage(5, 3)
