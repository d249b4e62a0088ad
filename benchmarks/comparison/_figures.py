"""Measure what an import, an install, an item, an agent's turn and a durable step cost.

Medians. Where places are compared, rounds are interleaved in one process, as in the benchmarks.
"""

import asyncio
import gc
import importlib.metadata
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiometer
import anyio
import trio
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import harness
from benchmarks import _agent_peers, agents
from benchmarks._measure import in_words, interleaved, timed_in_asyncio, timed_in_trio
from benchmarks.comparison._record import PLACES
from harness.journal import open_journal

LIMIT = 100


def imports(rounds: int = 3) -> dict[str, str]:
    """Return the CPU time that importing each takes, in a new process."""
    taken: dict[str, list[float]] = {name: [] for name, _, _ in PLACES.values()}
    for _ in range(rounds):
        for name, module, _ in PLACES.values():
            code = (
                f"import time; t = time.process_time(); import {module}; "
                "print(time.process_time() - t)"
            )
            process = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", code],
                capture_output=True,
                text=True,
                check=True,
            )
            taken[name].append(float(process.stdout.split()[-1]))
    return {name: in_words(statistics.median(each)) for name, each in taken.items()}


def installs() -> dict[str, str]:
    """Return how many distributions each brings, itself included, and how large they are."""
    sizes = {}
    for name, _, distribution in PLACES.values():
        if not distribution:
            sizes[name] = "none"
            continue
        closure = needed(distribution)
        size = sum(
            (file.size or 0) for each in closure for file in importlib.metadata.files(each) or []
        )
        if name == "harness":  # An editable install lists no files of its own.
            size += sum(path.stat().st_size for path in Path(harness.__file__).parent.rglob("*.py"))
        sizes[name] = f"{len(closure)}, {size / 1e6:,.0f} MB"
    return sizes


def needed(distribution: str) -> set[str]:
    """Return a distribution and all that it needs on this machine."""
    found: dict[str, set[str]] = {}
    waiting = [Requirement(distribution)]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        extras = {"", *wanted.extras} - found.get(name, set())
        found.setdefault(name, set()).update(extras)
        for line in importlib.metadata.requires(name) or [] if extras else []:
            need = Requirement(line)
            if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(need)
    return set(found)


async def _body(item: int) -> int:
    await trio.lowlevel.checkpoint()
    return item


async def _asyncio_body(item: int) -> int:
    await asyncio.sleep(0)
    return item


async def _bare(count: int) -> None:
    for item in range(count):
        await _body(item)


async def _fan_out(count: int) -> None:
    await harness.fan_out(_body, range(count), limit=LIMIT)


async def _stream(count: int) -> None:
    async with harness.open_fan_out(_body, range(count), limit=LIMIT) as results:
        async for _ in results:
            pass


async def _nursery(count: int) -> None:
    async with trio.open_nursery() as nursery:
        for item in range(count):
            nursery.start_soon(_body, item)


async def _task_group(count: int) -> None:
    async with asyncio.TaskGroup() as group:
        for item in range(count):
            group.create_task(_asyncio_body(item))


async def _anyio(count: int) -> None:
    async with anyio.create_task_group() as group:
        for item in range(count):
            group.start_soon(_asyncio_body, item)


async def _aiometer(count: int) -> None:
    async with aiometer.amap(_asyncio_body, range(count), max_at_once=LIMIT) as results:
        async for _ in results:
            pass


def items() -> dict[str, str]:
    """Return the CPU time per item of one checkpoint, beside that of a bare loop."""
    benches = {
        "a bare loop on trio": timed_in_trio(_bare),
        "harness": timed_in_trio(_fan_out),
        "trio nurseries": timed_in_trio(_nursery),
        "asyncio.TaskGroup": timed_in_asyncio(_task_group),
        "anyio": timed_in_asyncio(_anyio),
        "aiometer": timed_in_asyncio(_aiometer),
    }
    return _beside("a bare loop on trio", benches, count=2_000, rounds=15)


def memory(count: int = 10_000) -> dict[str, str]:
    """Return the peak memory (tracemalloc) while items are taken from a source and done."""
    ways: dict[str, Callable[[], Any]] = {
        "a bare loop on trio": lambda: trio.run(_bare, count),
        "harness": lambda: trio.run(_stream, count),
        "trio nurseries": lambda: trio.run(_nursery, count),
        "asyncio.TaskGroup": lambda: asyncio.run(_task_group(count)),
        "anyio": lambda: asyncio.run(_anyio(count)),
        "aiometer": lambda: asyncio.run(_aiometer(count)),
    }
    peaks = {}
    for name, way in ways.items():
        way()  # Imports and caches are not its memory.
        gc.collect()
        tracemalloc.start()
        way()
        peaks[name] = f"{tracemalloc.get_traced_memory()[1] / 2**20:.1f} MiB"
        tracemalloc.stop()
    return peaks


def turns() -> dict[str, str]:
    """Return the CPU time per agent run with one tool call, beside that of a bare loop."""
    benches = {
        "a bare loop on trio": agents.SERIAL["a tool turn, bare"],
        "harness": agents.SERIAL["a tool turn"],
    }
    for name, make in _agent_peers.frameworks().items():
        benches[name] = timed_in_asyncio(_times(make(with_tool=True)))
    return _beside("a bare loop on trio", benches, count=50, rounds=9)


def _times(once: Callable[[], Awaitable[str]]) -> Callable[[int], Any]:
    async def bench(count: int) -> None:
        for _ in range(count):
            assert await once() == _agent_peers.ANSWER

    return bench


def _beside(floor: str, benches: dict[str, Any], *, count: int, rounds: int) -> dict[str, str]:
    samples = interleaved(benches, count=count, rounds=rounds)
    return {
        name: f"{in_words(samples.each(name))}, {samples.ratio(name, floor).middle:.1f} ×"
        for name in benches
    }


def durable_steps(rounds: int = 5, count: int = 100) -> dict[str, str]:
    """Return the time per durable step, one after the other, both on SQLite on this disk."""
    dbos = importlib.import_module("dbos").DBOS

    @dbos.step()  # type: ignore[untyped-decorator]
    def step(item: int) -> int:
        return item

    @dbos.workflow()  # type: ignore[untyped-decorator]
    def steps(count: int) -> float:
        began_at = time.perf_counter()
        for item in range(count):
            step(item)
        return time.perf_counter() - began_at

    async def here(count: int, path: str) -> float:
        async with open_journal(path) as journal:
            began_at = time.perf_counter()
            await harness.fan_out(_body, range(count), limit=1, journal=journal, key=str)
            return time.perf_counter() - began_at

    taken: dict[str, list[float]] = {"harness": [], "DBOS": []}
    with tempfile.TemporaryDirectory() as folder:
        dbos(
            config={
                "name": "comparison",
                "system_database_url": f"sqlite:///{folder}/dbos.sqlite",
                "log_level": "ERROR",
            }
        )
        dbos.launch()
        for number in range(rounds):
            taken["harness"].append(trio.run(here, count, f"{folder}/{number}.db"))
            taken["DBOS"].append(steps(count))
        dbos.destroy()
    return {name: in_words(statistics.median(each) / count) for name, each in taken.items()}


def all_figures() -> dict[str, dict[str, str]]:
    """Measure everything."""
    return {
        "import, CPU time": imports(),
        "distributions and size": installs(),
        "an item, CPU time": items(),
        "peak memory of 10,000 items": memory(),
        "an agent's turn with a tool, CPU time": turns(),
        "a durable step, time": durable_steps(),
    }
