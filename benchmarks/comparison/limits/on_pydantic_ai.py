"""How much of a limit does a ConcurrencyLimitedModel use, and does it go over?"""

import asyncio
import time
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.concurrency import ConcurrencyLimitedModel
from pydantic_ai.models.function import FunctionModel

from benchmarks.comparison import _virtual
from benchmarks.comparison._provider import Provider


async def main() -> None:
    provider = Provider(time.monotonic)

    async def model(messages: list[Any], info: Any) -> ModelResponse:
        await asyncio.sleep(provider.arrive())
        return ModelResponse(parts=[TextPart("done")])

    # A second each, so ten at once are ten a second, which is the limit.
    agent = Agent(ConcurrencyLimitedModel(FunctionModel(model), limiter=10))

    async def worker() -> None:
        while not provider.over():
            await agent.run("hello")

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(worker())
    provider.show()
    print("when there is no room: the call waits for a slot; it knows no rate")


if __name__ == "__main__":
    _virtual.run(main())
