"""Let cleanup code run during a cancel, up to one deadline.

Code that is being cancelled gets `trio.Cancelled` at its next checkpoint, so cleanup that has to
wait needs a shield; and a shield without an end can hang a program forever. `cleanup` shields until
a fixed time after the cancel. That time is counted from one moment, the cancel of the outermost run
that was cancelled, so nested cleanups share it and can't add up.

trio can't kill a task: code that ignores its cancel goes on. Whatever overran is named in
`harness.dump`, and logged when its run ends.
"""

from __future__ import annotations

import math
import types
from contextvars import ContextVar, Token

import trio
from trio.lowlevel import enable_ki_protection

from harness._arguments import check_seconds
from harness._outside_trio import refuse_outside_trio
from harness.runs._current import current
from harness.runs._inner_scope import Around, inner_scope
from harness.runs._run import CLEANUP_SECONDS, Run
from harness.runs._waits import Wait


class _Enclosing:
    """What a cleanup block tells those inside it. Plain numbers: no scope in a context variable.

    Written out, because each class that attrs makes slows down ``import harness``.
    """

    def __init__(
        self, deadline: float, foreign_cancel_at: float | None, run_id: str | None
    ) -> None:
        self.deadline = deadline
        self.run_id = run_id
        """The run that the block is in: it keeps off that run's cancels and stops, and those from
        above."""
        self.foreign_cancel_at = foreign_cancel_at
        """When the first block noticed a cancel that no run asked for."""
        self.left = False
        """Whether that block is over."""


enclosing_cleanup: ContextVar[_Enclosing | None] = ContextVar("harness.cleanup", default=None)
"""The cleanup block that this code is in."""


def cleanup(max_seconds: float = CLEANUP_SECONDS) -> Cleanup:
    """Shield cleanup code from cancels: ``with harness.cleanup(): await connection.goodbye()``.

    Without a cancel there is no limit. Once the run, or one above it, is cancelled or out of time,
    the block may go on for ``max_seconds`` counted from that moment, however many of them are
    nested or follow each other. Under a cancel from elsewhere (a plain cancel scope), the time
    counts from the first cleanup block entered under it.

    Args:
      max_seconds: Seconds after the cancel. A block inside another ends no later than it.

    Raises:
      TypeError: if ``max_seconds`` isn't a number.
      ValueError: if it is negative or nan.
      RuntimeError: on entry, outside trio.

    Cancellation: when its time is up, the code inside is cancelled; the block is then left quietly,
    and the cancel that started it all takes effect at the next checkpoint.
    """
    check_seconds("cleanup(max_seconds=...)", max_seconds, advice="the default is 5.0")
    return Cleanup(float(max_seconds))


def cleanup_deadline() -> float:
    """Return until when cleanup of ours that begins now may go on.

    As in a `cleanup` block; but without a cancel the clock starts now, because nobody asked us to
    wait forever.
    """
    deadline = _clock(_live_run(), _enclosing_block(), CLEANUP_SECONDS)[0]
    return min(deadline, trio.current_time() + CLEANUP_SECONDS)


def shielded_from() -> str | None:
    """Return the id of the run whose cancels and stops don't reach this code; None if all do.

    Those of the run that the innermost `cleanup` block is in, and of the runs above that one, are
    what the block shields from. What is opened inside can still be cancelled and stopped.
    """
    around = _enclosing_block()
    return None if around is None else around.run_id


class Cleanup:
    """The block that `cleanup` returns."""

    __slots__ = (
        "_around",
        "_inside",
        "_max_seconds",
        "_run",
        "_scope",
        "_shared",
        "_token",
        "_wait",
    )

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._scope = trio.CancelScope(shield=True)
        self._around: _Enclosing | None = None
        self._shared = _Enclosing(math.inf, None, None)
        self._run: Run | None = None
        self._inside: Around | None = None
        """An engine's innermost scope, whose cuts start the clock as a run's cancel does."""
        self._token: Token[_Enclosing | None] | None = None
        self._wait: Wait | None = None

    @enable_ki_protection
    def __enter__(self) -> trio.CancelScope:
        """Raise the shield; return its scope, whose deadline may be brought nearer."""
        refuse_outside_trio("cleanup() was entered")
        self._run = run = _live_run()
        self._around = _enclosing_block()
        deadline, foreign_cancel_at = _clock(run, self._around, self._max_seconds)
        self._shared = _Enclosing(deadline, foreign_cancel_at, None if run is None else run.id)
        self._scope.deadline = deadline
        self._scope.__enter__()
        self._token = enclosing_cleanup.set(self._shared)
        if run is not None:
            if run._cleanups is None:
                run._cleanups = []
            run._cleanups.append(self)
        self._inside = inner_scope.get()
        if self._inside is not None:
            for level in self._inside.levels():
                level.cleanups.append(self.run_cancelled)
        if run is not None and run._observers:
            self._wait = Wait(run, "cleanup", "cleanup")
        return self._scope

    @enable_ki_protection
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> bool:
        """Lower the shield."""
        assert self._token is not None
        if self._wait is not None:
            self._wait.over()
        enclosing_cleanup.reset(self._token)
        self._shared.left = True
        if self._inside is not None:
            for level in self._inside.levels():
                level.cleanups.remove(self.run_cancelled)
        run = self._run
        if run is not None and run._cleanups is not None:
            run._cleanups.remove(self)
            run._allow_cleanup_until(self._scope.deadline)
        return bool(self._scope.__exit__(exc_type, exc, traceback))

    def run_cancelled(self, cancelled_at: float) -> None:
        """Start the clock: the run, or one above it, is cancelled as of ``cancelled_at``."""
        deadline = cancelled_at + self._max_seconds
        if self._around is not None:  # It was told first: outer blocks and runs come first.
            deadline = min(deadline, self._around.deadline)
        if deadline < self._scope.deadline:
            self._scope.deadline = self._shared.deadline = deadline


def _live_run() -> Run | None:
    """Return the current run, if it is alive and lives in this trio."""
    run = current.get()
    if run is None or run._status != "running":
        return None
    return run if run._above.tree.token is trio.lowlevel.current_trio_token() else None


def _enclosing_block() -> _Enclosing | None:
    around = enclosing_cleanup.get()
    # A block that was left is only in the context of a task that outlived it.
    return None if around is None or around.left else around


def _clock(
    run: Run | None, around: _Enclosing | None, max_seconds: float
) -> tuple[float, float | None]:
    """Return until when a block entered now may go on, and when a foreign cancel was noticed."""
    foreign_cancel_at = None if around is None else around.foreign_cancel_at
    starts_at = _cancel_moment(run)
    if starts_at is None:
        # The moment of the cancel if it comes by a deadline; -inf if it came from elsewhere.
        starts_at = trio.current_effective_deadline()
        if around is not None and starts_at == around.deadline:
            starts_at = math.inf  # That is the end of the block around us, not a cancel.
        if starts_at <= trio.current_time():
            if foreign_cancel_at is None:
                foreign_cancel_at = trio.current_time()
            starts_at = foreign_cancel_at
    deadline = starts_at + max_seconds
    return deadline if around is None else min(deadline, around.deadline), foreign_cancel_at


def _cancel_moment(run: Run | None) -> float | None:
    """Return when the outermost cancelled run, this one or above, was cancelled; or None.

    If an engine has cut short what this code is in, then that moment, if earlier.
    """
    moment = None
    while run is not None:
        own = run._cancel_moment()
        if own is not None:
            moment = own
        run = run._parent
    around = inner_scope.get()
    if around is not None:
        for level in around.levels():
            cut = level.cancelled_at
            if cut is not None and (moment is None or cut < moment):
                moment = cut
    return moment
