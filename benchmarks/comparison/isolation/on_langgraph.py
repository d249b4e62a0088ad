"""Which runs of one graph see each other's notes?"""

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

from benchmarks.comparison import _notes


class State(TypedDict):
    number: int
    own: Annotated[list[int], operator.add]


async def take(state: State) -> dict[str, Any]:
    _notes.take(state["number"])
    await asyncio.sleep(0.01)
    return {"own": [state["number"]]}


builder = StateGraph(State)
for name, before in (("first", START), ("second", "first"), ("third", "second")):
    builder.add_node(name, take)
    builder.add_edge(before, name)
graph = builder.compile()


async def one(number: int) -> tuple[bool, ...]:
    state = await graph.ainvoke({"number": number, "own": []})
    return _notes.saw_others(state["own"])


async def main() -> None:
    seen = await asyncio.gather(*(one(number) for number in _notes.RUNS))
    _notes.show(seen, offered="the graph's state")


if __name__ == "__main__":
    asyncio.run(main())
