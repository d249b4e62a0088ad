"""How far ahead of what is done is a source read: by a task group, and by workers over a stream?"""

import anyio

from benchmarks.comparison._source import AT_ONCE, Source, show


async def main() -> None:
    plain, bounded = Source(), Source()

    async def agent(number: int, source: Source) -> None:
        await anyio.sleep(0.001)
        source.done()

    async with anyio.create_task_group() as group:
        for number in plain:
            group.start_soon(agent, number, plain)

    send, receive = anyio.create_memory_object_stream[int](0)

    async def worker() -> None:
        async for number in receive:
            await agent(number, bounded)

    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(worker)
        async with send:
            for number in bounded:
                await send.send(number)
    receive.close()
    show(plain=plain, bounded=bounded, order="as you store them")


if __name__ == "__main__":
    anyio.run(main)
