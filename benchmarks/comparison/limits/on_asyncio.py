"""How much of a limit does a semaphore use, and does it go over?

Ten at once are ten a second, as long as a call takes a second.
"""

import asyncio
import time

from benchmarks.comparison import _virtual
from benchmarks.comparison._provider import Provider


async def main() -> None:
    provider = Provider(time.monotonic)
    semaphore = asyncio.Semaphore(10)

    async def worker() -> None:
        while not provider.over():
            async with semaphore:
                await asyncio.sleep(provider.arrive())

    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(worker())
    provider.show()
    print("when there is no room: the call waits for a slot; it knows no rate")


if __name__ == "__main__":
    _virtual.run(main())
