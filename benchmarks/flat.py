"""Does memory stay flat when very many items go through one fan-out?

A separate process pushes the items through `open_fan_out` and reads each result. What counts is how
much its peak memory grows after the first tenth of the items: a leak of only eight bytes per item
would show as 7 MiB in a million.

Run: python -m benchmarks flat
"""

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import trio

import harness
from benchmarks._measure import Measured, Row, at_most, in_words

GROWTH_MIB_AT_MOST = 2.0
"""Room for the allocator's own habits; far less than one word per item."""


def rows(*, quick: bool) -> Iterator[Row]:
    """Push a million items through a stream."""
    count = 20_000 if quick else 1_000_000
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.flat", str(count)],
        cwd=Path(__file__).parent.parent,
        check=True,
        capture_output=True,
        text=True,
    )
    growth_bytes, peak_bytes, seconds = map(float, ended.stdout.split())
    yield at_most(
        f"{count:,} items through open_fan_out, growth of peak memory",
        GROWTH_MIB_AT_MOST,
        Measured.exactly(growth_bytes / 2**20),
        unit="MiB",
        note=f"peak {peak_bytes / 2**20:.1f} MiB; {in_words(seconds / count)} per item",
    )


async def body(item: int) -> int:
    await trio.lowlevel.checkpoint()
    return item


async def stream(count: int) -> tuple[int, int]:
    """Return the peak memory after a tenth of the items, and after all, in bytes."""
    early_bytes = 0
    async with harness.open_fan_out(body, range(count), limit=100) as results:
        async for result in results:
            if result.index == count // 10:
                early_bytes = peak_memory_bytes()
    return early_bytes, peak_memory_bytes()


def peak_memory_bytes() -> int:
    """Return the most memory that this process ever had resident."""
    try:
        with open("/proc/self/status") as status:
            peak = next(line for line in status if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    except (OSError, StopIteration):
        # Not Linux, where it wouldn't work: a new process starts with its parent's peak.
        peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak_rss if sys.platform == "darwin" else peak_rss * 1024


def main() -> None:
    """Run as the separate process."""
    early_bytes, late_bytes = trio.run(stream, int(sys.argv[1]))
    print(late_bytes - early_bytes, late_bytes, time.process_time())


if __name__ == "__main__":
    main()
