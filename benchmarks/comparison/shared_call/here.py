"""Two runs wait for one call; the first, which started it, is cancelled. Does the second get it?"""

import trio
from trio.testing import MockClock

import harness
from harness.shared import open_cache

calls = 0


async def load() -> str:
    global calls
    calls += 1
    await trio.sleep(2)
    return "the page"


async def main() -> None:
    runs = []
    async with open_cache() as cache:

        async def agent(number: int) -> str:
            runs.append(harness.current_run())
            return await cache.get("page", load)

        policy = harness.BestEffort()
        async with harness.open_fan_out(agent, range(2), policy=policy) as stream:
            await trio.sleep(1)
            runs[0].cancel("the user left")
            results = [result async for result in stream]
    (first,) = (result for result in results if not result.ok)
    (second,) = (result for result in results if result.ok)
    print(f"the one cancelled: {first.status}")
    print(f"the other: {second.value!r}")
    print(f"calls: {calls}")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
