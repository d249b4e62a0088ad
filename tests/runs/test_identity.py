"""A run has an identity of its own: slotted, hashable, and with a name unique to all processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import harness
from tests.scale import PATIENCE_SECONDS

PRINT_IDS = """
import os
import trio
import harness

async def main():
    for _ in range(20):
        async with harness.open_run("job") as run:
            print(run.id, run.idempotency_key, flush=True)

trio.run(main)
if hasattr(os, "fork"):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    trio.run(main)
"""


@pytest.mark.slow
def test_ids_are_unique_across_processes_also_after_a_fork() -> None:
    """A forked worker that goes on counting where its parent does gives every id out twice."""
    lines: list[str] = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PRINT_IDS],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        )
        lines += done.stdout.split("\n")
    words = [line.split() for line in lines if line]
    per_process = 60 if hasattr(os, "fork") else 20
    assert len(words) == 2 * per_process
    assert len({run_id for run_id, _ in words}) == 2 * per_process
    assert len({key for _, key in words}) == 2 * per_process


async def test_runs_are_slotted() -> None:
    """A misspelt attribute must not be stored silently, and a run must stay small."""
    async with harness.open_run("job") as run:
        assert not hasattr(run, "__dict__")
        with pytest.raises(AttributeError):
            run.cancel_raeson = "typo"  # type: ignore[attr-defined]


async def test_the_state_of_a_run_is_read_only() -> None:
    async with harness.open_run("job") as run:
        for name in ("status", "parent", "started_at", "ended_at", "deadline", "cancel_reason"):
            with pytest.raises(AttributeError):
                setattr(run, name, "changed")


async def test_runs_are_compared_by_identity() -> None:
    async with harness.open_run("job") as first, harness.open_run("job") as second:
        assert first != second
        assert len({first, second, first}) == 2
