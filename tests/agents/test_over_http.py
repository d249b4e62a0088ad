"""Agents over sockets with the real clients: many at once, each with its own answer, none stuck."""

from __future__ import annotations

import json
import random
import re

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import Agent, tool
from harness.errors import BudgetExceeded, ModelError
from harness.limits import Limiter
from harness.testing.provider import Answer, AnswerToolCall, Faults, ProviderRequest
from tests.agents.fakes import is_valid
from tests.models.providers import WAYS, open_model
from tests.scale import scaled

RUNS = scaled(24, full=500)


@pytest.fixture
def autojump_clock() -> MockClock:
    """A virtual clock that leaves sockets time to answer."""
    return MockClock(autojump_threshold=0.02)


@tool
async def find(number: str) -> str:
    """Find a number."""
    await trio.sleep(1)
    return f"found {number}"


def answer(request: ProviderRequest) -> Answer:
    """Have the requested number looked up, then say what was found."""
    found = re.search(
        r"found <\d+>", json.dumps(request.body)
    )  # Each dialect has its place for it.
    if found is not None:
        return Answer(f"I {found[0]} and say so")
    return Answer("", tool_calls=[AnswerToolCall("find", {"number": request.prompt})])


async def use(agent: Agent[str], number: int) -> str:
    if number % 2:
        return (await agent.run(f"<{number}>")).output
    async with agent.stream(f"<{number}>", buffer=4) as stream:
        async for event in stream:
            assert event.run_id == stream.run.id
    assert is_valid(stream.reply.messages)
    return stream.reply.output


@pytest.mark.parametrize(
    "way", ["chat", *(pytest.param(way, marks=pytest.mark.full) for way in WAYS[1:])]
)
@pytest.mark.slow
async def test_runs_at_once_have_their_own_answers(way: str, autojump_clock: MockClock) -> None:
    """Streamed and not, through one limiter, under one budget: the bill is exact."""
    limiter = Limiter("provider", concurrent=max(10, RUNS // 4))
    faults = Faults(latency_seconds=2.0, event_gap_seconds=0.5)
    async with open_model(way, answer=answer, faults=faults, options={"limiter": limiter}) as (
        model,
        provider,
    ):
        agent = Agent("finder", model=model, instructions="Find it.", tools=[find])

        async def one(number: int) -> str:
            return await use(agent, number)

        results = await harness.fan_out(one, range(RUNS), limit=RUNS)
        assert results.values() == [f"I found <{number}> and say so" for number in range(RUNS)]
        assert provider.statistics().requests == 2 * RUNS
        assert limiter.statistics().in_flight == limiter.statistics().waiting == 0


@pytest.mark.slow
async def test_runs_that_are_cancelled_at_random_leave_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    draw = random.Random(5)
    limiter = Limiter("provider", concurrent=max(10, RUNS // 4))
    faults = Faults(seed=3, errors={500: 0.1}, cut=0.1, latency_seconds=2.0, event_gap_seconds=0.5)
    async with open_model("chat", answer=answer, faults=faults, options={"limiter": limiter}) as (
        model,
        provider,
    ):
        agent = Agent("finder", model=model, tools=[find])
        outputs: dict[int, str] = {}
        errors: list[ModelError] = []
        cancelled = 0

        async def one(number: int) -> None:
            nonlocal cancelled
            patience = draw.randrange(40) / 4 if number % 3 == 0 else 1_000.0
            with trio.move_on_after(patience) as scope:
                try:
                    outputs[number] = await use(agent, number)
                except ModelError as error:
                    errors.append(error)
            cancelled += scope.cancelled_caught

        async with trio.open_nursery() as nursery:
            for number in range(RUNS):
                nursery.start_soon(one, number)
        assert outputs == {number: f"I found <{number}> and say so" for number in outputs}
        assert len(outputs) + len(errors) + cancelled == RUNS
        assert min(len(outputs), len(errors), cancelled) >= 1
        assert all(error.__notes__[0].startswith("in run finder") for error in errors)
        assert all("'m'" in str(error) for error in errors), "the model is named"
        await trio.sleep(60)  # The simulated provider notices who is gone.
        assert provider.statistics().in_flight == 0
        assert limiter.statistics().in_flight == limiter.statistics().waiting == 0


async def test_a_budget_bounds_what_is_asked_of_a_provider(autojump_clock: MockClock) -> None:
    async with open_model("chat", answer=answer) as (model, provider):
        agent = Agent("finder", model=model, tools=[find])
        with pytest.raises(BudgetExceeded) as caught:
            async with harness.open_run("job", budget=harness.Budget(tokens=20)):
                for number in range(1_000):
                    await agent.run(f"<{number}>")
        assert caught.value.partial is not None
        assert provider.statistics().requests < 20
