"""Keep a virtual clock from jumping while the writer's thread works.

`trio.testing.MockClock` jumps to the next deadline when every task waits. A task that waits for the
disk looks the same to it as one that sleeps, so without this a timeout of an hour would strike
while a commit of a tenth of a millisecond is under way. The clock holds still as long as some task
is in `wait_all_tasks_blocked`; so one is put there while something is under way. Other tasks that
use that function aren't disturbed: the one with the shortest cushion is served first.
"""

from __future__ import annotations

import math

import trio
from trio.testing import MockClock, wait_all_tasks_blocked


class ClockHold:
    """Counts what is under way; holds the clock of this trio run while there is any."""

    def __init__(self) -> None:
        self._needed = isinstance(trio.lowlevel.current_clock(), MockClock)
        self._under_way = 0
        self._holding: trio.CancelScope | None = None

    def begin(self) -> None:
        """Note that something is under way."""
        self._under_way += 1
        if self._needed and self._holding is None:
            self._holding = trio.CancelScope()
            trio.lowlevel.spawn_system_task(_hold, self._holding, name="a virtual clock held still")

    def end(self, count: int) -> None:
        """Note that so many of them are over."""
        self._under_way -= count
        if self._holding is not None and not self._under_way:
            self._holding.cancel()
            self._holding = None


async def _hold(scope: trio.CancelScope) -> None:
    with scope:
        await wait_all_tasks_blocked(cushion=math.inf)
