"""What does a reservation cost, alone and with a long line behind it?

Method: one process, no I/O, CPU time, case and floor interleaved, medians of ratios. The floor
is the nearest thing that trio has: `trio.CapacityLimiter`, acquired and released. Rates are
compared, so 0.7 means that a limiter does 7 reservations while the floor does 10 acquisitions.
With waiters, 1,000 tasks stand in line for one place, which each holds for one checkpoint, in
both; the place comes on top of the dimensions. Compare ratios; don't compare two machines.

Run: python -m benchmarks.limits [--quick]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from harness.limits import Limiter

Bench = Callable[[int], Awaitable[None]]

# So high that it never holds anybody back: the question is what the arithmetic costs.
PLENTY_PER_MINUTE = 10**12
WAITERS = 1_000
TOKENS = 100


async def floor_alone(count: int) -> None:
    capacity = trio.CapacityLimiter(1)
    for _ in range(count):
        await capacity.acquire()
        capacity.release()


async def requests_alone(count: int) -> None:
    limiter = Limiter("bench", requests_per_minute=PLENTY_PER_MINUTE)
    for _ in range(count):
        async with limiter.reserve() as reservation:
            reservation.settle()


async def requests_and_tokens_alone(count: int) -> None:
    limiter = Limiter(
        "bench", requests_per_minute=PLENTY_PER_MINUTE, tokens_per_minute=PLENTY_PER_MINUTE
    )
    for _ in range(count):
        async with limiter.reserve(tokens=TOKENS) as reservation:
            reservation.settle(tokens=TOKENS)


async def in_line(body: Callable[[int], Awaitable[None]], count: int) -> None:
    """Run ``body`` in 1,000 tasks, which do ``count`` rounds together."""
    async with trio.open_nursery() as nursery:
        for _ in range(WAITERS):
            nursery.start_soon(body, max(1, count // WAITERS))


async def floor_in_line(count: int) -> None:
    capacity = trio.CapacityLimiter(1)

    async def body(rounds: int) -> None:
        for _ in range(rounds):
            await capacity.acquire()
            await trio.lowlevel.checkpoint()
            capacity.release()

    await in_line(body, count)


async def requests_in_line(count: int) -> None:
    limiter = Limiter("bench", requests_per_minute=PLENTY_PER_MINUTE, concurrent=1)

    async def body(rounds: int) -> None:
        for _ in range(rounds):
            async with limiter.reserve() as reservation:
                await trio.lowlevel.checkpoint()
                reservation.settle()

    await in_line(body, count)


async def requests_and_tokens_in_line(count: int) -> None:
    limiter = Limiter(
        "bench",
        requests_per_minute=PLENTY_PER_MINUTE,
        tokens_per_minute=PLENTY_PER_MINUTE,
        concurrent=1,
    )

    async def body(rounds: int) -> None:
        for _ in range(rounds):
            async with limiter.reserve(tokens=TOKENS) as reservation:
                await trio.lowlevel.checkpoint()
                reservation.settle(tokens=TOKENS)

    await in_line(body, count)


CASES: tuple[tuple[str, float, Bench, Bench], ...] = (
    ("reserve + settle, 1 dimension", 0.7, requests_alone, floor_alone),
    ("reserve + settle, 2 dimensions", 0.5, requests_and_tokens_alone, floor_alone),
    ("the same with 1,000 waiters, 1 dimension", 0.7, requests_in_line, floor_in_line),
    ("the same with 1,000 waiters, 2 dimensions", 0.5, requests_and_tokens_in_line, floor_in_line),
)


def cpu_seconds(bench: Bench, count: int) -> float:
    """Return the CPU time of one run of ``bench``."""
    started = time.process_time()
    trio.run(bench, count)
    return time.process_time() - started


def rate_ratio(case: Bench, floor: Bench, *, count: int, rounds: int) -> float:
    """Return the case's rate over the floor's, the median of interleaved rounds."""
    ratios = [cpu_seconds(floor, count) / cpu_seconds(case, count) for _ in range(rounds)]
    return statistics.median(ratios)


def rows(*, quick: bool) -> list[tuple[str, float, float]]:
    """Return what was measured: the question, the smallest ratio allowed, and the ratio."""
    count, rounds = (3_000, 3) if quick else (20_000, 9)
    measure = partial(rate_ratio, count=count, rounds=rounds)
    return [(what, budget, measure(case, floor)) for what, budget, case, floor in CASES]


def main() -> None:
    """Print the table."""
    print("rate of reserve + settle over trio.CapacityLimiter acquire + release")
    for what, budget, measured in rows(quick="--quick" in sys.argv[1:]):
        print(f"  {what:<44} >= {budget:.2f} x   measured {measured:.2f} x")


if __name__ == "__main__":
    main()
