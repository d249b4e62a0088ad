"""What is left of ten tasks when two fail, in a task group and with gather?"""

import asyncio

from benchmarks.comparison import _virtual
from benchmarks.comparison._failing import (
    ITEMS,
    NOTHING,
    STEP_SECONDS,
    ModelDownError,
    answer,
    show,
)


async def agent(number: int) -> str:
    await asyncio.sleep(number * STEP_SECONDS)
    return answer(number)


async def main() -> None:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(agent(number)) for number in ITEMS]
    except* ModelDownError:
        pass
    done = [task for task in tasks if not task.cancelled() and not task.exception()]
    all_ended = await asyncio.gather(*map(agent, ITEMS), return_exceptions=True)
    collected = [ended for ended in all_ended if not isinstance(ended, BaseException)]
    show(
        first_error=f"{len(done)}, and the error",
        collect=f"{len(collected)} of 10",
        quorum=NOTHING,
        threshold=NOTHING,
    )


if __name__ == "__main__":
    _virtual.run(main())
