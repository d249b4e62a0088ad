"""What does it cost to be watched, with every exporter on?

A fan-out at limit 100 of items that wait 50 ms, as calls to a model do, and log a line. With the
exporters: a trace file, metrics served to Prometheus, spans and metrics sent to a collector in
another process, the run on each log record, and a watch for stalls. What counts is how much longer
the whole takes; then how much the peak memory of a separate process grows after the first fifth of
the runs; and what one item costs in CPU time, by exporter, which is only shown.

Method: wall time except for that, cases interleaved, medians of the ratios.

Run: python -m benchmarks observe
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import trio

import harness
from benchmarks._measure import (
    Measured,
    Row,
    at_most,
    for_comparison,
    in_words,
    own_garbage_only,
    rounds_of,
)
from benchmarks.flat import peak_memory_bytes
from harness.observe import Metrics, exporting, record, serving_metrics, watching_stalls

SECONDS = 0.05
LIMIT = 100
EXPORTERS = ("trace", "metrics", "otlp", "logs", "stalls")

WITH_RUN = "%(run_id)s %(run_path)s %(run_attempt)s %(message)s"

logger = logging.getLogger("benchmark")


def rows(*, quick: bool) -> Iterator[Row]:
    """Measure the time, the memory, and the time of a processor."""
    count = 200 if quick else 2_000
    rounds = rounds_of(5, quick=quick)
    with collector() as url, own_garbage_only():
        cases: dict[str, tuple[str, ...]] = {"none": (), "all": EXPORTERS}
        cases |= {name: (name,) for name in EXPORTERS}
        walls: dict[str, list[float]] = {name: [] for name in cases}
        works: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(rounds):
            for name, exporters in cases.items():
                wall, work = trio.run(watched, exporters, url, count)
                walls[name].append(wall)
                works[name].append(work / count)
        yield at_most(
            f"fan_out of {1_000 * SECONDS:.0f} ms items at limit {LIMIT}, all exporters / none",
            1.1,
            ratio(walls, "all"),
            note=f"{in_words(min(works['all']))} against {in_words(min(works['none']))} of a "
            "processor per item",
        )
        for name in EXPORTERS:
            yield for_comparison(f"fan_out, exporter {name} / none", ratio(walls, name), note=(
                f"{in_words(max(0.0, min(works[name]) - min(works['none'])))} more per item"
            ))  # fmt: skip
        runs = 500 if quick else 10_000
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.observe", url, str(runs)],
            cwd=Path(__file__).parent.parent,
            check=True,
            capture_output=True,
            text=True,
        )
        growth_bytes = int(ended.stdout)
        yield at_most(
            "watched runs with all exporters, growth of peak memory",
            16.0,
            Measured.exactly(growth_bytes / 2**20),
            unit="MiB",
            note=f"{runs:,} runs",
        )


def ratio(walls: dict[str, list[float]], name: str) -> Measured:
    return Measured.of(mine / its for mine, its in zip(walls[name], walls["none"], strict=True))


async def body(item: int) -> int:
    logger.info("asking for %d", item)
    await trio.sleep(SECONDS)
    return item


async def watched(exporters: tuple[str, ...], url: str, count: int) -> tuple[float, float]:
    """Return the seconds that a fan-out took, and those of a processor."""
    async with watching(exporters, url):
        began, worked = time.perf_counter(), time.process_time()
        await harness.fan_out(body, range(count), limit=LIMIT)
        return time.perf_counter() - began, time.process_time() - worked


@asynccontextmanager
async def watching(exporters: tuple[str, ...], url: str) -> AsyncIterator[None]:
    """Turn exporters on."""
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        handler = logging.FileHandler(os.devnull)
        stack.callback(handler.close)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        stack.callback(logger.removeHandler, handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        if "logs" in exporters:
            handler.addFilter(harness.LogFilter())
            handler.setFormatter(logging.Formatter(WITH_RUN))
        if "stalls" in exporters:
            stack.enter_context(watching_stalls(1))
        if "metrics" in exporters:
            stack.enter_context(harness.observing(metrics))
            stack.enter_context(serving_metrics(metrics, 0))
        if "trace" in exporters:
            await stack.enter_async_context(record(f"{folder}/trace.jsonl"))
        if "otlp" in exporters:
            await stack.enter_async_context(exporting(url, metrics=metrics))
        yield


# The collector, in a process of its own -----------------------------------------------------------


@contextmanager
def collector() -> Iterator[str]:
    """Run a collector that keeps nothing; yield its address."""
    command = [sys.executable, "-m", "benchmarks.observe", "collect"]
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{json.loads(process.stdout.readline())}"
        finally:
            process.terminate()


class Swallow(BaseHTTPRequestHandler):
    """Takes whatever it is sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


async def grow(url: str, count: int) -> int:
    """Return by how much the peak memory grew after the first fifth of the runs, in bytes."""
    early_bytes = 0
    async with watching(EXPORTERS, url):
        async with harness.open_fan_out(body, range(count), limit=LIMIT) as results:
            async for result in results:
                if result.index == count // 5:
                    early_bytes = peak_memory_bytes()
    return peak_memory_bytes() - early_bytes


def main() -> None:
    """Run as one of the separate processes."""
    if sys.argv[1] == "collect":
        with HTTPServer(("127.0.0.1", 0), Swallow) as server:
            print(server.server_port, flush=True)
            server.serve_forever()
    print(trio.run(partial(grow, sys.argv[1], int(sys.argv[2]))))


if __name__ == "__main__":
    main()
