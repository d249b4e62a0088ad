"""One of ten runs is cancelled, and its node swallows that once. What goes on?"""

import asyncio
from typing import TypedDict

from langgraph.graph import START, StateGraph

steps_after = 0
begun: set[int] = set()
all_begun = asyncio.Event()


class State(TypedDict):
    number: int


async def work(state: State) -> State:
    global steps_after
    begun.add(state["number"])
    if len(begun) == 10:
        all_begun.set()
    try:
        await asyncio.sleep(1)
    except BaseException:
        pass
    for _ in range(5):
        await asyncio.sleep(0.01)
        steps_after += state["number"] == 3
    return state


builder = StateGraph(State)
builder.add_node("work", work)
builder.add_edge(START, "work")
graph = builder.compile()


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(graph.ainvoke({"number": number})) for number in range(10)]
        await all_begun.wait()
        tasks[3].cancel("the user left")
    others = [task for task in tasks if task is not tasks[3] and not task.cancelled()]
    print(f"others that finished: {len(others)} of 9")
    await asyncio.sleep(0.3)
    print(f"steps after it was cancelled: {steps_after} of 5")
    print(f"what it leaves: cancelled()={tasks[3].cancelled()}")


if __name__ == "__main__":
    asyncio.run(main())
