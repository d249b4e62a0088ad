"""One of ten runs is cancelled, and its tool swallows that once. What goes on?"""

import asyncio
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

steps_after = 0
begun: set[str] = set()
all_begun = asyncio.Event()
THIRD = "3"


def model(messages: list[Any], info: Any) -> ModelResponse:
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("work", {"name": messages[0].parts[0].content})])
    return ModelResponse(parts=[TextPart("done")])


agent = Agent(FunctionModel(model))


@agent.tool_plain
async def work(name: str) -> str:
    global steps_after
    begun.add(name)
    if len(begun) == 10:
        all_begun.set()
    try:
        await asyncio.sleep(1)
    except BaseException:
        pass
    for _ in range(5):
        await asyncio.sleep(0.01)
        steps_after += name == THIRD
    return name


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(agent.run(str(number))) for number in range(10)]
        await all_begun.wait()
        tasks[3].cancel("the user left")
    others = [task for task in tasks if task is not tasks[3] and not task.cancelled()]
    print(f"others that finished: {len(others)} of 9")
    print(f"steps after it was cancelled: {steps_after} of 5")
    print(f"what it leaves: cancelled()={tasks[3].cancelled()}")


if __name__ == "__main__":
    asyncio.run(main())
