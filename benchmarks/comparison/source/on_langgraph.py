"""How far ahead of what is done is a source read, ten at once? `abatch` takes a list."""

import asyncio
from typing import TypedDict

from langgraph.graph import START, StateGraph

from benchmarks.comparison._source import AT_ONCE, Source, show

source = Source()


class State(TypedDict):
    number: int


async def agent(state: State) -> State:
    await asyncio.sleep(0.001)
    source.done()
    return state


builder = StateGraph(State)
builder.add_node("agent", agent)
builder.add_edge(START, "agent")
graph = builder.compile()


async def main() -> None:
    inputs = [{"number": number} for number in source]
    results = await graph.abatch(inputs, {"max_concurrency": AT_ONCE})
    assert results == inputs
    show(plain=source, bounded="–", order="of the input")


if __name__ == "__main__":
    asyncio.run(main())
