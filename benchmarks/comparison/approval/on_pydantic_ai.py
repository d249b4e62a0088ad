"""A refund waits for a person, over the end of the process. What is called when?"""

import asyncio
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import FunctionModel

from benchmarks.comparison import _approval, _processes


def model(messages: list[Any], info: Any) -> ModelResponse:
    _processes.note("model")
    if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
        return ModelResponse(parts=[TextPart(_approval.DONE)])
    return ModelResponse(parts=[ToolCallPart(_approval.TOOL, _approval.ARGUMENTS, "1")])


agent = Agent(FunctionModel(model), output_type=[str, DeferredToolRequests])


@agent.tool_plain(requires_approval=True)
async def refund(order: int, usd: int) -> str:
    _processes.note("tool")
    return "paid"


async def main() -> None:
    file = _processes.folder() / "messages.json"
    if _processes.first_time():
        file.write_bytes((await agent.run(_approval.QUESTION)).all_messages_json())
        return
    await agent.run(
        message_history=ModelMessagesTypeAdapter.validate_json(file.read_bytes()),
        deferred_tool_results=DeferredToolResults(approvals={"1": True}),
    )


if __name__ == "__main__":
    if _processes.is_child():
        asyncio.run(main())
    else:
        _approval.show(
            "benchmarks.comparison.approval.on_pydantic_ai", kept="its messages, which you store"
        )
