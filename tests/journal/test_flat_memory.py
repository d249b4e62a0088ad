"""A large journal is resumed in memory that doesn't grow with it."""

from __future__ import annotations

import resource
import sys
import tracemalloc
from pathlib import Path

import pytest
import trio

import harness
from harness.journal import open_journal
from tests.scale import scaled

pytestmark = pytest.mark.real_clock

ITEMS = scaled(4_000, full=1_000_000)
TRACED_ITEMS = min(ITEMS, 100_000)
"""To have each allocation traced makes a session several times as slow."""

BYTES_MORE_AT_MOST = 150_000
"""Between a third of those items and all; a hundred bytes for each would be many times that."""


async def work(item: int) -> int:
    await trio.lowlevel.checkpoint()
    return item


async def session(path: Path, count: int = ITEMS) -> tuple[int, int, int]:
    """Go through so many items of a journal.

    Returns:
      How often the function ran, and the memory after a third of the items, and after all.
    """
    ran = 0

    async def counted(item: int) -> int:
        nonlocal ran
        ran += 1
        return await work(item)

    read = traced = 0
    async with open_journal(path) as journal:
        async with harness.open_fan_out(
            counted, range(count), limit=100, journal=journal, key=lambda item: item
        ) as stream:
            async for result in stream:
                assert result.value == result.item
                read += 1
                if read == count // 3:
                    traced = _traced_bytes()
            return ran, traced, _traced_bytes()


def _traced_bytes() -> int:
    return tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0


def _peak_rss_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1_024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_resuming_a_large_journal_is_flat_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    ran, _, _ = await session(path)
    assert ran == ITEMS
    before = _peak_rss_bytes()
    ran, _, _ = await session(path)
    assert ran == 0
    # The index of keys and the pages of the file; both caches are bounded.
    assert _peak_rss_bytes() - before < 80_000_000
    tracemalloc.start()
    try:
        ran, a_third, all_of_it = await session(path, TRACED_ITEMS)
    finally:
        tracemalloc.stop()
    assert ran == 0
    assert all_of_it - a_third < BYTES_MORE_AT_MOST
