"""Agents: a model with instructions and tools, run any number of times at once.

What happens in a run belongs to the run; the agent is only read. ::

    agent = Agent("triage", model=model, instructions="...", tools=[lookup])
    reply = await agent.run("My card has not arrived")

Schemas and validation come from msgspec, in the extra ``agents``; `open_mcp_tools` needs the extra
``mcp``. Names that need them are loaded when first used.
"""

from typing import TYPE_CHECKING, Any

from harness._extras import load_with_extra
from harness.agents._events import (
    AgentEvent,
    Delegated,
    RunEnded,
    TextDelta,
    ToolCalled,
    ToolReturned,
    TurnStarted,
    UsageReported,
)
from harness.agents._reply import Reply

if TYPE_CHECKING:
    from harness.agents._agent import Agent
    from harness.agents._conversation import Conversation
    from harness.agents._mcp import open_mcp_tools
    from harness.agents._stream import AgentStream
    from harness.agents._tool import FunctionTool, Tool, tool

__all__ = [
    "Agent",
    "AgentEvent",
    "AgentStream",
    "Conversation",
    "Delegated",
    "FunctionTool",
    "Reply",
    "RunEnded",
    "TextDelta",
    "Tool",
    "ToolCalled",
    "ToolReturned",
    "TurnStarted",
    "UsageReported",
    "open_mcp_tools",
    "tool",
]

_LOADED_WHEN_USED = {
    "Agent": "harness.agents._agent",
    "AgentStream": "harness.agents._stream",
    "Conversation": "harness.agents._conversation",
    "FunctionTool": "harness.agents._tool",
    "Tool": "harness.agents._tool",
    "open_mcp_tools": "harness.agents._mcp",
    "tool": "harness.agents._tool",
}

_EXTRAS = {"msgspec": "agents", "mcp": "mcp"}


def __getattr__(name: str) -> Any:
    module = _LOADED_WHEN_USED.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_with_extra(module, name, subject=f"harness.agents.{name}", extras=_EXTRAS)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LOADED_WHEN_USED})
