"""One of ten runs is cancelled, and its code swallows that once. What goes on?"""

import trio
from trio.testing import MockClock

import harness

steps_after = 0


async def agent(number: int) -> int:
    global steps_after
    if number == 3:
        harness.current_run().cancel("the user left")
    try:
        await trio.sleep(1)
    except BaseException:  # Too much, and common: a tool that "never fails".
        pass
    for _ in range(5):
        await trio.sleep(1)
        steps_after += number == 3
    return number


async def main() -> None:
    results = await harness.fan_out(agent, range(10), policy=harness.BestEffort())
    print(f"others that finished: {len(results.values())} of 9")
    print(f"steps after it was cancelled: {steps_after} of 5")
    print(f"what it leaves: {results[3].status}: {results[3].error}")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
