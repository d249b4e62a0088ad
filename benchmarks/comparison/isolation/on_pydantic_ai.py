"""Which runs of one agent see each other's notes? Its tool takes them."""

import asyncio
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from benchmarks.comparison import _notes


def model(messages: list[Any], info: Any) -> ModelResponse:
    number = int(messages[0].parts[0].content)
    if sum(isinstance(message, ModelResponse) for message in messages) < 3:
        return ModelResponse(parts=[ToolCallPart("note", {"number": number})])
    return ModelResponse(parts=[TextPart("done")])


agent = Agent(FunctionModel(model))


@agent.tool_plain
async def note(number: int) -> int:
    _notes.take(number)
    await asyncio.sleep(0.01)
    return number


async def one(number: int) -> tuple[bool, ...]:
    messages = (await agent.run(str(number))).all_messages()
    parts = [part for message in messages for part in message.parts]
    return _notes.saw_others(part.content for part in parts if isinstance(part, ToolReturnPart))


async def main() -> None:
    seen = await asyncio.gather(*(one(number) for number in _notes.RUNS))
    _notes.show(seen, offered="its messages")


if __name__ == "__main__":
    asyncio.run(main())
