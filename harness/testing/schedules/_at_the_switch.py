"""Replay a failure up to the switch that matters, and hold it there for a debugger.

A debugger that opens at a failure shows the line that noticed it, mostly an assertion at the end of
the test. What went wrong did so earlier, where a task was left halfway for another. So the replay
stops there: its threads stand still, and the frames of the task that was left are as they were.

Which switch is it? If an object was changed behind a task's back, the one after which that
happened. Otherwise the last thing that the schedule decides: its last deviation and its faults.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import attrs

from harness.testing.schedules._as_traceback import as_traceback
from harness.testing.schedules._blocked import task_name
from harness.testing.schedules._control import controlled, frames_of, is_cut_short
from harness.testing.schedules._schedule import Schedule
from harness.testing.schedules._strand import Strand
from harness.testing.schedules._thread_locks import allocate


@attrs.frozen
class Stopped:
    """A replay that stands still."""

    traceback: TracebackType
    """The frames of the task that was left, as a traceback."""

    words: str
    """Which task that is, and which one goes on."""


@attrs.define(eq=False)
class StopAtSwitch:
    """An observer that holds the program at a switch until it is let go."""

    schedule: Schedule
    step: int | None
    """Before which step to stop, from 1; None: once the schedule has decided everything."""

    counts: Callable[[Strand], bool]
    """Which steps count."""

    stopped: Stopped | None = attrs.field(default=None, init=False)
    reached: threading.Event = attrs.field(factory=threading.Event, init=False)
    """Set when the program stands still, or has ended."""

    _steps: int = attrs.field(default=0, init=False)
    _last: Strand | None = attrs.field(default=None, init=False)
    # The program's own locks are controlled, even those in Event.wait.
    _gate: threading.Lock = attrs.field(factory=lambda: allocate(), init=False)

    def __attrs_post_init__(self) -> None:
        self._gate.acquire()

    def before_step(self, strand: Strand) -> None:
        """Stop here if this is the switch."""
        self._steps += self.counts(strand)
        if not self.reached.is_set() and self._is_here(strand):
            left = strand if self._last is None or not frames_of(self._last) else self._last
            traceback = as_traceback(frames_of(left))
            if traceback is not None:
                words = f"{task_name(left)!r} was left here, for {task_name(strand)!r}"
                if left is strand:
                    words = f"{task_name(left)!r} is here"
                self.stopped = Stopped(traceback, words)
                self.reached.set()
                self._gate.acquire()
        self._last = strand

    def after_step(self, strand: Strand) -> None:
        """Do nothing."""

    def let_go(self) -> None:
        """Let the program go on to its end."""
        self._gate.release()

    def _is_here(self, strand: Strand) -> bool:
        control = strand.context.get(controlled)
        if control is None or self._last is None:
            return False
        if is_cut_short(strand):  # A deadlock: there is no step after this.
            return True
        if self.step is not None:
            return self._steps == self.step
        if not self.schedule.switches and not self.schedule.faults:
            return False
        decided = len(control.choices) > max(self.schedule.choices(), default=-1)
        return decided and len(control.targets.struck) >= len(self.schedule.faults)


@contextmanager
def stopped_at_switch(
    run: Callable[[StopAtSwitch], object],
    schedule: Schedule,
    step: int | None = None,
    *,
    counts: Callable[[Strand], bool] = lambda strand: True,
) -> Iterator[Stopped | None]:
    """Replay a failure, and hold it at the switch that matters while the block is entered.

    Args:
      run: Replays the failure with an observer.
      schedule: Its schedule.
      step: The step before which to stop, if it is known better than from the schedule.
      counts: Which steps count.

    Yields:
      Where it stands; None if it came to its end.
    """
    observer = StopAtSwitch(schedule, step, counts)

    def replay() -> None:
        try:
            run(observer)
        finally:
            observer.reached.set()

    thread = threading.Thread(target=replay, name="harness: holds a replay", daemon=True)
    thread.start()
    observer.reached.wait()
    try:
        yield observer.stopped
    finally:
        observer.let_go()
        thread.join()


@attrs.frozen
class Touched:
    """A step that read or wrote a shared object."""

    thing: object
    """Which object; a key."""

    step: int
    """Which step, from 1."""

    is_write: bool


def racing_step(touched: Iterable[Touched], order: Sequence[int]) -> int | None:
    """Return the step before which a task was left halfway with an object; None if none was.

    That is: it touched the object, then another wrote it, and then it touched it again.

    Args:
      touched: Who touched the objects that a report names, in the order of steps.
      order: The number of the task that made each step.
    """
    own = list(touched)

    def task(one: Touched) -> int:
        return order[one.step - 1]

    for write in (one for one in own if one.is_write):
        others = [one for one in own if one.thing == write.thing and task(one) != task(write)]
        for look in others:
            if look.step < write.step and any(
                act.step > write.step and task(act) == task(look) for act in others
            ):
                return 2 + max(at for at in range(write.step - 1) if order[at] == task(look))
    return None
