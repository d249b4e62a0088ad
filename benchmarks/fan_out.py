"""What does an item of a fan-out cost, against plain trio and against other libraries?

Every case runs the same body, one checkpoint, for every item; limits are 100. The floors keep no
results, have no keys and copy no contexts: they are the least a program could do. The peers do what
their users would write; those on asyncio use its own checkpoint.

Run: python -m benchmarks fan_out
"""

import asyncio
import functools
from collections.abc import Iterator

import trio

import harness
from benchmarks import _peers
from benchmarks._measure import (
    Bench,
    Row,
    Samples,
    at_most,
    for_comparison,
    interleaved,
    not_installed,
    rounds_of,
    timed_in_asyncio,
    timed_in_trio,
)

LIMIT = 100
TIMEOUT_SECONDS = 30.0


def rows(*, quick: bool) -> Iterator[Row]:
    """Measure a fan-out, with and without a timeout, against everything else."""
    benches = CASES | ({} if _peers.MISSING else PEERS)
    samples = interleaved(benches, count=200 if quick else 4_000, rounds=rounds_of(21, quick=quick))
    yield _against(samples, "fan_out", "chain, scopes", 1.4)
    yield _against(samples, "fan_out, timeout", "chain, timeouts", 1.5)
    yield _against(samples, "fan_out", "start_soon", 2.5)
    yield _against(samples, "fan_out, timeout", "start_soon", 3.0)
    yield _against(samples, "fan_out, timeout", "asyncio.TaskGroup", 1.5)
    if _peers.MISSING:
        yield not_installed("fan_out / aiometer.amap", at_most=0.5)
        yield not_installed("fan_out, timeout / anyio task group")
    else:
        yield _against(samples, "fan_out", "aiometer.amap", 0.5)
        yield for_comparison(
            "fan_out, timeout / anyio task group",
            samples.ratio("fan_out, timeout", "anyio task group"),
            note=samples.note("fan_out, timeout", "anyio task group", per="item"),
        )
    yield from _failures(quick=quick)
    yield from _priorities(quick=quick)


def _against(samples: Samples, case: str, floor: str, budget: float) -> Row:
    return at_most(
        f"{case} / {floor}",
        budget,
        samples.ratio(case, floor),
        note=samples.note(case, floor, per="item"),
    )


def _failures(*, quick: bool) -> Iterator[Row]:
    """Compare a batch in which every tenth item fails with one in which none does."""
    benches = {
        "no failures": timed_in_trio(functools.partial(best_effort, fails_every=0)),
        "10 % failures": timed_in_trio(functools.partial(best_effort, fails_every=10)),
    }
    samples = interleaved(benches, count=200 if quick else 4_000, rounds=rounds_of(21, quick=quick))
    yield _against(samples, "10 % failures", "no failures", 1.25)


def _priorities(*, quick: bool) -> Iterator[Row]:
    """Compare a batch that starts items by their priority with one in input order."""
    benches = {
        "fan_out": timed_in_trio(fan_out),
        "fan_out, priorities": timed_in_trio(fan_out_priorities),
    }
    samples = interleaved(benches, count=200 if quick else 4_000, rounds=rounds_of(21, quick=quick))
    yield _against(samples, "fan_out, priorities", "fan_out", 1.3)


async def body(item: int) -> int:
    await trio.lowlevel.checkpoint()
    return item


# Ours --------------------------------------------------------------------------------------------


async def fan_out(count: int) -> None:
    await harness.fan_out(body, range(count), limit=LIMIT)


async def fan_out_priorities(count: int) -> None:
    await harness.fan_out(body, range(count), limit=LIMIT, priority=lambda item: item % 7)


async def fan_out_timeout(count: int) -> None:
    await harness.fan_out(
        body, range(count), limit=LIMIT, each=harness.Attempt(timeout=TIMEOUT_SECONDS)
    )


async def best_effort(count: int, *, fails_every: int) -> None:
    async def may_fail(item: int) -> int:
        await trio.lowlevel.checkpoint()
        if fails_every and item % fails_every == 0:
            raise ValueError(item)
        return item

    await harness.fan_out(may_fail, range(count), limit=LIMIT, policy=harness.BestEffort())


# Floors ------------------------------------------------------------------------------------------


async def start_soon(count: int) -> None:
    async with trio.open_nursery() as nursery:
        for item in range(count):
            nursery.start_soon(body, item)


async def chain_scopes(count: int) -> None:
    """Keep a hundred tasks alive, each with a cancel scope: one that ends starts the next."""
    items = iter(range(count))

    def start_next() -> None:
        for item in items:
            nursery.start_soon(one, item)
            return

    async def one(item: int) -> None:
        with trio.CancelScope():
            await body(item)
        start_next()

    async with trio.open_nursery() as nursery:
        for _ in range(LIMIT):
            start_next()


async def chain_timeouts(count: int) -> None:
    """Do the same with a timeout in each task."""
    items = iter(range(count))

    def start_next() -> None:
        for item in items:
            nursery.start_soon(one, item)
            return

    async def one(item: int) -> None:
        with trio.move_on_after(TIMEOUT_SECONDS):
            await body(item)
        start_next()

    async with trio.open_nursery() as nursery:
        for _ in range(LIMIT):
            start_next()


# Peers -------------------------------------------------------------------------------------------


async def asyncio_body(item: int) -> int:
    await asyncio.sleep(0)
    return item


async def task_group(count: int) -> None:
    semaphore = asyncio.Semaphore(LIMIT)

    async def one(item: int) -> None:
        async with semaphore, asyncio.timeout(TIMEOUT_SECONDS):
            await asyncio_body(item)

    async with asyncio.TaskGroup() as group:
        for item in range(count):
            group.create_task(one(item))


CASES: dict[str, Bench] = {
    "fan_out": timed_in_trio(fan_out),
    "fan_out, timeout": timed_in_trio(fan_out_timeout),
    "start_soon": timed_in_trio(start_soon),
    "chain, scopes": timed_in_trio(chain_scopes),
    "chain, timeouts": timed_in_trio(chain_timeouts),
    "asyncio.TaskGroup": timed_in_asyncio(task_group),
}
PEERS: dict[str, Bench] = {
    "aiometer.amap": timed_in_trio(functools.partial(_peers.aiometer_amap, body, limit=LIMIT)),
    "anyio task group": timed_in_trio(
        functools.partial(
            _peers.anyio_task_group, body, limit=LIMIT, timeout_seconds=TIMEOUT_SECONDS
        )
    ),
}
