"""Run the same agent with other frameworks, written as their users would write it.

Each has a function that makes its agent once, with a scripted model and one tool, and returns an
async function for asyncio that runs it once: to the answer in one model call, or through one tool
call to the answer in two. Nothing leaves the process.

They come with the extra ``bench``; a framework that is missing is left out of `frameworks`. Each is
imported when it is measured, because together they take seconds and hundreds of MiB.
"""

# ruff: noqa: PLC0415
# (imports inside functions: see above)

from __future__ import annotations

import importlib.util
import os
from collections.abc import Awaitable, Callable
from typing import Any

QUESTION = "My card has not arrived"
ANSWER = "It is on its way."
TOOL_RESULT = "posted on Monday"

RunOnce = Callable[[], Awaitable[str]]


def look_up(card: str) -> str:
    """Look up where a card is."""
    return TOOL_RESULT


def pydantic_ai(*, with_tool: bool) -> RunOnce:
    """Return a run of a pydantic-ai agent."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import FunctionModel

    def scripted(messages: list[Any], info: Any) -> ModelResponse:
        called = any(isinstance(part, ToolReturnPart) for part in messages[-1].parts)
        if with_tool and not called:
            return ModelResponse(parts=[ToolCallPart("look_up", {"card": "17"})])
        return ModelResponse(parts=[TextPart(ANSWER)])

    agent = Agent(FunctionModel(scripted), instructions="Be brief.")

    async def look_up_in_the_loop(card: str) -> str:
        return look_up(card)

    # Async, so that no framework pays for a thread that the others don't.
    agent.tool_plain(name="look_up")(look_up_in_the_loop)

    async def once() -> str:
        return str((await agent.run(QUESTION)).output)

    return once


def openai_agents(*, with_tool: bool) -> RunOnce:
    """Return a run of an openai-agents agent, with tracing turned off."""
    os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
    from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    class Scripted(Model):
        async def get_response(self, *args: Any, **named: Any) -> ModelResponse:
            history = named.get("input", args[1] if len(args) > 1 else "")
            called = not isinstance(history, str) and any(
                item.get("type") == "function_call_output" for item in history
            )
            if with_tool and not called:
                call = ResponseFunctionToolCall(
                    arguments='{"card": "17"}', call_id="c1", name="look_up", type="function_call"
                )
                return ModelResponse(output=[call], usage=Usage(), response_id=None)
            text = ResponseOutputText(annotations=[], text=ANSWER, type="output_text")
            message = ResponseOutputMessage(
                id="m1", content=[text], role="assistant", status="completed", type="message"
            )
            return ModelResponse(output=[message], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **named: Any) -> Any:
            raise NotImplementedError

    async def look_up_in_the_loop(card: str) -> str:
        return look_up(card)

    agent = Agent(
        name="triage",
        instructions="Be brief.",
        model=Scripted(),
        tools=[function_tool(look_up_in_the_loop, name_override="look_up")],
    )
    config = RunConfig(tracing_disabled=True)

    async def once() -> str:
        return str((await Runner.run(agent, QUESTION, run_config=config)).final_output)

    return once


def langgraph(*, with_tool: bool) -> RunOnce:
    """Return a run of a LangGraph graph: a model node and a tool node, as in its tutorial."""
    from langchain_core.messages import AIMessage, ToolMessage
    from langgraph.graph import END, START, MessagesState, StateGraph

    async def model(state: Any) -> dict[str, Any]:
        if with_tool and not isinstance(state["messages"][-1], ToolMessage):
            call = {"name": "look_up", "args": {"card": "17"}, "id": "c1", "type": "tool_call"}
            return {"messages": [AIMessage("", tool_calls=[call])]}
        return {"messages": [AIMessage(ANSWER)]}

    async def tools(state: Any) -> dict[str, Any]:
        calls = state["messages"][-1].tool_calls
        return {
            "messages": [
                ToolMessage(look_up(**call["args"]), tool_call_id=call["id"]) for call in calls
            ]
        }

    def after_model(state: Any) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", after_model, ["tools", END])
    builder.add_edge("tools", "model")
    graph: Any = builder.compile()

    async def once() -> str:
        state = await graph.ainvoke({"messages": [("user", QUESTION)]})
        return str(state["messages"][-1].content)

    return once


_MODULES = {"pydantic-ai": "pydantic_ai", "openai-agents": "agents", "LangGraph": "langgraph"}
_MAKERS: dict[str, Callable[..., RunOnce]] = {
    "pydantic-ai": pydantic_ai,
    "openai-agents": openai_agents,
    "LangGraph": langgraph,
}

NAMES = tuple(_MAKERS)


def frameworks() -> dict[str, Callable[..., RunOnce]]:
    """Return the maker of each framework that is installed."""
    return {
        name: make
        for name, make in _MAKERS.items()
        if importlib.util.find_spec(_MODULES[name]) is not None
    }
