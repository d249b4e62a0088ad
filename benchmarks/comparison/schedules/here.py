"""How soon is a race found that no plain repetition shows, and a leak?"""

import trio

from benchmarks.comparison._account import Account
from harness.errors import ScheduleError
from harness.testing import assert_isolated, explore_schedules


@explore_schedules(seed=1)
async def test_account() -> None:
    account = Account()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: account.spend(70, trio.sleep, after_steps=0), name="rent")
        nursery.start_soon(lambda: account.spend(60, trio.sleep, after_steps=12), name="food")
    assert account.left >= 0


messages: list[str] = []


async def desk(ticket: str) -> str:
    messages.clear()
    messages.append(ticket)
    await trio.sleep(1)
    return messages[0]


async def test_desk() -> None:
    await assert_isolated(desk, ["lost card", "wrong fee"])


def main() -> None:
    try:
        trio.run(test_account)
    except ScheduleError as error:
        print(f"race found: after {error.schedules_run} runs")
        print(f"replay: by the string {str(error.schedule)[:3]}...")
    try:
        trio.run(test_desk)
    except ScheduleError as error:
        print(f"leak found: {', '.join(error.objects)}")


if __name__ == "__main__":
    main()
