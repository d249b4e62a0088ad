"""Count what many runs add and spend, within bounds that always hold.

Every change is one step that no other task or thread can get between, so checking and spending
can't come apart: with ten left, a hundred runs that each `Counter.try_spend` one get ten yes.

A waiter of `Counter.wait_for` asks for a level and takes nothing. Waiters pass one at a time: the
next is woken by the one before it, so what that one does before its next checkpoint, such as
spending, is done when the next looks. Among those whose level is reached, first come, first
served; one that waits for a high level holds nobody back.

Invariant, at every checkpoint: the value is within its bounds; and if it has reached the level of
somebody in line, then somebody is awake who will look and pass that on. A Ctrl-C is held back
where it would break that or leave the lock taken.
"""

from __future__ import annotations

import threading

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness._arguments import check_whole
from harness.errors import CounterBoundsError


@attrs.frozen(kw_only=True)
class CounterStatistics:
    """A counter at one moment."""

    value: int
    """The value now."""

    minimum: int | None
    """The value never falls below this."""

    maximum: int | None
    """The value never rises above this."""

    added: int
    """What all positive changes sum up to, since the start."""

    spent: int
    """What all negative changes sum up to, since the start."""

    refused: int
    """Changes that would have broken a bound, and were not made."""

    tasks_waiting: int
    """Tasks in `Counter.wait_for`."""


@attrs.define(eq=False)
class _Waiter:
    """A task that waits for a level, and where it can be woken."""

    level: int
    task: trio.lowlevel.Task
    token: trio.lowlevel.TrioToken
    thread_id: int


class Counter:
    """A whole number that runs share: atomic, bounded, and awaitable.

    Usable from any task and, except for `wait_for`, from any thread. A counter belongs to no run
    and to no scope; make one where the work that shares it begins.

    Args:
      initial: The value to start with.
      minimum: The value never falls below it; None for no bound.
      maximum: The value never rises above it; None for no bound.

    Raises:
      TypeError: if one of them is not a whole number. Count in the smallest unit, such as cents.
      ValueError: if ``initial`` is out of bounds.
    """

    def __init__(
        self, initial: int = 0, *, minimum: int | None = 0, maximum: int | None = None
    ) -> None:
        self._initial = _whole("Counter(initial)", initial)
        self._minimum = None if minimum is None else _whole("Counter(minimum=...)", minimum)
        self._maximum = None if maximum is None else _whole("Counter(maximum=...)", maximum)
        self._value = initial
        if (broken := self._broken_bound(initial)) is not None:
            raise ValueError(
                f"Counter({initial}) {broken}; choose a value and bounds that fit each other"
            )
        self._added = self._spent = self._refused = 0
        self._line: dict[_Waiter, None] = {}  # In order of arrival.
        self._awake: _Waiter | None = None
        """The one waiter that was woken and has not run yet."""
        # Worker threads may change it too. Nothing is ever awaited, or called back, under it.
        self._lock = threading.Lock()

    @property
    def value(self) -> int:
        """The value now."""
        return self._value

    @enable_ki_protection
    def add(self, n: int = 1) -> int:
        """Change the value by ``n``, which may be negative, and return the new value.

        Raises:
          TypeError: if ``n`` is not a whole number.
          CounterBoundsError: if the value would leave its bounds. Nothing is changed then.
        """
        _whole("Counter.add(n)", n)
        with self._lock:
            new = self._value + n
            broken = self._broken_bound(new)
            if broken is None:
                self._change(n)
            else:
                self._refused += 1
        if broken is not None:
            raise CounterBoundsError(
                f"adding {n} to a counter at {new - n} would make it {new}, which {broken}; "
                "add less, or spend with try_spend(), which says no instead"
            )
        if n > 0 and self._line:
            self._wake()
        return new

    @enable_ki_protection
    def try_spend(self, n: int = 1) -> bool:
        """Take ``n`` away if that much is there, and say whether it was.

        All or nothing. It never waits, and takes no notice of who waits.

        Raises:
          TypeError: if ``n`` is not a whole number.
          ValueError: if it is negative.
        """
        if _whole("Counter.try_spend(n)", n) < 0:
            raise ValueError(
                f"Counter.try_spend() takes an amount from 0 upwards, not {n}; "
                "to give something back use add()"
            )
        with self._lock:
            if self._broken_bound(self._value - n) is not None:
                self._refused += 1
                return False
            self._change(-n)
            return True

    @enable_ki_protection
    async def wait_for(self, n: int) -> int:
        """Wait until the value is at least ``n``, and return it. Takes nothing.

        When this returns, the value *is* at least ``n``, and stays so until the caller's next
        checkpoint, unless the caller or a thread changes it. So a ``try_spend(n)`` directly after
        it succeeds.

        Raises:
          TypeError: if ``n`` is not a whole number.
          ValueError: if it is above the maximum; the wait would never end.

        Checkpoint: always.

        Cancellation: the task has left the line; nothing was taken in any case.
        """
        _whole("Counter.wait_for(n)", n)
        if self._maximum is not None and n > self._maximum:
            raise ValueError(
                f"waiting for {n} on a counter whose maximum is {self._maximum} would never end; "
                "wait for less, or make a counter with a higher maximum"
            )
        await trio.lowlevel.checkpoint_if_cancelled()
        # Who finds the level reached still gives way to one in line who is awake because it is.
        if self._value >= n and self._awake is None:
            await trio.lowlevel.cancel_shielded_checkpoint()
            if self._value >= n and self._awake is None:
                return self._value
        waiter = _Waiter(
            n,
            trio.lowlevel.current_task(),
            trio.lowlevel.current_trio_token(),
            threading.get_ident(),
        )
        _waiting_for = f"a counter to reach {n}"

        def leave_line(_: object) -> trio.lowlevel.Abort:
            with self._lock:
                self._line.pop(waiter, None)
            return trio.lowlevel.Abort.SUCCEEDED

        with self._lock:
            self._line[waiter] = None
            reached = self._value >= n and self._awake is None
        if reached:  # By a thread, just now: it may have looked at the line before.
            waiter.token.run_sync_soon(self._wake)
        passes = False
        while not passes:  # Ends: each turn is a wake, and who sees its level passes.
            await trio.lowlevel.wait_task_rescheduled(leave_line)
            with self._lock:
                self._awake = None
                passes = self._value >= n
                if passes:
                    del self._line[waiter]
            # To the next, or, if the one before spent it, to one who wants less.
            self._wake(but=waiter)
        return self._value

    @enable_ki_protection
    def statistics(self) -> CounterStatistics:
        """Return the counter at this moment. Frozen, and cheap."""
        with self._lock:
            return CounterStatistics(
                value=self._value,
                minimum=self._minimum,
                maximum=self._maximum,
                added=self._added,
                spent=self._spent,
                refused=self._refused,
                tasks_waiting=len(self._line),
            )

    @enable_ki_protection
    def check(self) -> None:
        """Check the counter's invariants, for tests.

        Raises:
          AssertionError: if one is broken.
        """
        with self._lock:
            value = self._value
            assert self._broken_bound(value) is None, f"{self!r} {self._broken_bound(value)}"
            assert value == self._initial + self._added - self._spent, f"{self!r} lost a change"
            reached = [waiter for waiter in self._line if waiter.level <= value]
            assert not reached or self._awake is not None, f"{self!r} forgot a waiter"
            assert self._awake is None or self._awake in self._line, f"{self!r} woke a stranger"

    def __repr__(self) -> str:
        return f"<Counter {self._value}>"

    def _change(self, n: int) -> None:
        self._value += n
        if n > 0:
            self._added += n
        else:
            self._spent -= n

    def _broken_bound(self, value: int) -> str | None:
        """Return in words which bound ``value`` would break; None if none."""
        if self._minimum is not None and value < self._minimum:
            return f"is below its minimum of {self._minimum}"
        if self._maximum is not None and value > self._maximum:
            return f"is above its maximum of {self._maximum}"
        return None

    @enable_ki_protection
    def _wake(self, but: _Waiter | None = None) -> None:
        """Wake the first in line whose level is reached, unless somebody is awake already.

        ``but`` is whoever calls and has just looked. If a thread has added since, it calls here
        as well, soon, and by then that one is asleep and can be woken.
        """
        with self._lock:
            if self._awake is not None:
                return
            for waiter in self._line:
                if waiter.level <= self._value and waiter is not but:
                    break
            else:
                return
            here = waiter.thread_id == threading.get_ident()
            if here:
                self._awake = waiter
        if here:
            trio.lowlevel.reschedule(waiter.task)
            return
        # Only its own thread may wake it, and by then it may be gone: look again there.
        try:
            waiter.token.run_sync_soon(self._wake)
        except trio.RunFinishedError:
            with self._lock:
                self._line.pop(waiter, None)
            self._wake()


def _whole(name: str, value: object) -> int:
    return check_whole(name, value, advice="count in the smallest unit, such as cents")
