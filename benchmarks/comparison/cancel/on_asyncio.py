"""One of ten tasks is cancelled, and its code swallows that once. What goes on?"""

import asyncio

steps_after = 0


async def agent(number: int) -> int:
    global steps_after
    try:
        await asyncio.sleep(0.01)
    except BaseException:
        pass
    for _ in range(5):
        await asyncio.sleep(0.01)
        steps_after += number == 3
    return number


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(agent(number)) for number in range(10)]
        await asyncio.sleep(0)
        tasks[3].cancel("the user left")
    others = [task for task in tasks if task is not tasks[3] and not task.cancelled()]
    print(f"others that finished: {len(others)} of 9")
    print(f"steps after it was cancelled: {steps_after} of 5")
    print(f"what it leaves: cancelled()={tasks[3].cancelled()}, a result")


if __name__ == "__main__":
    asyncio.run(main())
