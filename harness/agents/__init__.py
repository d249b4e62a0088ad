"""Agents: a model with instructions and tools, run any number of times at once.

What happens in a run belongs to the run; the agent is only read. ::

    agent = Agent("triage", model=model, instructions="...", tools=[lookup])
    reply = await agent.run("My card has not arrived")

Schemas and validation come from msgspec, in the extra ``agents``; `open_mcp_tools` needs the extra
``mcp``. Names that need them are loaded when first used.
"""

from typing import TYPE_CHECKING

from harness._approvals import WaitingCall
from harness._lazy import lazy
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
    from harness.agents._history import (
        HistoryProcessor,
        HistoryView,
        keep_last_turns,
        summarise,
    )
    from harness.agents._mcp import open_mcp_tools
    from harness.agents._stream import AgentStream
    from harness.agents._tool import FunctionTool, Tool, tool
else:
    __getattr__, __dir__ = lazy(extras={"msgspec": "agents", "mcp": "mcp"})

__all__ = [
    "Agent",
    "AgentEvent",
    "AgentStream",
    "Conversation",
    "Delegated",
    "FunctionTool",
    "HistoryProcessor",
    "HistoryView",
    "Reply",
    "RunEnded",
    "TextDelta",
    "Tool",
    "ToolCalled",
    "ToolReturned",
    "TurnStarted",
    "UsageReported",
    "WaitingCall",
    "keep_last_turns",
    "open_mcp_tools",
    "summarise",
    "tool",
]
