"""Two tasks wait for one call; the first is cancelled. Does the second get it?"""

import asyncio

calls = 0


async def load() -> str:
    global calls
    calls += 1
    await asyncio.sleep(0.1)
    return "the page"


async def main() -> None:
    shared = asyncio.create_task(load())

    async def agent() -> str:
        return await shared

    first, second = asyncio.create_task(agent()), asyncio.create_task(agent())
    await asyncio.sleep(0.01)
    first.cancel("the user left")
    ended = await asyncio.gather(first, second, return_exceptions=True)
    print(f"the one cancelled: {type(ended[0]).__name__}")
    print(f"the other: {type(ended[1]).__name__}; a result with asyncio.shield()")
    print(f"calls: {calls}")


if __name__ == "__main__":
    asyncio.run(main())
