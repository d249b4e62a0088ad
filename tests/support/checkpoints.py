"""Cancel an async function at its 1st, 2nd, 3rd … checkpoint until it gets through.

Code that holds something across a checkpoint is wrong in one place only: the checkpoint where its
author didn't think of a cancel. Trying every one of them, one run of the function for each, needs
no luck and no thought about where the faults may be.

Each checkpoint is tried in two ways, because they are different faults in practice:

- *while waiting*: the cancel comes while the task is parked, so the wait itself is cut short;
- *on waking*: the wait is over (the slot was granted, the value was handed over), and the cancel
  comes before the task has run on, so it is met at the next checkpoint only.

The checkpoints of every task below the function count, not only those of its own task; a cancel
always comes from a scope around the whole function. The counting is done by a trio instrument
with public interfaces only.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Literal

import attrs
import trio

Moment = Literal["while waiting", "on waking"]
MOMENTS: tuple[Moment, ...] = ("while waiting", "on waking")


async def cancel_at_every_checkpoint(
    make_and_run: Callable[[], Awaitable[object]],
    check: Callable[[], Awaitable[None] | None],
    *,
    patience_seconds: float = 100_000.0,
    most_checkpoints: int = 2_000,
) -> int:
    """Run the function again and again, cancelled one checkpoint later each time.

    Besides what ``check`` looks at, every run must leave its task's context as it found it, and
    must end: a function that doesn't end within ``patience_seconds`` after it was started is
    reported (use a `trio.testing.MockClock` that jumps, then that costs no time).

    Args:
      make_and_run: Builds what is tested and uses it; called again for every run, in a new task.
        An error that comes out of it fails the test.
      check: Called after every run, including the last one, which gets through; raises if anything
        is still held. Plain or async.
      patience_seconds: How long one run may take.
      most_checkpoints: Where to give up on a function that never gets through.

    Returns:
      How many runs the cancel cut short while waiting. Assert a minimum, so that the test can't
      come to test nothing.

    Checkpoint: always.

    Cancellation: a cancel from outside the helper passes through the function as any other.
    """
    cut_short = 0
    for moment in MOMENTS:
        for nth in range(1, most_checkpoints + 1):
            attempt = _Attempt(nth, moment)
            try:
                await attempt.run(make_and_run, patience_seconds)
                verdict = check()
                if inspect.isawaitable(verdict):
                    await verdict
            except Exception as exc:
                exc.add_note(f"the function was cancelled at checkpoint {nth}, {moment}")
                raise
            if not attempt.reached:
                break
            if moment == "while waiting" and attempt.scope.cancelled_caught:
                cut_short += 1
        else:
            raise AssertionError(
                f"the function still didn't get through after {most_checkpoints} checkpoints"
            )
    return cut_short


@attrs.define(eq=False)
class _Attempt(trio.abc.Instrument):
    """One run of the function, and the instrument that cancels it at the right step."""

    nth: int
    moment: Moment
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    root: trio.lowlevel.Task | None = None
    steps: int = 0
    reached: bool = False

    async def run(
        self, make_and_run: Callable[[], Awaitable[object]], patience_seconds: float
    ) -> None:
        errors: list[Exception] = []

        async def in_own_task() -> None:
            self.root = trio.lowlevel.current_task()
            context_before = dict(copy_context())
            try:
                with self.scope:
                    await make_and_run()
                assert dict(copy_context()) == context_before, "the function changed its context"
            except Exception as exc:
                # Not through the nursery, which would wrap it in a group.
                errors.append(exc)
            finally:
                self.root = None

        trio.lowlevel.add_instrument(self)
        try:
            with trio.move_on_after(patience_seconds) as patience:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(in_own_task, name="cancelled at a checkpoint")
        finally:
            trio.lowlevel.remove_instrument(self)
        assert not patience.cancelled_caught, f"the function hangs for {patience_seconds} seconds"
        for error in errors:
            raise error

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.moment == "on waking":
            self._count(task)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.moment == "while waiting":
            self._count(task)

    def _count(self, task: trio.lowlevel.Task) -> None:
        if self._is_below_root(task):
            self.steps += 1
            if self.steps == self.nth:
                self.reached = True
                self.scope.cancel()

    def _is_below_root(self, task: trio.lowlevel.Task | None) -> bool:
        root = self.root
        while task is not None and root is not None:
            if task is root:
                return True
            nursery = task.parent_nursery
            task = None if nursery is None else nursery.parent_task
        return False
