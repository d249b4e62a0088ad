"""What is left of ten runs of a graph when two fail?"""

import asyncio
from typing import TypedDict

from langgraph.graph import START, StateGraph

from benchmarks.comparison._failing import (
    ITEMS,
    NOTHING,
    STEP_SECONDS,
    ModelDownError,
    answer,
    show,
)


class State(TypedDict):
    number: int
    answer: str


async def agent(state: State) -> dict[str, str]:
    await asyncio.sleep(state["number"] * STEP_SECONDS)
    return {"answer": answer(state["number"])}


builder = StateGraph(State)
builder.add_node("agent", agent)
builder.add_edge(START, "agent")
graph = builder.compile()


async def main() -> None:
    inputs = [{"number": number, "answer": ""} for number in ITEMS]
    try:
        left = len(await graph.abatch(inputs))
    except ModelDownError:
        left = 0
    ended = await graph.abatch(inputs, return_exceptions=True)
    collected = [state for state in ended if not isinstance(state, BaseException)]
    show(
        first_error=f"{left}, and the error",
        collect=f"{len(collected)} of 10",
        quorum=NOTHING,
        threshold=NOTHING,
    )


if __name__ == "__main__":
    asyncio.run(main())
