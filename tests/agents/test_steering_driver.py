"""No message is lost: a model was told, or it is handed back, whatever ended the run."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import Agent, AgentStream, Reply, tool
from harness.errors import BudgetExceeded, MaxTurnsError, ModelError, RunEndedError
from harness.limits import Limiter
from harness.models import (
    FallbackModel,
    FunctionModel,
    Model,
    ModelRequest,
    ModelResponse,
    ScriptedModel,
    ToolCall,
    Usage,
)
from tests.scale import scaled

MESSAGES = scaled(400, full=10_000)


@attrs.define(eq=False)
class Scenario:
    """One run that is steered at random, and what its models were told."""

    draw: random.Random
    told: set[tuple[str, str]] = attrs.field(factory=set)
    """Runs, and the messages that a call of theirs had."""
    limiters: list[Limiter] = attrs.field(factory=list)

    async def answer(self, request: ModelRequest) -> ModelResponse:
        run = harness.current_run()
        self.told |= {(run.id, one.text) for one in request.messages if one.role == "user"}
        await trio.sleep(self.draw.choice([0, 0, 0.5, 3]))
        if self.draw.random() < 0.05:
            raise self.draw.choice([ModelError("down"), ValueError("odd")])
        names = [one.name for one in request.tools]
        wanted = self.draw.sample(names, k=min(len(names), self.draw.choice([0, 1, 1, 2])))
        calls = [
            ToolCall(str(n), name, {"prompt": "go"} if name == "child" else {})
            for n, name in enumerate(wanted)
        ]
        return ModelResponse("" if calls else "done", tool_calls=calls, usage=Usage(50, 50))

    def limiter(self) -> Limiter:
        rate = self.draw.choice([6, 30, 600])
        self.limiters.append(
            Limiter(f"limiter-{len(self.limiters)}", requests_per_minute=rate, burst_seconds=1)
        )
        return self.limiters[-1]

    def model(self) -> Model:
        kind = self.draw.randrange(4)
        if kind == 0:
            return FunctionModel(self.answer)
        if kind == 1:
            return FunctionModel(self.answer, limiter=self.limiter())
        if kind == 2:
            return ScriptedModel([self.answer] * 9, delay=1, limiter=self.limiter())
        return FallbackModel([FunctionModel(self.answer, limiter=self.limiter()) for _ in range(2)])

    async def steer(self, stream: AgentStream[Any], number: int) -> Counter[str]:
        """Leave messages at random moments; return how often each was accepted."""
        accepted: Counter[str] = Counter()
        for message in (f"{number}-{n}" for n in range(self.draw.randint(2, 10))):
            await trio.sleep(self.draw.choice([0, 0.1, 1, 4, 11]))
            children = self.draw.random() < 0.5
            below = [one for one in stream.run.children if one.name == "child"] if children else []
            try:
                stream.inject(message, children=children)
            except RunEndedError:
                break
            accepted[message] += 1 + len(below)
        return accepted

    async def disturb(self, stream: AgentStream[Any], scope: trio.CancelScope) -> None:
        await trio.sleep(self.draw.random() * 20)
        kind = self.draw.randrange(6)
        if kind == 0:
            stream.run.cancel("enough")
        elif kind == 1:
            stream.run.stop()
        elif kind == 2:
            scope.cancel()
        elif kind == 3:
            for limiter in self.limiters:
                limiter.pause(self.draw.choice([5, 700]))


async def drive(seed: int) -> tuple[Scenario, Counter[str], Reply[Any], str]:
    """Run one scenario; return what was accepted, and the reply, whole or partial."""
    scenario = Scenario(random.Random(seed))
    draw = scenario.draw

    @tool
    async def work() -> str:
        await trio.sleep(draw.choice([0, 1, 6]))
        return "worked"

    child = Agent("child", model=scenario.model(), tools=[work], max_turns=draw.randint(1, 4))
    agent = Agent(
        "parent",
        model=scenario.model(),
        tools=[work, child.as_tool()],
        max_turns=draw.randint(1, 6),
    )
    budget = harness.Budget(tokens=draw.choice([300, 800])) if draw.random() < 0.3 else None
    accepted: list[Counter[str]] = []
    stream = agent.stream("go")
    ending = "ok"
    with trio.CancelScope() as scope:
        try:
            async with harness.open_run("outer", budget=budget), trio.open_nursery() as nursery:
                async with stream:

                    async def steer() -> None:
                        accepted.append(await scenario.steer(stream, seed))

                    # Shielded, so that what it has accepted is known: it is bounded.
                    async def steer_to_the_end() -> None:
                        with trio.CancelScope(shield=True):
                            await steer()

                    nursery.start_soon(steer_to_the_end)
                    nursery.start_soon(scenario.disturb, stream, scope)
                    async for _ in stream:
                        pass
                    nursery.cancel_scope.cancel()
        except* (BudgetExceeded, MaxTurnsError, ModelError, ValueError) as group:
            ending = type(group.exceptions[0]).__name__
            for error in group.exceptions:
                if isinstance(error, BudgetExceeded | MaxTurnsError | ModelError):
                    assert isinstance(error.partial, Reply), "every way out has one"
                    assert error.partial == stream.reply
    if scope.cancelled_caught:
        ending = "cancelled"
    return scenario, sum(accepted, Counter()), stream.reply, ending


@pytest.mark.slow
async def test_no_message_is_lost_however_a_run_ends(autojump_clock: MockClock) -> None:
    """They were lost in the history of a request that was never sent."""
    sent = handed_back = seed = 0
    endings: Counter[str] = Counter()
    while sent < MESSAGES:
        scenario, accepted, reply, ending = await drive(seed)
        endings[ending] += 1
        told = Counter(message for _, message in scenario.told if message in accepted)
        undelivered = Counter(reply.undelivered)
        assert told + undelivered == accepted, f"seed {seed}, which ended {ending}"
        in_history = {one.content for one in reply.messages if one.role == "user"} & set(accepted)
        seen = {message for run_id, message in scenario.told if run_id == reply.run_id}
        assert in_history == seen & set(accepted), f"seed {seed}"
        sent += accepted.total()
        handed_back += undelivered.total()
        seed += 1
    assert 0.1 < handed_back / sent < 0.9, "both ways were tried"
    assert len(endings) >= 4, endings
