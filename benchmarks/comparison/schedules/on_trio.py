"""How soon is a race found by repeating a test? trio shuffles the tasks that could go on."""

import trio
from trio.testing import MockClock

from benchmarks.comparison._account import REPEATS, Account


async def test_account() -> None:
    account = Account()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: account.spend(70, trio.sleep, after_steps=0))
        nursery.start_soon(lambda: account.spend(60, trio.sleep, after_steps=12))
    assert account.left >= 0


def main() -> None:
    failed = 0
    for _ in range(REPEATS):
        try:
            trio.run(test_account, clock=MockClock(autojump_threshold=0))
        except AssertionError:
            failed += 1
    print(f"race found: in {failed} of {REPEATS} runs")
    print("replay: –")
    print("leak found: –")


if __name__ == "__main__":
    main()
