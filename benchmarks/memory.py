"""How much memory does a live run take that is only waiting?

Counted by tracemalloc, over thousands at once: how many more bytes Python holds with all of them
asleep, divided by their number. The floor is a bare task that sleeps the same way. The memory of
the process would say less: it grows in steps, and includes what was already freed.

Run: python -m benchmarks memory
"""

import gc
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator

import trio
from trio.testing import wait_all_tasks_blocked

import harness
from benchmarks._measure import Measured, Row, at_most


def rows(*, quick: bool) -> Iterator[Row]:
    """Measure idle runs of a fan-out."""
    count = 500 if quick else 5_000
    trio.run(live_bytes_each, fan_out, 10)  # What is made only once isn't counted.
    trio.run(live_bytes_each, bare_tasks, 10)
    run_bytes = trio.run(live_bytes_each, fan_out, count)
    task_bytes = trio.run(live_bytes_each, bare_tasks, count)
    yield at_most(
        "memory of a live idle run in a fan-out / sleeping task",
        2.5,
        Measured.exactly(run_bytes / task_bytes),
        note=f"{run_bytes:,.0f} against {task_bytes:,.0f} bytes (tracemalloc)",
    )


async def live_bytes_each(start: Callable[[int], Awaitable[object]], count: int) -> float:
    """Return the bytes per task that Python holds while ``start(count)`` sleeps."""
    gc.collect()
    tracemalloc.start()
    try:
        async with trio.open_nursery() as nursery:
            before, _ = tracemalloc.get_traced_memory()
            nursery.start_soon(start, count)
            await wait_all_tasks_blocked()
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            nursery.cancel_scope.cancel()
    finally:
        tracemalloc.stop()
    return (after - before) / count


async def idle(item: int) -> None:
    await trio.sleep_forever()


async def bare_tasks(count: int) -> None:
    async with trio.open_nursery() as nursery:
        for item in range(count):
            nursery.start_soon(idle, item)


async def fan_out(count: int) -> None:
    await harness.fan_out(idle, range(count), limit=count)
