"""Do the same work with other libraries, written as their users would write it.

They come with the extra ``bench``; without it `MISSING` is true and nothing here may be called.
`AIOSTREAM_MISSING` and `SIMLOOM_MISSING` are the same for those libraries alone; simloom needs
Python 3.12.
"""

from collections.abc import Awaitable, Callable, Coroutine
from importlib import import_module
from typing import Any

try:
    import aiometer
    import anyio
except ImportError:
    MISSING = True
else:
    MISSING = False

try:
    import aiostream
except ImportError:
    AIOSTREAM_MISSING = True
else:
    AIOSTREAM_MISSING = False

try:
    simloom: Any = import_module("simloom")
except ImportError:
    SIMLOOM_MISSING = True
else:
    SIMLOOM_MISSING = False


async def aiometer_amap(body: Callable[[int], Awaitable[int]], count: int, *, limit: int) -> None:
    async with aiometer.amap(body, range(count), max_at_once=limit) as results:
        async for _ in results:
            pass


async def anyio_task_group(
    body: Callable[[int], Awaitable[int]], count: int, *, limit: int, timeout_seconds: float
) -> None:
    limiter = anyio.CapacityLimiter(limit)

    async def one(item: int) -> None:
        async with limiter:
            with anyio.move_on_after(timeout_seconds):
                await body(item)

    async with anyio.create_task_group() as group:
        for item in range(count):
            group.start_soon(one, item)


async def aiostream_two_maps(
    body: Callable[[int], Awaitable[int]], count: int, *, limit: int
) -> None:
    async def call(item: Any, *_: Any) -> Any:
        return await body(item)

    operators: Any = aiostream.stream
    once = operators.map(operators.range(count), call, ordered=False, task_limit=limit)
    twice = operators.map(once, call, ordered=False, task_limit=limit)
    async with twice.stream() as results:
        async for _ in results:
            pass


def simloom_schedules_until_failure(
    main: Callable[[], Coroutine[Any, Any, None]], most_schedules: int, seed: int
) -> int:
    """Return how many schedules simloom runs, by default, until one fails."""
    explored = simloom.explore(main, runs=most_schedules, start_seed=seed * 10_000)
    return int(explored.runs) if explored.failures else most_schedules
