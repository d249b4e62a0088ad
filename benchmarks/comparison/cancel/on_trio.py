"""One of ten tasks is cancelled, and its code swallows that once. What goes on?"""

import trio
from trio.testing import MockClock

steps_after = 0
finished = []
scopes = [trio.CancelScope() for _ in range(10)]


async def agent(number: int) -> None:
    global steps_after
    with scopes[number]:
        if number == 3:
            scopes[number].cancel()
        try:
            await trio.sleep(1)
        except BaseException:
            pass
        for _ in range(5):
            await trio.sleep(1)
            steps_after += number == 3
        finished.append(number)


async def main() -> None:
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(agent, number)
    print(f"others that finished: {len(finished)} of 9")
    print(f"steps after it was cancelled: {steps_after} of 5")
    print(f"what it leaves: cancelled_caught={scopes[3].cancelled_caught}")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
