"""An agent of harness is checked as it is; its tools and its model's function are looked into."""

import sys
from typing import Any

import pytest
import trio

from harness.errors import ScheduleError
from harness.testing import assert_isolated

agents: Any = pytest.importorskip("harness.agents")
models: Any = pytest.importorskip("harness.models")

NOTES: list[str] = []


async def leaky_note(text: str) -> str:
    """Take a note."""
    NOTES.append(text)
    await trio.sleep(1)
    noted = ",".join(NOTES)
    NOTES.remove(text)
    return noted


async def note(text: str) -> str:
    """Take a note."""
    await trio.sleep(1)
    return text


def answer(request: Any) -> Any:
    """Call the tool with what the user said, then say what the tool returned."""
    last = request.messages[-1]
    if last.role == "tool":
        return models.ModelResponse(last.content)
    call = models.ToolCall("1", request.tools[0].name, {"text": last.content})
    return models.ModelResponse("", tool_calls=[call])


def agent_with(tool: Any) -> Any:
    return agents.Agent("clerk", model=models.FunctionModel(answer), tools=[agents.tool(tool)])


@pytest.mark.slow
async def test_an_agent_whose_tool_keeps_state_in_a_global() -> None:
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(agent_with(leaky_note), ["a", "b", "c"])
    assert caught.value.objects == (f"{__name__}.NOTES",)


@pytest.mark.slow
async def test_an_agent_whose_tool_keeps_none() -> None:
    """Each reply names its run by another id, and that is no difference."""
    await assert_isolated(agent_with(note), ["a", "b", "c"], schedules=20)


class Bot:
    def __init__(self) -> None:
        self.turns: list[str] = []

    async def __call__(self, text: str) -> int:
        self.turns.append(text)
        await trio.lowlevel.checkpoint()
        return len(self.turns)


bot = Bot()


@pytest.mark.slow
async def test_an_object_that_is_called_goes_by_its_name_in_its_module() -> None:
    """Not by that of a variable here: it is the module's, and so is the leak."""
    module = sys.modules[__name__]
    namespace: dict[str, Any] = {"assert_isolated": assert_isolated, "module": module}
    exec("async def check(): await assert_isolated(module.bot, ['a', 'b'])", namespace)
    with pytest.raises(ScheduleError) as caught:
        await namespace["check"]()
    assert caught.value.objects == (f"{__name__}.bot.turns",)
