"""How long does it take to cancel very many live runs at once?

Timed from the cancel until all have ended and the block around them is left, not counting their
start. The floor is the same number of bare sleeping tasks under one cancel scope.

Run: python -m benchmarks cancel
"""

from collections.abc import Iterator
from contextlib import ExitStack

import trio
from trio.testing import wait_all_tasks_blocked

import harness
from benchmarks._measure import Bench, Row, at_most, cpu_time, interleaved, rounds_of


def rows(*, quick: bool) -> Iterator[Row]:
    """Cancel live runs by a scope around the fan-out, and by the run it was called in."""
    count = 1_000 if quick else 20_000
    samples = interleaved(BENCHES, count=count, rounds=rounds_of(9, quick=quick))
    for case in ("an outer scope", "run.cancel()"):
        yield at_most(
            f"cancel {count:,} live runs by {case} / bare tasks",
            2.2,
            samples.ratio(case, "bare tasks"),
            note=samples.note(case, "bare tasks", per="run"),
        )


async def idle(item: int) -> None:
    await trio.sleep_forever()


async def bare_tasks(count: int) -> float:
    with ExitStack() as timing:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for item in range(count):
                    nursery.start_soon(idle, item)
                await wait_all_tasks_blocked()
                spent = timing.enter_context(cpu_time())
                scope.cancel()
    return spent()


async def by_an_outer_scope(count: int) -> float:
    with ExitStack() as timing:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fan_out, count)
                await wait_all_tasks_blocked()
                spent = timing.enter_context(cpu_time())
                scope.cancel()
    return spent()


async def by_a_run(count: int) -> float:
    with ExitStack() as timing:
        async with harness.open_run("all") as run:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fan_out, count)
                await wait_all_tasks_blocked()
                spent = timing.enter_context(cpu_time())
                run.cancel()
    return spent()


async def fan_out(count: int) -> None:
    await harness.fan_out(idle, range(count), limit=count)


BENCHES: dict[str, Bench] = {
    "an outer scope": lambda count: trio.run(by_an_outer_scope, count),
    "run.cancel()": lambda count: trio.run(by_a_run, count),
    "bare tasks": lambda count: trio.run(bare_tasks, count),
}
