"""How far ahead of what is done is a source read: by a nursery, and by workers over a channel?"""

import trio
from trio.testing import MockClock

from benchmarks.comparison._source import AT_ONCE, Source, show


async def main() -> None:
    plain, bounded = Source(), Source()

    async def agent(number: int, source: Source) -> None:
        await trio.sleep(1)
        source.done()

    async with trio.open_nursery() as nursery:
        for number in plain:
            nursery.start_soon(agent, number, plain)

    send, receive = trio.open_memory_channel[int](0)

    async def worker() -> None:
        async for number in receive:
            await agent(number, bounded)

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(worker)
        async with send:
            for number in bounded:
                await send.send(number)
    show(plain=plain, bounded=bounded, order="as you store them")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
