"""Do the next thing when every task of a controlled program is waiting.

The clock is virtual and moves here: to the next deadline, if there is one. If there is none, and
no worker thread or socket can wake a task either, nothing ever will: a deadlock. (The clock's own
autojump can't tell the two apart; it spins forever on a deadlock.)

While a worker thread runs or a task waits for a socket, the virtual clock stands still: real time
passes for them, and the program's timeouts mustn't strike because of that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import attrs
import outcome
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from harness.testing.schedules._blocked import BlockedTask, blocked_tasks, waits_outside
from harness.testing.schedules._control import Control

THREADS_MAX_SECONDS = 60.0
"""Real seconds a program may wait for a worker thread with nothing else to do."""

SOCKETS_MAX_SECONDS = 5.0
"""The same for a socket, when nothing else can happen either."""

SOCKETS_GLANCE_SECONDS = 0.05
"""The same for a socket when the clock could move instead. A server waits forever; what comes over
loopback comes at once."""

_GLANCE_SECONDS = 0.002


class Broken(BaseException):
    """Thrown into a task of a deadlocked program that ignores its cancel, so that it ends."""


@attrs.define(eq=False)
class Idle:
    """What to do when nothing can go on, and what that showed."""

    control: Control
    clock: MockClock
    cut_short: Callable[[], None]
    """Cancels the whole program."""

    main_ended: bool = attrs.field(default=False, init=False)
    stop_driving: Callable[[], None] = attrs.field(default=lambda: None, init=False)
    """Ends the driver when nothing is left to drive."""

    deadlocked: list[BlockedTask] | None = attrs.field(default=None, init=False)
    outside: set[str] = attrs.field(factory=set[str], init=False)
    """What the program waited for that no schedule controls."""

    _waiting_since: float = attrs.field(default=0.0, init=False)
    _steps: int = attrs.field(default=-1, init=False)

    async def __call__(self) -> None:
        """Move the clock, wait for the outside, or end the program."""
        if self.main_ended and not self.control.live_tasks():
            self.stop_driving()
            return
        outside = waits_outside(self.control)
        seconds = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if outside and self._may_wait(outside, clock_could_move=seconds < math.inf):
            self.outside |= outside
            await wait_all_tasks_blocked(_GLANCE_SECONDS)
            return
        if self.control.deliver_one(time_could_pass=seconds < math.inf):
            return
        if seconds < math.inf:
            self.clock.jump(max(seconds, 0.0))
            return
        if self.deadlocked is None:
            self.deadlocked = blocked_tasks(self.control)
            self.control.cut_short = True
            self.cut_short()
        else:
            # Already cancelled, and everything is waiting again: behind shields.
            for task in self.control.live_tasks():
                if not task.child_nurseries:
                    trio.lowlevel.reschedule(task, outcome.Error(Broken()))

    def _may_wait(self, outside: set[str], *, clock_could_move: bool) -> bool:
        now = time.monotonic()
        if self.control.steps != self._steps:
            self._steps = self.control.steps
            self._waiting_since = now
        if outside & {"worker threads", "real time"}:
            most_seconds = THREADS_MAX_SECONDS
        else:
            most_seconds = SOCKETS_GLANCE_SECONDS if clock_could_move else SOCKETS_MAX_SECONDS
        return now - self._waiting_since < most_seconds
