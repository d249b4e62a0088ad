"""What is left of ten calls when two fail?"""

import functools

import aiometer
import trio
from trio.testing import MockClock

from benchmarks.comparison._failing import (
    ITEMS,
    NOTHING,
    STEP_SECONDS,
    ModelDownError,
    answer,
    show,
)


async def agent(number: int) -> str:
    await trio.sleep(number * STEP_SECONDS)
    return answer(number)


async def main() -> None:
    left = []
    try:
        async with aiometer.amap(agent, ITEMS) as results:
            async for result in results:
                left.append(result)
    except* ModelDownError:
        pass
    first = "the first one"
    try:
        await aiometer.run_any([functools.partial(agent, number) for number in ITEMS])
    except* ModelDownError:
        first = "run_any() waits for the rest, and raises its errors"
    show(
        first_error=f"{len(left)}, if the loop stores them",
        collect=NOTHING,
        quorum=first,
        threshold=NOTHING,
    )


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
