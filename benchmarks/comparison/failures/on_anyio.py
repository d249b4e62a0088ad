"""What is left of ten tasks when two fail? A task group has one policy, and returns no values."""

import anyio
from trio.testing import MockClock

from benchmarks.comparison._failing import (
    ITEMS,
    NOTHING,
    STEP_SECONDS,
    ModelDownError,
    answer,
    show,
)

left: list[str] = []


async def agent(number: int) -> None:
    await anyio.sleep(number * STEP_SECONDS)
    left.append(answer(number))  # Without this line nothing would be left.


async def main() -> None:
    try:
        async with anyio.create_task_group() as group:
            for number in ITEMS:
                group.start_soon(agent, number)
    except* ModelDownError:
        pass
    show(
        first_error=f"{len(left)}, if the task stores them",
        collect=NOTHING,
        quorum=NOTHING,
        threshold=NOTHING,
    )


if __name__ == "__main__":
    anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
