"""Make tasks wait in one line, with one deadline for all of them.

Only the head of the line can be granted anything, so only the head needs to know when. It sleeps
under a cancel scope with that deadline; all others are parked without one. Whatever changes the
moment calls `Turnstile.admit`, which moves the deadline from outside, or grants at once. So there
is no timer task, no polling, and a grant wakes at most two tasks: the one that is served, and the
next head, to go to sleep on its own moment.

Invariant, at every checkpoint: nobody waits, or the head's moment lies in the future and the
head sleeps until then, or has been woken to do so, or waits for something that will call
`Turnstile.admit`.

What is granted, and when, is up to the owner, which passes two plain functions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf
from typing import Generic, TypeVar

import attrs
import trio
from trio import current_time  # By name: `trio` has a `__getattr__`, so a look-up costs.
from trio.lowlevel import current_task, reschedule, wait_task_rescheduled

from harness.limits._line import Line, Place

T = TypeVar("T", bound="Waiter")

# When to try again to be alone with what is shared with other processes.
_AGAIN_SECONDS = 0.001

_enable_ki_protection = trio.lowlevel.enable_ki_protection


class Waiter(Place):
    """What can wait at a turnstile: the base class of whatever is asked for.

    One object for both the request and the wait, because a thousand tasks in line touch a thousand
    of them, and the cost of such a line is memory that is no longer cached.
    """

    __slots__ = ("granted", "interrupted", "parked", "scope", "wake_at")

    granted: bool
    """Whether it got what it waited for. All these fields have a meaning only during a wait."""

    interrupted: bool
    """Whether trio ended its sleep, by its deadline or by a cancel, and it hasn't run since."""

    parked: trio.lowlevel.Task | None
    """The task, while it is asleep and not woken yet."""

    scope: trio.CancelScope | None
    """The scope of its sleep, if it has a time to wake up at."""

    wake_at: float
    """That moment, or ``inf``."""

    def abort(self, raise_cancel: object) -> trio.lowlevel.Abort:
        """Let trio end the sleep, and make sure nobody wakes the task a second time."""
        self.parked = None
        self.interrupted = True
        return trio.lowlevel.Abort.SUCCEEDED

    def wake(self) -> None:
        """Let the task run, unless it already does."""
        if self.parked is not None:
            task, self.parked = self.parked, None
            reschedule(task)


@attrs.define(eq=False, repr=False)
class Turnstile(Generic[T]):
    """The line for something that becomes free with time or when others leave.

    Args:
      free_at: Given a waiter and the time, returns when the waiter can be granted what it asks for:
        the time itself if now, ``inf`` if unknown.
      take: Given the same, grants it.
      emptied: Called when the last in line has left, granted or not.
      exclusive: Makes a block in which nobody else, such as another process, changes what `free_at`
        reads. It gives whether that could be had; if not, the line tries again soon.
    """

    _free_at: Callable[[T, float], float]
    _take: Callable[[T, float], None]
    _emptied: Callable[[], None] | None = None
    _exclusive: Callable[[], AbstractContextManager[bool]] | None = attrs.field(
        default=None, alias="exclusive"
    )
    # Public, because its owner checks on every request whether it is empty.
    line: Line[T] = attrs.field(factory=Line[T], init=False)
    # The one whose sleep has a deadline: the head, unless its time is unknown.
    _sleeper: T | None = attrs.field(default=None, init=False)

    def admit(self) -> None:
        """Grant what can be granted now, and set the deadline for the rest.

        Must be called after every change that can move the head's time either way, and after every
        change of the head.
        """
        line = self.line
        if not line.count:
            return
        if self._exclusive is None:
            self._grant_heads(line)
            return
        with self._exclusive() as alone:
            if alone:
                self._grant_heads(line)
            elif (head := line.head()) is not None and not head.interrupted:
                self._sleep_until(head, current_time() + _AGAIN_SECONDS)

    def _grant_heads(self, line: Line[T]) -> None:
        now = current_time()
        # Ends: each round serves one waiter, or is the last.
        while (head := line.head()) is not None:
            if head.interrupted:
                # It may be cancelled, and a grant would be lost with it. It looks for itself as
                # soon as it runs, and ends with this call in any case.
                return
            moment = self._free_at(head, now)
            if moment > now:
                sleeper = self._sleeper
                if moment == inf and sleeper is None:
                    return  # Nobody has a deadline, as it should be.
                if head is not sleeper or head.wake_at != moment:
                    self._sleep_until(head, moment)
                return
            line.serve(head)
            self._take(head, now)
            head.granted = True
            if self._sleeper is head:
                self._sleeper = None
            if head.parked is not None:
                head.wake()

    def turn_away(self) -> None:
        """Empty the line, telling everybody in it that the wait is over, without a grant."""
        for waiter in self.line.clear():
            waiter.wake()
        self._sleeper = None

    @_enable_ki_protection
    async def wait(self, waiter: T, priority: float) -> bool:
        """Wait in line until ``waiter`` is granted what it asks for.

        Args:
          waiter: What is asked for.
          priority: The larger goes first.

        Returns:
          Whether it was granted; false means that it was turned away.

        Checkpoint: always.

        Cancellation: all or nothing. If this raises `trio.Cancelled`, nothing was granted and
        the task has left the line.
        """
        task = current_task()
        waiter.granted = False
        waiter.interrupted = False
        waiter.parked = None
        waiter.scope = None
        waiter.wake_at = inf
        slept = False
        try:
            if self.line.join(waiter, priority):
                self.admit()
            # Ends when the waiter is served or turned away; each round is a sleep.
            while waiter.in_line:
                slept = True
                waiter.parked = task
                if waiter.wake_at == inf:
                    await wait_task_rescheduled(waiter.abort)
                    continue
                with trio.move_on_at(waiter.wake_at) as scope:
                    waiter.scope = scope
                    await wait_task_rescheduled(waiter.abort)
                waiter.scope = None
                if scope.cancelled_caught:
                    waiter.interrupted = False
                    waiter.wake_at = inf  # It has passed; the head gets a new one.
                    self.admit()
        except BaseException:
            # It was not granted: `admit` grants nothing to one whose sleep trio has ended.
            if waiter.in_line:
                self.line.leave(waiter)
                if self._sleeper is waiter:
                    self._sleeper = None
                self.admit()
            if self._emptied is not None and not self.line.count:
                self._emptied()
            raise
        if self._emptied is not None and not self.line.count:
            self._emptied()
        if not slept:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return waiter.granted

    def _sleep_until(self, head: T, moment: float) -> None:
        sleeper = self._sleeper
        if sleeper is not None and sleeper is not head:
            # Somebody with a larger priority came; this one sleeps on, without a deadline.
            sleeper.wake_at = inf
            if sleeper.scope is not None:
                sleeper.scope.deadline = inf
        self._sleeper = None if moment == inf else head
        head.wake_at = moment
        if head.scope is not None:
            head.scope.deadline = moment
        elif moment != inf:
            head.wake()
