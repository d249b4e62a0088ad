"""How much of a limit does a rate of ten a second use, and does it go over?"""

import aiometer
import trio
from trio.testing import MockClock

from benchmarks.comparison._provider import LIMIT, MINUTES, Provider


async def main() -> None:
    provider = Provider(trio.current_time)

    async def call(number: int) -> None:
        await trio.sleep(provider.arrive())

    await aiometer.run_on_each(
        call, range(LIMIT * MINUTES), max_at_once=100, max_per_second=LIMIT / 60
    )
    provider.show()
    print("when there is no room: the call waits")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
