"""One of ten tasks is cancelled, and its code swallows that once. What goes on?"""

import anyio

steps_after = 0
finished = []
scopes: list[anyio.CancelScope] = []


async def agent(number: int) -> None:
    global steps_after
    with scopes[number]:
        if number == 3:
            scopes[number].cancel()
        try:
            await anyio.sleep(0.01)
        except BaseException:
            pass
        for _ in range(5):
            await anyio.sleep(0.01)
            steps_after += number == 3
        finished.append(number)


async def main() -> None:
    scopes.extend(anyio.CancelScope() for _ in range(10))
    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(agent, number)
    print(f"others that finished: {len(finished)} of 9")
    print(f"steps after it was cancelled: {steps_after} of 5")
    print(f"what it leaves: cancelled_caught={scopes[3].cancelled_caught}")


if __name__ == "__main__":
    anyio.run(main)
