"""A Ctrl-C at any line around a journal's file ends the program, and the next session goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.journal import open_journal
from tests.scale import FULL
from tests.support.keyboard_interrupts import strike_each_line


class Batch:
    """A batch in a file of its own each time, and what it has done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0
        self.ran: list[int] = []
        self.told: list[int] = []

    async def flaky(self, item: int) -> int:
        self.ran.append(item)
        await trio.sleep(0.1)
        if item == 1:
            raise ValueError(item)
        return item

    async def run(self) -> None:
        path = self.folder / f"{self.number}.db"
        async with open_journal(path) as journal:
            async with harness.open_fan_out(
                self.flaky,
                [1, 2, 3],
                key=str,
                journal=journal,
                name="b",
                policy=harness.BestEffort(),
                each=harness.Attempt(retry=harness.Retry(2, first_delay=1)),
            ) as stream:
                async for result in stream:
                    if result.status in ("ok", "failed"):
                        self.told.append(result.item)

    def go_on(self) -> None:
        """Run it again, as the next session, and begin another."""
        told, self.told, self.ran = self.told, [], []
        trio.run(self.run, clock=MockClock(autojump_threshold=0))
        assert sorted(self.told) == [1, 2, 3]
        assert not set(told) & set(self.ran), "what was told ran again"
        self.told = []
        self.number += 1


@pytest.mark.slow
def test_at_any_line_of_a_journaled_batch(tmp_path: Path) -> None:
    """The process kept the file's lock, so in a notebook the next cell could not open it."""
    batch = Batch(tmp_path)
    places = ["fanout", "journal", "runs/_carry.py"]
    step = 1 if FULL else 31
    assert strike_each_line(batch.run, places, batch.go_on, step=step) > 300
