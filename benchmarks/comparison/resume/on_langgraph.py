"""An entrypoint with a task for each item is killed and started again. What runs twice?

A semaphore bounds the tasks. `max_concurrency` would hold back the writing of results, too.
"""

import asyncio

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task

from benchmarks.comparison import _killed, _processes

slots = asyncio.Semaphore(_killed.AT_ONCE)


@task
async def step(number: int) -> int:
    async with slots:
        if _killed.begin(number):
            await asyncio.sleep(3600)
        return _killed.end(number)


async def main() -> None:
    path = str(_processes.folder() / "checkpoints.sqlite")
    async with AsyncSqliteSaver.from_conn_string(path) as saver:

        @entrypoint(checkpointer=saver)
        async def batch(items: list[int]) -> list[int]:
            return list(await asyncio.gather(*(step(number) for number in items)))

        config = {"configurable": {"thread_id": "nightly"}}
        await batch.ainvoke(list(_killed.ITEMS) if _processes.first_time() else None, config)


if __name__ == "__main__":
    if _processes.is_child():
        asyncio.run(main())
    else:
        _killed.show("benchmarks.comparison.resume.on_langgraph")
