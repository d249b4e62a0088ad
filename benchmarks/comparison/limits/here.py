"""How much of a limit does a limiter use, and does it go over?"""

from collections.abc import Iterator

import trio
from trio.testing import MockClock

import harness
from benchmarks.comparison._provider import LIMIT, Provider
from harness.limits import Limiter


async def main() -> None:
    provider = Provider(trio.current_time)
    limiter = Limiter(requests_per_minute=LIMIT)

    async def call(number: int) -> None:
        await trio.sleep(provider.arrive())

    def questions() -> Iterator[int]:
        number = 0
        while not provider.over():
            yield (number := number + 1)

    await harness.fan_out(call, questions(), each=harness.Attempt(limiter=limiter))
    provider.show()
    print("when there is no room: the call waits")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
