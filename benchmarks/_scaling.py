"""How do time and memory grow, from one item to a million, and from one run to a hundred thousand?

Each case is measured in a process of its own, which does the same for every library: items whose
body is one checkpoint, a hundred at a time; runs that all wait at once; and items that are sent to
worker processes. Time is the processor's, per item, of the process that asks; memory is how far the
process's peak rises. Small cases are repeated, and the median counts.

A case is left out once the one before took so long, or so much memory, that it couldn't be borne.

Run: python -m benchmarks scaling
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
import trio

import harness
from benchmarks import _peers
from benchmarks._record import ROOT, conditions, write_record
from benchmarks.fan_out import LIMIT, asyncio_body, body, chain_scopes
from benchmarks.flat import peak_memory_bytes
from harness.cluster import RayCluster

SCALING = ROOT / "benchmarks" / "scaling.json"

_MOST_BYTES = 2**30
_MOST_SECONDS = 90.0
"""What a case may be expected to take, from the one before, and is left out beyond it."""
_MOST_ROUNDS = 30
_GIVE_UP_SECONDS = 600


# Many items, some at a time -----------------------------------------------------------------------


async def stream(count: int) -> None:
    async with harness.open_fan_out(body, range(count), limit=LIMIT) as results:
        async for _ in results:
            pass


async def fan_out(count: int) -> None:
    await harness.fan_out(body, range(count), limit=LIMIT)


async def amap(count: int) -> None:
    await _peers.aiometer_amap(body, count, limit=LIMIT)


async def anyio_group(count: int) -> None:
    await _peers.anyio_task_group(body, count, limit=LIMIT, timeout_seconds=30.0)


async def task_group(count: int) -> None:
    semaphore = asyncio.Semaphore(LIMIT)

    async def one(item: int) -> None:
        async with semaphore:
            await asyncio_body(item)

    async with asyncio.TaskGroup() as group:
        for item in range(count):
            group.create_task(one(item))


# Many runs at once --------------------------------------------------------------------------------


async def runs_at_once(count: int) -> None:
    waiting, all_wait = 0, trio.Event()

    async def waits(item: int) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == count:
            all_wait.set()
        await all_wait.wait()

    async with harness.open_fan_out(waits, range(count), limit=count) as results:
        async for _ in results:
            pass


async def tasks_at_once(count: int) -> None:
    waiting, all_wait = 0, trio.Event()

    async def waits() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == count:
            all_wait.set()
        await all_wait.wait()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(waits)


async def asyncio_tasks_at_once(count: int) -> None:
    waiting, all_wait = 0, asyncio.Event()

    async def waits() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == count:
            all_wait.set()
        await all_wait.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(waits())


async def anyio_tasks_at_once(count: int) -> None:
    anyio = import_module("anyio")
    waiting, all_wait = 0, anyio.Event()

    async def waits() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == count:
            all_wait.set()
        await all_wait.wait()

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(waits)


# Several processes --------------------------------------------------------------------------------

_SENT = 2_000
"""Items that are sent to the workers, however many there are."""


def over_harness(workers: int) -> tuple[float, float]:
    """Send items to the workers of a `RayCluster`; return its CPU seconds, and how far it rose."""

    async def main() -> tuple[float, float]:
        async with RayCluster(workers=workers, cpus_per_worker=0.1) as cluster:
            await cluster.fan_out(_in_worker, range(100), limit=LIMIT)  # Workers are warm then.
            before, began = peak_memory_bytes(), time.process_time()
            await cluster.fan_out(_in_worker, range(_SENT), limit=LIMIT)
            return time.process_time() - began, peak_memory_bytes() - before

    return trio.run(main)


async def _in_worker(item: int) -> int:
    return item


def over_ray(workers: int) -> tuple[float, float]:
    """Send them to tasks of Ray itself, as many at a time."""
    ray: Any = import_module("ray")
    ray.init(
        num_cpus=workers,
        include_dashboard=False,
        configure_logging=True,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    task = ray.remote(_plain_in_worker)

    def send(count: int) -> None:
        items = iter(range(count))
        flying = {task.remote(item) for item, _ in zip(items, range(LIMIT), strict=False)}
        while flying:
            done, rest = ray.wait(list(flying))
            ray.get(done)
            flying = {*rest, *(task.remote(item) for item, _ in zip(items, done, strict=False))}

    try:
        send(100)
        before, began = peak_memory_bytes(), time.process_time()
        send(_SENT)
        return time.process_time() - began, peak_memory_bytes() - before
    finally:
        ray.shutdown()


def _plain_in_worker(item: int) -> int:
    return item


# The cases ----------------------------------------------------------------------------------------


@attrs.frozen
class Case:
    """Something that is done for growing counts."""

    part: str
    name: str
    run: Callable[[int], Any]
    counts: tuple[int, ...]
    on: str = "trio"
    """What it is run by: ``"trio"``, ``"asyncio"``, or ``""`` if it runs itself."""


ITEMS = tuple(10**power for power in range(7))
RUNS = ITEMS[:-1]
PROCESSES = (1, 2, 4, 8)

CASES = [
    Case("items", "harness.open_fan_out", stream, ITEMS),
    Case("items", "harness.fan_out", fan_out, ITEMS),
    Case("items", "a bare nursery, 100 at a time", chain_scopes, ITEMS),
    Case("items", "aiometer.amap", amap, ITEMS),
    Case("items", "anyio task group", anyio_group, ITEMS),
    Case("items", "asyncio.TaskGroup", task_group, ITEMS, "asyncio"),
    Case("runs", "harness.open_fan_out", runs_at_once, RUNS),
    Case("runs", "a bare nursery", tasks_at_once, RUNS),
    Case("runs", "anyio task group", anyio_tasks_at_once, RUNS),
    Case("runs", "asyncio.TaskGroup", asyncio_tasks_at_once, RUNS, "asyncio"),
    Case("processes", "harness.RayCluster", over_harness, PROCESSES, ""),
    Case("processes", "Ray tasks", over_ray, PROCESSES, ""),
]


def measured(case: Case, count: int) -> dict[str, float]:
    """Measure a case in this process."""
    if not case.on:
        seconds, grown = case.run(count)
        return {"seconds": seconds / _SENT, "bytes": grown / _SENT}
    rounds = min(_MOST_ROUNDS, max(1, 20_000 // count))
    _timed(case, 1)  # What is made only once isn't counted.
    before = peak_memory_bytes()
    seconds = statistics.median(_timed(case, count) for _ in range(rounds))
    return {"seconds": seconds / count, "bytes": (peak_memory_bytes() - before) / count}


def _timed(case: Case, count: int) -> float:
    run: Callable[[int], Awaitable[object]] = case.run

    async def main() -> float:
        began = time.process_time()
        await run(count)
        return time.process_time() - began

    return asyncio.run(main()) if case.on == "asyncio" else trio.run(main)


def measure(path: Path = SCALING, *, most: int = 10**9, part: str | None = None) -> None:
    """Measure all cases, each in a process of its own, and write the record.

    Args:
      path: Where the record goes.
      most: The largest count.
      part: Only this one; by default all.
    """
    points = []
    for index, case in enumerate(CASES):
        if part in (None, case.part):
            for point in _points(index, case, most):
                points.append(point)
                print(
                    f"{case.part:<10} {case.name:<32} {point['count']:>9,}  "
                    f"{point['seconds'] * 1e6:>8.1f} µs  {point['bytes'] / 1024:>8.2f} KiB",
                    flush=True,
                )
    write_record(path, {**conditions(), "points": points})


def _points(index: int, case: Case, most: int) -> Iterator[dict[str, Any]]:
    if _peers.MISSING and case.name.startswith(("aiometer", "anyio")):
        return
    for count in case.counts:
        if count > most:
            return
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks._scaling", str(index), str(count)],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            timeout=_GIVE_UP_SECONDS,
        )
        if ended.returncode:
            print(f"{case.name}, {count:,}: {ended.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        found = json.loads(ended.stdout.splitlines()[-1])
        yield {"part": case.part, "name": case.name, "count": count, **found}
        next_count = 10 * count
        too_much = next_count * found["bytes"] > _MOST_BYTES
        if case.on and (too_much or next_count * found["seconds"] > _MOST_SECONDS):
            return


if __name__ == "__main__":
    print(json.dumps(measured(CASES[int(sys.argv[1])], int(sys.argv[2]))))
