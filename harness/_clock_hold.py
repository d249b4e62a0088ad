"""Keep a virtual clock from jumping while something outside trio works: a thread, a disk.

`trio.testing.MockClock` jumps to the next deadline when every task is waiting. A task waiting for
the disk looks to it like one that sleeps, so without this a timeout of an hour would strike during
a commit of a tenth of a millisecond. The clock holds still while some task is in
`wait_all_tasks_blocked`; so one is put there while something is in progress. Other tasks that use
that function aren't disturbed: the one with the shortest cushion is served first.

Why not use the clock's ``autojump_threshold``: everybody holding it at the same time would have to
agree on which value to restore, and tests set it as well. And a task can be seen: that is how the
testing kit, which moves its own clock, knows that a program is waiting for real time.

`trio.testing` imports pytest if that is installed, which takes longer than all of harness. So it is
looked up, not imported: until somebody has imported it, no clock is a `MockClock`.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from trio.testing import MockClock

_without_end: trio.lowlevel.RunVar[int] = trio.lowlevel.RunVar(
    "harness: clock held without end", default=0
)
"""How many hold the clock for as long as it takes; then nobody's patience counts."""


class ClockHold:
    """Counts what is in progress; holds the clock of this trio run while anything is.

    On a real clock it only counts.
    """

    def __init__(self, patience_seconds: float = math.inf) -> None:
        """Prepare to hold the clock of the current ``trio.run``.

        Args:
          patience_seconds: Real seconds without any task step, after which the clock jumps all the
            same.
        """
        clock = trio.lowlevel.current_clock()
        virtual: type[MockClock] | None
        virtual = getattr(sys.modules.get("trio.testing"), "MockClock", None)
        self._clock = clock if virtual is not None and isinstance(clock, virtual) else None
        self._patience_seconds = patience_seconds
        self._under_way = 0
        self._holding: trio.CancelScope | None = None

    def begin(self) -> None:
        """Note that something is in progress."""
        self._under_way += 1
        if self._clock is not None and self._holding is None:
            self._holding = trio.CancelScope()
            trio.lowlevel.spawn_system_task(
                self._hold, self._holding, self._clock, name="a virtual clock held still"
            )

    def end(self, count: int = 1) -> None:
        """Note that this many of them are over."""
        self._under_way -= count
        if self._holding is not None and not self._under_way:
            self._holding.cancel()
            self._holding = None

    async def _hold(self, scope: trio.CancelScope, clock: MockClock) -> None:
        wait_all_tasks_blocked = sys.modules["trio.testing"].wait_all_tasks_blocked
        endless = self._patience_seconds == math.inf
        _without_end.set(_without_end.get() + endless)
        try:
            with scope:
                while True:  # Ends when the scope is cancelled.
                    await wait_all_tasks_blocked(cushion=self._patience_seconds)
                    seconds = trio.lowlevel.current_statistics().seconds_to_next_deadline
                    if clock.autojump_threshold < math.inf > seconds and not _without_end.get():
                        clock.jump(max(seconds, 0.0))
        finally:
            _without_end.set(_without_end.get() - endless)
