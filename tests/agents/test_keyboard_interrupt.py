"""A Ctrl-C at any line of an agent ends the program; no call, no tool and no stream is left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

import harness
from harness.agents import Agent, tool
from harness.limits import Limiter
from harness.models import ScriptedModel
from tests.agents.fakes import calls
from tests.scale import FULL
from tests.support.keyboard_interrupts import strike_each_line

PLACES = ["agents", "budgets", "fanout", "limits", "models", "runs"]


@tool(timeout=5)
async def look() -> str:
    """Look."""
    await trio.sleep(1)
    return "seen"


class Desk:
    """An agent with a limit, and what it may be asked to do."""

    limiter: Limiter

    def __init__(self) -> None:
        self.make_anew()

    def make_anew(self) -> None:
        self.limiter = Limiter("l", requests_per_minute=600, concurrent=1)

    @property
    def agent(self) -> Agent[str]:
        replies: list[Any] = [calls(("look", {}), ("look", {})), "all is well"]
        model = ScriptedModel(replies, limiter=self.limiter, delay=0.1, piece_delay=0.1)
        return Agent("a", model=model, tools=[look])

    async def answer(self) -> None:
        await self.agent.run("q")

    async def stream(self) -> None:
        async with self.agent.stream("q") as stream:
            async for _ in stream:
                pass

    async def answer_many(self) -> None:
        async with harness.open_run("job", budget=harness.Budget(tokens=1_000)):
            await harness.fan_out(self.agent, ["a", "b"])

    def check(self) -> None:
        held = self.limiter.statistics()
        assert (held.in_flight, held.waiting) == (0, 0)
        self.make_anew()


@pytest.mark.slow
@pytest.mark.parametrize("form", [Desk.answer, Desk.stream, Desk.answer_many])
def test_at_any_line_of_an_agent(form: Callable[[Desk], Awaitable[None]]) -> None:
    """Blocks that were left half done corrupted trio, and a reservation stayed taken."""
    desk = Desk()
    assert strike_each_line(lambda: form(desk), PLACES, desk.check, step=1 if FULL else 7) > 500
