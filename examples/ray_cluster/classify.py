"""Classify tickets on a Ray cluster; killed and started again, it goes on where it was.

Shows a batch whose driver may die as well as its workers: the journal is on a server, so the job
can be started again anywhere. Without RAY_ADDRESS it starts a cluster on this machine.

Run:     python examples/ray_cluster/classify.py
Prints:  1,000 tickets: 334 refund, 666 other
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import trio

from harness import current_run
from harness.cluster import RayCluster
from harness.journal import open_journal
from harness.policies import Attempt, Retry

TICKETS = 1_000


def tickets() -> Iterator[tuple[int, str]]:
    """Read the tickets; yours come from a file or a database."""
    for number in range(TICKETS):
        yield number, "a refund, please" if number % 3 == 0 else "just saying hello"


def connect() -> dict[str, str]:
    """Open what a worker needs, once in each: a client for a model, say."""
    return {"word": "refund"}


async def classify(ticket: tuple[int, str]) -> str:
    """Say what a ticket is about. Runs in a worker."""
    client = current_run().deps
    await trio.sleep(0.01)  # The model thinks.
    return "refund" if client["word"] in ticket[1] else "other"


async def main() -> None:
    """Run the batch, and count what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        # A file is enough while the driver's machine lasts.
        place = os.environ.get("JOURNAL") or str(Path(folder) / "run.db")
        async with (
            RayCluster(os.environ.get("RAY_ADDRESS"), workers=2, deps=connect) as cluster,
            open_journal(place) as journal,
        ):
            results = await cluster.fan_out(
                classify,
                tickets(),
                limit=200,
                each=Attempt(timeout=60, retry=Retry(3)),
                key=lambda ticket: ticket[0],
                journal=journal,
                name="tickets",
            )
    counts = Counter(results.values())
    print(f"{len(results):,} tickets: {counts['refund']} refund, {counts['other']} other")


if __name__ == "__main__":
    trio.run(main)
