"""What is left of ten items when two fail, under each policy?"""

import trio
from trio.testing import MockClock

import harness
from benchmarks.comparison._failing import ITEMS, STEP_SECONDS, answer, show


async def agent(number: int) -> str:
    await trio.sleep(number * STEP_SECONDS)
    return answer(number)


async def left(policy: harness.FailFast | harness.BestEffort | harness.Quorum) -> str:
    try:
        results = await harness.fan_out(agent, ITEMS, policy=policy, limit=10)
    except harness.errors.FanOutError as error:
        return f"{len(error.results.values())}, and the error"
    return f"{len(results.values())} of 10"


async def main() -> None:
    show(
        first_error=await left(harness.FailFast()),
        collect=await left(harness.BestEffort()),
        quorum=await left(harness.Quorum(3)),
        threshold=await left(harness.BestEffort(max_failures=1)),
    )


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
