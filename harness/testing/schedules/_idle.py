"""Do the next thing when every task of a controlled program is waiting.

The clock is virtual and moves here: to the next deadline, if there is one. If there is none, and
no worker thread or socket can wake a task either, nothing ever will: a deadlock. (The clock's own
autojump can't tell the two apart; it spins forever on a deadlock.)

While a worker thread runs or a task waits for a socket, the virtual clock stands still: real time
passes for them, and the program's timeouts mustn't strike because of that.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import attrs
import outcome
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from harness import asyncio_bridge
from harness.testing.schedules._control import Control
from harness.testing.schedules._ending import Ending
from harness.testing.schedules._outside import OutsideWaits

_GLANCE_SECONDS = 0.002


_OUTSIDE = {
    **dict.fromkeys(("to_thread_run_sync", "run_process"), "worker threads"),
    # With no wish for real time it would have ended when everything waits; so it has one. Code that
    # works in threads of its own holds a virtual clock still in this way.
    "wait_all_tasks_blocked": "real time",
    **dict.fromkeys(("wait_readable", "wait_writable", "_epoll_wait"), "sockets"),
}
"""Functions of trio whose wait ends when something outside of the loop does, and what that is."""


_BRIDGE = os.path.dirname(os.path.abspath(asyncio_bridge.__file__)) + os.sep
"""Where the code is that waits for an asyncio loop in a thread of its own."""


class Broken(BaseException):
    """Thrown into a task of a deadlocked program that ignores its cancel, so that it ends."""


@attrs.define(eq=False)
class Idle:
    """What to do when nothing can go on."""

    control: Control
    clock: MockClock
    ending: Ending

    main_ended: bool = attrs.field(default=False, init=False)
    stop_driving: Callable[[], None] = attrs.field(default=lambda: None, init=False)
    """Ends the driver when nothing is left to drive."""

    _outside_waits: OutsideWaits = attrs.field(factory=OutsideWaits, init=False)

    async def __call__(self) -> None:
        """Move the clock, wait for the outside, or end the program."""
        if self.main_ended and not self.control.live():
            self.stop_driving()
            return
        outside = _waits_outside(self.control)
        seconds = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if outside and self._outside_waits.may_wait(
            self.control, outside, clock_could_move=seconds < math.inf
        ):
            self.ending.outside |= outside
            await wait_all_tasks_blocked(_GLANCE_SECONDS)
            return
        if self.control.deliver_one(time_could_pass=seconds < math.inf):
            return
        if seconds < math.inf:
            self.clock.jump(max(seconds, 0.0))
            return
        if not self.ending.for_deadlock(self.control):
            for task in self.control.live():
                assert isinstance(task, trio.lowlevel.Task)
                if not task.child_nurseries:
                    trio.lowlevel.reschedule(task, outcome.Error(Broken()))


def _waits_outside(control: Control) -> set[str]:
    """Return what outside of the loop tasks wait for: ``"worker threads"``, ``"sockets"``, ...."""
    found: set[str] = set()
    for task in control.live():
        # The functions of trio that wait are within a few frames of the end.
        for frame, _ in control.loop_frames(task)[-6:]:
            if frame.f_code.co_name in _OUTSIDE:
                found.add(_OUTSIDE[frame.f_code.co_name])
            elif frame.f_code.co_filename.startswith(_BRIDGE):
                found.add("worker threads")
    return found
