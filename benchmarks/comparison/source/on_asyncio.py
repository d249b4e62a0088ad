"""How far ahead of what is done is a source read: by a task group, and by workers over a queue?"""

import asyncio

from benchmarks.comparison._source import AT_ONCE, Source, show


async def main() -> None:
    plain, bounded = Source(), Source()

    async def agent(number: int, source: Source) -> None:
        await asyncio.sleep(0.001)
        source.done()

    semaphore = asyncio.Semaphore(AT_ONCE)

    async def in_its_turn(number: int) -> None:
        async with semaphore:
            await agent(number, plain)

    async with asyncio.TaskGroup() as group:
        for number in plain:
            group.create_task(in_its_turn(number))

    queue: asyncio.Queue[int | None] = asyncio.Queue(1)

    async def worker() -> None:
        while (number := await queue.get()) is not None:
            await agent(number, bounded)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())
        for number in bounded:
            await queue.put(number)
        for _ in range(AT_ONCE):
            await queue.put(None)
    show(plain=plain, bounded=bounded, order="that of the tasks, with gather()")


if __name__ == "__main__":
    asyncio.run(main())
