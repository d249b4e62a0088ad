"""How much of a limit does LangChain's rate limiter use, and does it go over?"""

import asyncio
import time

from langchain_core.rate_limiters import InMemoryRateLimiter

from benchmarks.comparison import _virtual
from benchmarks.comparison._provider import LIMIT, Provider


async def main() -> None:
    provider = Provider(time.monotonic)
    limiter = InMemoryRateLimiter(
        requests_per_second=LIMIT / 60, check_every_n_seconds=0.1, max_bucket_size=10
    )

    async def worker() -> None:
        while not provider.over():
            await limiter.aacquire()
            await asyncio.sleep(provider.arrive())

    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(worker())
    provider.show()
    print("when there is no room: the call waits")


if __name__ == "__main__":
    _virtual.run(main())
