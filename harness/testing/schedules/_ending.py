"""Note why a controlled program is cut short, and what was seen that its outcome doesn't say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import attrs
import outcome

from harness.errors import DeadlockError, LivelockError
from harness.testing.schedules._as_traceback import as_traceback
from harness.testing.schedules._blocked import BlockedTask, blocked_tasks
from harness.testing.schedules._control import Control


@attrs.define(eq=False)
class Ending:
    """How a program ends other than by itself."""

    most_steps: int
    cancel: Callable[[], None] = attrs.field(default=lambda: None, init=False)
    """Cancels the whole program; set by its backend."""

    too_many_steps: bool = attrs.field(default=False, init=False)
    busy: list[BlockedTask] = attrs.field(factory=list[BlockedTask], init=False)
    """What was going on when it had made too many steps."""

    deadlocked: list[BlockedTask] | None = attrs.field(default=None, init=False)
    waits_at: TracebackType | None = attrs.field(default=None, init=False)
    """Where the main strand waits in a deadlock."""

    error: BaseException | None = attrs.field(default=None, init=False)
    """An error of ours, or an observer's."""

    outside: set[str] = attrs.field(factory=set[str], init=False)
    """What the program waited for that no schedule controls."""

    strangers: list[str] = attrs.field(factory=list[str], init=False)
    """What mixes this loop with another, by name."""

    unheard: list[str] = attrs.field(factory=list[str], init=False)
    """Errors that nobody waited for, which a loop would only log."""

    unswitchable: list[str] = attrs.field(factory=list[str], init=False)
    """Where a thread was left for another although this build of Python doesn't do that there."""

    def for_steps(self, control: Control) -> None:
        """Cut short a program that has made too many steps."""
        if not self.too_many_steps and not control.relieve():
            self.too_many_steps = True
            self.busy = blocked_tasks(control)
            control.cut_short = True
            self.cancel()

    def for_deadlock(self, control: Control) -> bool:
        """Cut short a program in which nothing can go on.

        Returns:
          False if that was done before, and everything waits again: behind shields.
        """
        if self.deadlocked is not None:
            return False
        if control.relieve():
            return True
        self.deadlocked = blocked_tasks(control)
        main = next(iter(control.numbers))
        if main in control.live():  # Else others wait, which the program has left behind.
            self.waits_at = as_traceback(control.frames(main))
        control.cut_short = True
        self.cancel()
        return True

    def for_error(self, error: BaseException) -> None:
        """Cut short a program because of an error that isn't its own."""
        if self.error is None:
            self.error = error
        self.cancel()

    def judge(self, result: outcome.Outcome[Any]) -> outcome.Outcome[Any]:
        """Return how the program ended, or why it didn't end by itself."""
        raised = result.error if isinstance(result, outcome.Error) else None
        if isinstance(raised, KeyboardInterrupt | SystemExit):
            raise raised
        if self.error is not None:
            return outcome.Error(self.error)
        error: DeadlockError | LivelockError
        if self.deadlocked is not None:
            error = DeadlockError(
                _in_lines(
                    f"every {self.deadlocked[0].kind if self.deadlocked else 'task'} waits, and "
                    "nothing can wake any",
                    self.deadlocked,
                )
            ).with_traceback(self.waits_at)
        elif self.too_many_steps:
            error = LivelockError(
                _in_lines(
                    f"the program had not ended after {self.most_steps} steps; a task that polls "
                    "needs a sleep between two looks, as virtual time stands still while any task "
                    "can go on; a program that just does so much is better explored in a smaller "
                    "form",
                    self.busy,
                )
            )
        else:
            return result
        # What it raised while being ended comes second, but isn't lost.
        error.__context__ = raised if isinstance(raised, Exception) else None
        return outcome.Error(error)


def _in_lines(what: str, tasks: Sequence[BlockedTask]) -> str:
    return "\n".join([what + ":", *(f"  {task}" for task in tasks)])
