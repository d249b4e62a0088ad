"""Which tasks of a task group see each other's notes?"""

import asyncio
from contextvars import ContextVar

from benchmarks.comparison import _notes

own: ContextVar[list[int]] = ContextVar("own")


async def agent(number: int) -> tuple[bool, ...]:
    own.set([])
    for _ in range(3):
        _notes.take(number, own.get())
        await asyncio.sleep(0.01)
    return _notes.saw_others(own.get())


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(agent(number)) for number in _notes.RUNS]
    seen = [task.result() for task in tasks]
    _notes.show(seen, offered="a context variable, set in the task")


if __name__ == "__main__":
    asyncio.run(main())
