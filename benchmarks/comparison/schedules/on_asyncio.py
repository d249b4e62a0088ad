"""How soon is a race found by repeating a test? asyncio wakes tasks in the order they got ready."""

import asyncio

from benchmarks.comparison import _virtual
from benchmarks.comparison._account import REPEATS, Account


async def test_account() -> None:
    account = Account()
    async with asyncio.TaskGroup() as group:
        group.create_task(account.spend(70, asyncio.sleep, after_steps=0))
        group.create_task(account.spend(60, asyncio.sleep, after_steps=12))
    assert account.left >= 0


def main() -> None:
    failed = 0
    for _ in range(REPEATS):
        try:
            _virtual.run(test_account())
        except AssertionError:
            failed += 1
    print(f"race found: in {failed} of {REPEATS} runs")
    print("replay: –")
    print("leak found: –")


if __name__ == "__main__":
    main()
