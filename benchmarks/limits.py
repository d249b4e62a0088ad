"""What does a reservation cost, alone and with a long line behind it?

Reserve and settle, against the nearest thing in trio: acquiring and releasing a
`trio.CapacityLimiter`. The ratio is one of rates: 0.7 means that a limiter makes 7 reservations
while the floor makes 10 acquisitions. In line, 1,000 tasks in both wait for one place, which each
holds for one checkpoint; the place comes on top of the dimensions.

Other rate limiters, on asyncio, are shown next to it. Most let no other task run while there is
room, and that is the larger part of what a reservation costs.

Run: python -m benchmarks limits
"""

from collections.abc import Awaitable, Callable, Iterator

import trio

from benchmarks._limit_peers import installed
from benchmarks._measure import (
    Row,
    at_least,
    for_comparison,
    interleaved,
    not_installed,
    rounds_of,
    timed_in_asyncio,
    timed_in_trio,
)
from harness.limits import Limiter

WAITERS = 1_000
TOKENS = 100

# So high that it never holds anybody back: the question is what the arithmetic costs.
PLENTY_PER_MINUTE = 10**12


def rows(*, quick: bool) -> Iterator[Row]:
    """Reserve with one and two dimensions, alone and in line."""
    count = 2_000 if quick else 5_000
    rounds = rounds_of(31, quick=quick)
    for where, floor, cases in (
        ("alone", capacity_alone, ALONE),
        ("in line", capacity_in_line, IN_LINE),
    ):
        benches = {"CapacityLimiter": timed_in_trio(floor)}
        benches |= {what: timed_in_trio(case) for what, _, case in cases}
        samples = interleaved(benches, count=count, rounds=rounds)
        for what, budget, _ in cases:
            # Of two times, the floor's over the case's is the case's rate over the floor's.
            ratio = samples.ratio("CapacityLimiter", what)
            note = samples.note(what, "CapacityLimiter", per="grant")
            named = f"reserve + settle, {what}, {where} / CapacityLimiter"
            if budget is None:
                yield for_comparison(named, ratio, note=note)
            else:
                yield at_least(named, budget, ratio, note=note)
    yield from beside_peers(count=count, rounds=rounds)


def beside_peers(*, count: int, rounds: int) -> Iterator[Row]:
    """Compare one dimension, alone, with other libraries, on asyncio."""
    peers = installed()
    benches = {"harness": timed_in_trio(one_dimension_alone)}
    benches |= {name: timed_in_asyncio(peer) for name, peer in peers.items() if peer is not None}
    samples = interleaved(benches, count=count, rounds=rounds)
    for name, peer in peers.items():
        what = f"reserve + settle, 1 dimension, alone / a request to {name}"
        if peer is None:
            yield not_installed(what)
        else:
            note = samples.note("harness", name, per="grant")
            yield for_comparison(what, samples.ratio(name, "harness"), note=note)


async def capacity_alone(count: int) -> None:
    capacity = trio.CapacityLimiter(1)
    for _ in range(count):
        await capacity.acquire()
        capacity.release()


async def one_dimension_alone(count: int) -> None:
    limiter = Limiter("bench", requests_per_minute=PLENTY_PER_MINUTE)
    for _ in range(count):
        async with limiter.reserve() as reservation:
            reservation.settle()


async def two_dimensions_alone(count: int) -> None:
    limiter = two_dimensions()
    for _ in range(count):
        async with limiter.reserve(tokens=TOKENS) as reservation:
            reservation.settle(tokens=TOKENS)


async def two_dimensions_used_less_alone(count: int) -> None:
    limiter = two_dimensions()
    for _ in range(count):
        async with limiter.reserve(tokens=TOKENS) as reservation:
            reservation.settle(tokens=TOKENS // 2)


async def capacity_in_line(count: int) -> None:
    capacity = trio.CapacityLimiter(1)

    async def body(rounds: int) -> None:
        for _ in range(rounds):
            await capacity.acquire()
            await trio.lowlevel.checkpoint()
            capacity.release()

    await in_line(body, count)


async def one_dimension_in_line(count: int) -> None:
    limiter = Limiter("bench", requests_per_minute=PLENTY_PER_MINUTE, concurrent=1)

    async def body(rounds: int) -> None:
        for _ in range(rounds):
            async with limiter.reserve() as reservation:
                await trio.lowlevel.checkpoint()
                reservation.settle()

    await in_line(body, count)


async def two_dimensions_in_line(count: int) -> None:
    limiter = two_dimensions(concurrent=1)

    async def body(rounds: int) -> None:
        for _ in range(rounds):
            async with limiter.reserve(tokens=TOKENS) as reservation:
                await trio.lowlevel.checkpoint()
                reservation.settle(tokens=TOKENS)

    await in_line(body, count)


async def in_line(body: Callable[[int], Awaitable[None]], count: int) -> None:
    """Run ``body`` in 1,000 tasks that do ``count`` rounds between them."""
    async with trio.open_nursery() as nursery:
        for _ in range(WAITERS):
            nursery.start_soon(body, max(1, count // WAITERS))


def two_dimensions(*, concurrent: int | None = None) -> Limiter:
    return Limiter(
        "bench",
        requests_per_minute=PLENTY_PER_MINUTE,
        tokens_per_minute=PLENTY_PER_MINUTE,
        concurrent=concurrent,
    )


Case = tuple[str, float | None, Callable[[int], Awaitable[None]]]

ALONE: tuple[Case, ...] = (
    ("1 dimension", 0.7, one_dimension_alone),
    ("2 dimensions", 0.5, two_dimensions_alone),
    ("2 dimensions, half used", None, two_dimensions_used_less_alone),
)
IN_LINE: tuple[Case, ...] = (
    ("1 dimension", 0.7, one_dimension_in_line),
    ("2 dimensions", 0.5, two_dimensions_in_line),
)
