"""What does a pipeline cost, against a fan-out of one body, and against workers over channels?

Every case takes its items through two stages of one checkpoint each, eight at a time in each. The
fan-out calls both stages in one body, so there is no backpressure between them. The workers are
what you would write by hand in trio: they keep the values in input order, and know nothing about
failures, keys or runs. The peer on asyncio uses its own checkpoint.

Run: python -m benchmarks flow
"""

from collections.abc import Iterator

import trio

import harness
from benchmarks import _peers
from benchmarks._measure import (
    Bench,
    Row,
    at_most,
    for_comparison,
    interleaved,
    not_installed,
    rounds_of,
    timed_in_asyncio,
    timed_in_trio,
)
from benchmarks.fan_out import asyncio_body, body
from harness.flow import Pipeline, Router, stage, track

LIMIT = 8
BUFFER = 16


def rows(*, quick: bool) -> Iterator[Row]:
    """Measure a pipeline against a fan-out, workers over channels, and aiostream."""
    benches = CASES | ({} if _peers.AIOSTREAM_MISSING else PEERS)
    samples = interleaved(benches, count=200 if quick else 4_000, rounds=rounds_of(21, quick=quick))
    for floor, budget in (("fan_out of the fused body", 1.25), ("workers over channels", 1.0)):
        yield at_most(
            f"pipeline, 2 stages / {floor}",
            budget,
            samples.ratio("pipeline", floor),
            note=samples.note("pipeline", floor, per="item"),
        )
    yield for_comparison(
        "router, 2 tracks / fan_out of the fused body",
        samples.ratio("router", "fan_out of the fused body"),
        note=samples.note("router", "fan_out of the fused body", per="item"),
    )
    if _peers.AIOSTREAM_MISSING:
        yield not_installed("pipeline, 2 stages / aiostream")
    else:
        yield for_comparison(
            "pipeline, 2 stages / aiostream",
            samples.ratio("pipeline", "aiostream"),
            note=samples.note("pipeline", "aiostream", per="item"),
        )


# Ours --------------------------------------------------------------------------------------------


async def pipeline(count: int) -> None:
    await Pipeline(stage(body, limit=LIMIT), stage(body, limit=LIMIT), buffer=BUFFER).run(
        range(count)
    )


async def fused(count: int) -> None:
    await harness.fan_out(both, range(count), limit=LIMIT)


async def both(item: int) -> int:
    return await body(await body(item))


async def router(count: int) -> None:
    def classify(item: int) -> str:
        return "even" if item % 2 == 0 else "odd"

    await Router(
        classify, tracks={"even": track(both, limit=LIMIT), "odd": track(both, limit=LIMIT)}
    ).run(range(count), limit=LIMIT)


# Floors ------------------------------------------------------------------------------------------


async def workers(count: int) -> None:
    """Let eight workers per stage take items from a channel and send them to the next."""
    to_first, at_first = trio.open_memory_channel[tuple[int, int]](BUFFER)
    to_second, at_second = trio.open_memory_channel[tuple[int, int]](BUFFER)
    to_end, at_end = trio.open_memory_channel[tuple[int, int]](BUFFER)
    values = [0] * count

    async def feed() -> None:
        async with to_first:
            for numbered in enumerate(range(count)):
                await to_first.send(numbered)

    async def work(
        source: trio.MemoryReceiveChannel[tuple[int, int]],
        target: trio.MemorySendChannel[tuple[int, int]],
    ) -> None:
        async with source, target:
            async for index, item in source:
                await target.send((index, await body(item)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        async with at_first, to_second, at_second, to_end:
            for _ in range(LIMIT):
                nursery.start_soon(work, at_first.clone(), to_second.clone())
                nursery.start_soon(work, at_second.clone(), to_end.clone())
        async for index, value in at_end:
            values[index] = value


# Peers -------------------------------------------------------------------------------------------


async def aiostream(count: int) -> None:
    await _peers.aiostream_two_maps(asyncio_body, count, limit=LIMIT)


CASES: dict[str, Bench] = {
    "pipeline": timed_in_trio(pipeline),
    "fan_out of the fused body": timed_in_trio(fused),
    "router": timed_in_trio(router),
    "workers over channels": timed_in_trio(workers),
}
PEERS: dict[str, Bench] = {"aiostream": timed_in_asyncio(aiostream)}
