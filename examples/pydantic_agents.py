"""Run agents of an asyncio framework, here pydantic-ai, through a fan-out.

Shows what a framework gains that knows nothing of trio: one loop in a thread serves
all runs, each call sees its own run, a tool calls back into trio, and whatever takes
too long is cut. The model is simulated, so that this works offline.

Run:     python examples/pydantic_agents.py     (needs pydantic-ai-slim and openai)
Prints:  40 questions, 8 at once, by one framework agent in one asyncio loop
         Where is parcel 17? -> parcel 17 is in depot 3 (asked in parcels/17)
         2 took too long and were cut; 0 answers went to another run
"""

import trio
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import harness
from harness.asyncio_bridge import call_trio, open_asyncio
from harness.testing.provider import Answer, AnswerToolCall, ProviderRequest, open_provider

PARCELS = 40
LOST = {"5", "31"}
TIMEOUT_SECONDS = 2.0

asked: harness.RunLocal[list[str]] = harness.RunLocal(list, name="asked")


async def find_parcel(number: str) -> str:
    """Look a parcel up; the depot never answers for two of them."""
    asked.get().append(number)  # This run's own, though the agent is shared.
    await trio.sleep(60 if number in LOST else 0.001)
    return f"depot {int(number) % 7} (asked in {harness.current_run().path})"


def simulated(request: ProviderRequest) -> Answer | str:
    """Be the model: call the tool first, then say what it found."""
    messages = request.body["messages"]
    number = next(m["content"] for m in messages if m["role"] == "user").strip("?").split()[-1]
    if messages[-1]["role"] != "tool":
        return Answer(tool_calls=[AnswerToolCall("find", {"number": number})])
    return f"parcel {number} is in {messages[-1]['content']}"


async def main() -> None:
    async with open_provider(answer=simulated) as provider, open_asyncio() as loop:
        client = AsyncOpenAI(base_url=f"{provider.base_url}/v1", api_key="any", max_retries=0)
        agent = Agent(OpenAIChatModel("simulated", provider=OpenAIProvider(openai_client=client)))

        @agent.tool_plain
        async def find(number: str) -> str:
            return await call_trio(find_parcel, number)

        async def answer(number: str) -> str:
            said = await loop.run(agent.run, f"Where is parcel {number}?")
            assert asked.get() == [number]
            return said.output

        try:
            results = await harness.fan_out(
                answer,
                [str(number) for number in range(PARCELS)],
                policy=harness.BestEffort(),
                limit=8,
                each=harness.Attempt(timeout=TIMEOUT_SECONDS),
                key=str,
                name="parcels",
            )
        finally:
            await loop.run(client.close)
    print(f"{PARCELS} questions, 8 at once, by one framework agent in one asyncio loop")
    print(f"Where is parcel 17? -> {results[17].value}")
    strange = [r for r in results if r.status == "ok" and f"parcel {r.key} " not in r.value]
    print(
        f"{len(results.failed)} took too long and were cut; "
        f"{len(strange)} answers went to another run"
    )


if __name__ == "__main__":
    trio.run(main)
