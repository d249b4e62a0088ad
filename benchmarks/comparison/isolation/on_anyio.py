"""Which tasks of a task group see each other's notes?"""

from contextvars import ContextVar

import anyio

from benchmarks.comparison import _notes

own: ContextVar[list[int]] = ContextVar("own")
seen: list[tuple[bool, ...]] = []


async def agent(number: int) -> None:
    own.set([])
    for _ in range(3):
        _notes.take(number, own.get())
        await anyio.sleep(0.01)
    seen.append(_notes.saw_others(own.get()))


async def main() -> None:
    async with anyio.create_task_group() as group:
        for number in _notes.RUNS:
            group.start_soon(agent, number)
    _notes.show(seen, offered="a context variable, set in the task")


if __name__ == "__main__":
    anyio.run(main)
