"""A budget over a tree of agents: it ends them with what they have, and nobody waits for it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import Agent, RunEnded, tool
from harness.budgets import budget_left, reserve_budget
from harness.errors import BudgetExceeded
from harness.limits import Limiter
from harness.models import ModelRequest, ModelResponse, Usage
from tests.agents.fakes import Fake, calls, is_valid, last_user


class Costly(Fake):
    """A model whose calls each take 10 tokens from the budgets that apply, and one limiter."""

    def __init__(self, *replies: Any, limiter: Limiter | None = None) -> None:
        def answer(request: ModelRequest) -> ModelResponse:
            reply = replies[sum(one.role == "assistant" for one in request.messages)]
            if callable(reply):
                reply = reply(request)
            return ModelResponse(
                *([reply] if isinstance(reply, str) else [reply.content]),
                tool_calls=() if isinstance(reply, str) else reply.tool_calls,
                usage=Usage(8, 2),
            )

        super().__init__(answer, seconds=1)
        self.limiter = limiter or Limiter("free", concurrent=1_000)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        with reserve_budget(tokens=12) as spending:
            async with self.limiter.reserve():
                response = await super().complete(request)
            spending.settle(tokens=response.usage.total)
            return response


@tool
async def step() -> str:
    await trio.sleep(1)
    return "stepped"


async def test_a_spent_budget_ends_the_run_with_the_partial_reply(
    autojump_clock: MockClock,
) -> None:
    agent = Agent("a", model=Costly(*[calls(("step", {}), text="on")] * 9), tools=[step])
    events: list[Any] = []
    with harness.observing(lambda event: events.append(event.payload)):
        with pytest.raises(BudgetExceeded) as caught:
            async with harness.open_run("job", budget=harness.Budget(tokens=30)):
                await agent.run("hi")
    partial = caught.value.partial
    assert partial.turns == 3, "the third was refused"
    assert partial.usage == Usage(16, 4)
    assert partial.output == "on"
    assert not partial.complete
    assert is_valid(partial.messages)
    assert isinstance(events[-1], RunEnded)
    assert events[-1].status == "failed"


async def test_a_stream_keeps_the_partial_reply_too(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=Costly(*[calls(("step", {}))] * 9), tools=[step])
    with pytest.raises(BudgetExceeded) as caught:
        async with harness.open_run("job", budget=harness.Budget(tokens=30)):
            async with agent.stream("hi") as stream:
                async for _ in stream:
                    pass
    assert caught.value.partial == stream.reply
    assert stream.reply.usage.total == 20


async def test_a_budget_that_is_spent_below_ends_the_whole_tree(autojump_clock: MockClock) -> None:
    """The model above isn't told, because it could only ask for more of what isn't there."""
    child = Agent("child", model=Costly(*[calls(("step", {}))] * 9), tools=[step])
    top_model = Costly(calls(("child", {"task": "go"}), text="let me ask"), "never")
    top = Agent("top", model=top_model, tools=[child.as_tool()])
    with pytest.raises(BudgetExceeded) as caught:
        async with harness.open_run("job", budget=harness.Budget(tokens=50)):
            await top.run("hi")
    partial = caught.value.partial
    assert partial.messages[0].content == "hi", "what the one who catches it asked for"
    assert partial.output == "let me ask"
    assert "BudgetExceeded" in partial.messages[2].content
    assert partial.usage.total + partial.delegated_usage.total == 40
    assert is_valid(partial.messages)
    assert partial.turns == len(top_model.requests) == 1


async def test_a_budget_of_a_tools_own_is_that_tools_affair(autojump_clock: MockClock) -> None:
    child = Agent("child", model=Costly(*[calls(("step", {}))] * 9), tools=[step])

    @tool
    async def try_it() -> str:
        async with harness.open_run("attempt", budget=harness.Budget(tokens=25)):
            reply = await child.run("go")
        return reply.output

    agent = Agent("top", model=Costly(calls(("try_it", {})), "I gave up"), tools=[try_it])
    async with harness.open_run("job", budget=harness.Budget(tokens=1_000)):
        reply = await agent.run("hi")
        assert budget_left().tokens == 1_000 - 20 - 20
    assert reply.output == "I gave up"
    assert "BudgetExceeded" in reply.messages[2].content


@pytest.mark.parametrize("tokens", [10_000, 300, 40])
@pytest.mark.slow
async def test_a_budget_and_a_limiter_for_one_down_five_levels_never_wait_for_each_other(
    autojump_clock: MockClock, tokens: int
) -> None:
    limiter = Limiter("one at a time", concurrent=1)
    agent = Agent("level-5", model=Costly("deep", limiter=limiter))
    for level in (4, 3, 2, 1, 0):
        wanted = calls((agent.name, {"x": "a"}), (agent.name, {"x": "b"}))
        model = Costly(wanted, f"level {level}", limiter=limiter)
        agent = Agent(f"level-{level}", model=model, tools=[agent.as_tool()])
    total = 31 * 2 + 32
    with trio.fail_after(10_000):
        try:
            async with harness.open_run("job", budget=harness.Budget(tokens=tokens)):
                reply = await agent.run("hi")
                left = budget_left().tokens
        except BudgetExceeded as error:
            assert tokens < total * 10
            reply = error.partial
        else:
            assert reply.output == "level 0"
            assert left == tokens - 10 * total
            assert reply.usage.total + reply.delegated_usage.total == 10 * total
    assert reply.usage.total + reply.delegated_usage.total <= tokens
    assert limiter.statistics().in_flight == 0


async def test_many_agents_spend_one_budget_and_never_more(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=Costly(lambda request: last_user(request)))
    async with harness.open_run("job", budget=harness.Budget(tokens=200)):
        results = await harness.fan_out(
            agent, [str(n) for n in range(50)], policy=harness.BestEffort(), limit=5
        )
        assert (budget_left().tokens or 0) >= 0
    done = results.values()
    assert sum(reply.usage.total for reply in done) <= 200
    assert len(done) == 19, "the last twelve tokens are less than a call might take"
    assert {type(gap.error) for gap in results.failed} == {BudgetExceeded}
