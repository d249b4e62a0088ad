"""Make a cancel scope that an engine puts around one call inside a run, known to the run.

A run knows its own scope. An engine may put another around one of several calls in it: for a
stage's time limit, or to cut a call short when another has won. From inside, that is the run's time
too, so `Run.deadline` and `Run.remaining` count it; and a `cleanup` entered before such a cut gets
its deadline from it, as from the run's own cancel.

Code inside finds it through a context variable, which holds plain facts and no scope: tasks that
outlive the call copy the context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar, Token
from types import TracebackType

import trio
from trio.lowlevel import enable_ki_protection

from harness.runs._scopes import cancel_scope


class Around:
    """What an inner scope tells those inside it."""

    __slots__ = ("attempt", "cancelled_at", "cleanups", "deadline", "outer", "run_id")

    def __init__(self, run_id: str, attempt: int) -> None:
        self.run_id = run_id
        self.attempt = attempt
        self.outer: Around | None = None
        self.deadline = math.inf
        self.cancelled_at: float | None = None
        self.cleanups: list[Callable[[float], None]] = []
        """Cleanup blocks in progress, each to be told the moment of a cut."""

    def levels(self) -> Iterator[Around]:
        """Yield this and those around it, innermost first."""
        level: Around | None = self
        while level is not None:
            yield level
            level = level.outer


inner_scope: ContextVar[Around | None] = ContextVar("harness.runs.inner_scope", default=None)
"""The innermost inner scope that this code is in."""


class InnerScope:
    """A cancel scope around a call inside a run; entered once, in the task of the call.

    Args:
      run_id: The run's.
      attempt: Which attempt at the call it is, counting from 1.
    """

    __slots__ = ("_around", "_token", "scope")

    def __init__(self, run_id: str, attempt: int = 1) -> None:
        self.scope = trio.CancelScope()
        self._around = Around(run_id, attempt)
        self._token: Token[Around | None] | None = None

    @enable_ki_protection
    def __enter__(self) -> InnerScope:
        """Let the code inside know of the scope."""
        self._around.outer = inner_scope.get()
        self.scope.__enter__()
        self._token = inner_scope.set(self._around)
        return self

    @enable_ki_protection
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Leave the scope, which catches its own cancel."""
        assert self._token is not None
        inner_scope.reset(self._token)
        self._around.deadline = math.inf  # For tasks that copied the context and go on.
        return self.scope.__exit__(exc_type, exc, traceback)

    def allow(self, seconds: float) -> None:
        """Start the call's time, or restart it, now; inf stops it."""
        self.scope.deadline = self._around.deadline = trio.current_time() + seconds

    @enable_ki_protection
    def cancel(self, reason: str) -> None:
        """Cut the call short, and start the clocks of the cleanups in it."""
        if self.scope.cancel_called:
            return
        self._around.cancelled_at = now = trio.current_time()
        cancel_scope(self.scope, reason)
        for start_clock in tuple(self._around.cleanups):
            start_clock(now)
