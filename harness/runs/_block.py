"""Open a run, and give it its one ending.

There are two ways to be a run's body: a block of the caller's code (`open_run`), and a function
in a task of its own (`carry`, for engines). Both end the same way:

- the body returned, even late: ok;
- it raised anything but a cancel: failed;
- the run's own scope caught the cancel: cancelled or timed out, whichever was asked for first;
- the cancel came from outside: cancelled, and the `trio.Cancelled` goes on to whoever sent it.

A cancel can arrive as a group of nothing but `trio.Cancelled`, when the body had a nursery open.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Token
from typing import Any

import trio
from trio.lowlevel import current_task

from harness._arguments import check_seconds
from harness.errors import RunCancelled, RunTimedOut
from harness.runs._frames import describe_wait, traceback_frames
from harness.runs._observers import observers_here
from harness.runs._run import Ending, Run, cancel_scope, current

NOTES_AT_MOST = 8
"""Notes that harness leaves on one exception; one that a thousand runs raise stays small."""

_NOTE = "in run "


def open_run(
    name: str,
    *,
    timeout: float | None = None,
    deps: Any = None,
    tags: Mapping[str, Any] | None = None,
    private: bool = False,
) -> RunBlock:
    """Open a run: ``async with harness.open_run("triage", timeout=60) as run:``.

    Inside the block, and in every task started there, `current_run` is this run. Whatever way
    the block is left, nothing of the run is alive afterwards and the context is as before.

    Args:
      name: For people; need not be unique.
      timeout: Seconds until the run is cut short. None and inf: no limit of its own; 0: at the
        first checkpoint. The deadline of a run above it holds in any case.
      deps: What the code inside works with, reached by ``current_run().deps``. None: the
        parent's.
      tags: Labels for logs and reports; copied.
      private: Whether its events, and those of the runs below it, stay hidden from subscribers
        of the runs above.

    Raises:
      TypeError: if an argument has the wrong type.
      ValueError: if ``timeout`` is negative or nan, or ``name`` is empty.
      RuntimeError: on entry, outside trio.
      RunEndedError: on entry, if the run that this code carries has ended.
      RunTimedOut: from the block, if its own deadline cut the body short.

    Checkpoint: neither on entry nor on exit, unless it waits on exit for tasks that
    `harness.start_soon` gave to this run.

    Cancellation: the body's exception comes out as itself, with a note that names the run.
    `Run.cancel` leaves the block quietly; a cancel from outside passes through.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"open_run() takes a name as a string, not {name!r}; "
            'write `async with harness.open_run("name"):`'
        )
    if not name:
        raise ValueError("open_run() takes a name that people can read, not ''")
    if timeout is not None:
        check_seconds("open_run(timeout=...)", timeout, advice="None is for no limit")
    if tags is not None and not isinstance(tags, Mapping):
        raise TypeError(f"open_run(tags=...) takes a mapping such as {{'shard': 3}}, not {tags!r}")
    return RunBlock(name, timeout, deps, tags, private)


class RunBlock:
    """The block of one run; what `open_run` returns."""

    __slots__ = ("_deps", "_name", "_private", "_run", "_tags", "_timeout", "_token")

    def __init__(
        self,
        name: str,
        timeout: float | None,
        deps: Any,
        tags: Mapping[str, Any] | None,
        private: bool,
    ) -> None:
        self._name = name
        self._timeout = timeout
        self._deps = deps
        self._tags = tags
        self._private = private
        self._run: Run | None = None
        self._token: Token[Run | None] | None = None

    async def __aenter__(self) -> Run:
        """Begin the run; never a checkpoint."""
        if self._run is not None:
            raise RuntimeError(
                f"the block of {self._run!r} was entered before; call open_run() for each block"
            )
        run = self._run = begin_run(
            self._name,
            timeout=self._timeout,
            deps=self._deps,
            tags=self._tags,
            private=self._private,
        )
        run._scope.__enter__()
        self._token = current.set(run)
        return run

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> bool:
        """End the run; a checkpoint only if tasks of `start_soon` are still alive."""
        run, token = self._run, self._token
        assert run is not None
        assert token is not None
        error = exc
        if run._tasks:
            error = await _join_tasks(run, error)
        try:
            current.reset(token)
        except ValueError:
            error = RuntimeError(
                f"the block of {run!r} is being left in another task or context than it was "
                "entered in; keep the whole `async with` block in one task, and use an async "
                "context manager, not an async generator, where it has to span a yield"
            )
            error.__context__ = exc
        scope = run._scope
        try:
            if scope.__exit__(type(error) if error is not None else None, error, None):
                remaining = None
            else:
                remaining = error
        except BaseException as left_over:  # What the scope didn't catch of a group.
            remaining = left_over
        now = trio.current_time()
        if remaining is None:
            if error is None:
                run._end("ok", now)
                return False
            if run._cancel_asked:
                run._end("cancelled", now)
                return True
            run._end("timed_out", now)
            raise time_out(run, error.__traceback__)
        if is_only_cancelled(remaining):
            run._cancel_reason = run._cancel_reason or run._who_cancelled(remaining)
            run._end("cancelled", now)
        else:
            run._end(_status_for(remaining, run), now)
            add_note(remaining, run)
        if remaining is exc:
            return False
        try:
            raise remaining
        finally:
            del remaining, error, exc  # Each would hold the frames that hold it.


def begin_run(
    name: str,
    *,
    timeout: float | None = None,
    deps: Any = None,
    tags: Mapping[str, Any] | None = None,
    private: bool = False,
) -> Run:
    """Return a new run below the current one, for the current task, its scope not yet entered."""
    try:
        task = current_task()
    except RuntimeError:
        raise RuntimeError(
            f"run {name!r} was opened outside trio; open it in a function that trio.run() runs"
        ) from None
    now = trio.current_time()
    parent = current.get()
    if parent is not None and parent._status != "running":
        parent._refuse_if_ended(f"run {name!r} can't be opened in it")
    if parent is not None and parent._above.tree.token is not trio.lowlevel.current_trio_token():
        # A context that was copied into another trio.run, in another thread: scopes and tasks
        # of two event loops have nothing to do with each other, so this run is a root.
        parent = None
    deadline = math.inf if timeout is None else now + timeout
    run = Run(name, parent, now, deadline)
    run._task = task
    run._nurseries_at_start = len(task.child_nurseries)
    observers = observers_here()
    if observers:
        inherited = run._observers
        if inherited is not observers:
            run._observers = (*inherited, *(o for o in observers if o not in inherited))
    if deps is not None:
        run._deps = deps
    if tags:
        run._tags = types.MappingProxyType(dict(tags))
    run._private = private
    if parent is not None and parent._forks:
        try:
            run._fork_locals(parent)
        except BaseException:
            run._end("failed", now)
            raise
    return run


async def carry(
    run: Run, function: Callable[..., Awaitable[Any]], *args: Any
) -> tuple[Ending, Any]:
    """Run ``function(*args)`` as the body of ``run``, and return how it ended.

    For a task that was started for this alone: the context variable is set and not put back.
    The run ends here; its scope must not have been entered.

    Returns:
      The status, and the value if that is ok; else the error: the function's own, a
      `RunTimedOut` or a `RunCancelled`. Never a `trio.Cancelled`.

    Raises:
      BaseException: what is neither an error nor a cancel, such as `KeyboardInterrupt`.

    Checkpoint: as ``function`` does.

    Cancellation: a cancel from outside is reported as the status ``"cancelled"`` and not raised;
    the caller's nursery is cancelled anyway, and collecting one `trio.Cancelled` from each of
    20,000 tasks would only slow it down.
    """
    current.set(run)
    run._task = current_task()
    scope = run._scope
    awaitable: Any = None
    value: Any = _NO_VALUE
    stuck_at: types.TracebackType | None = None
    try:
        with scope:
            if run._parent is not None and run._parent._forks:
                run._fork_locals(run._parent)
            awaitable = function(*args)
            try:
                returned = await awaitable
            except BaseException as error:
                if run._tasks:
                    await _join_tasks(run, error)
                if isinstance(error, trio.Cancelled):
                    stuck_at = error.__traceback__
                raise
            if run._tasks:
                await _wait_for_tasks(run)
            value = returned
    except BaseException as error:
        stuck_at = None  # Or this frame would hold the traceback that holds this frame.
        return _carried_out_of(run, error, function, awaitable)
    now = run._above.tree.now()
    if value is not _NO_VALUE:
        run._end("ok", now)
        return "ok", value
    if run._cancel_asked:
        stuck_at = None
        run._end("cancelled", now)
        return "cancelled", RunCancelled(run._cancel_reason)
    run._end("timed_out", now)
    timed_out = time_out(run, stuck_at)
    stuck_at = None
    return "timed_out", timed_out


def _carried_out_of(
    run: Run, error: BaseException, function: Callable[..., Any], awaitable: Any
) -> tuple[Ending, Any]:
    """End a carried run whose function raised ``error`` past the run's own scope."""
    now = trio.current_time()
    if is_only_cancelled(error):
        run._cancel_reason = run._cancel_reason or run._who_cancelled(error)
        run._end("cancelled", now)
        return "cancelled", RunCancelled(run._cancel_reason)
    failure = _without_cancelled(error)
    if not isinstance(failure, Exception):
        run._end("failed", now)
        raise failure
    if isinstance(failure, TypeError) and not isinstance(awaitable, Awaitable | None):
        run._end("failed", now)
        raise not_awaitable(function, awaitable)
    if failure.__traceback__ is not None and failure.__traceback__.tb_next is not None:
        failure.__traceback__ = failure.__traceback__.tb_next  # The first frame is ours.
    failure = unwrap_single(failure)
    status = _status_for(failure, run)
    run._end(status, now)
    add_note(failure, run)
    return status, failure


def _status_for(error: BaseException, run: Run) -> Ending:
    """Return how a run ends that raised: timed out if the error says so of this very run."""
    if isinstance(error, RunTimedOut) and error.run_id == run.id:
        return "timed_out"
    return "failed"


def not_awaitable(function: Callable[..., Any], returned: Any) -> TypeError:
    """Return the error for a function that returned something that can't be awaited."""
    name = getattr(function, "__qualname__", None) or repr(function)
    return TypeError(
        f"{name}() returned {returned!r} where an awaitable was expected; "
        "define it with `async def`, or wrap it in a function that is"
    )


def is_only_cancelled(error: BaseException) -> bool:
    """Return whether this is a cancel: `trio.Cancelled`, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_only_cancelled(inner) for inner in error.exceptions)
    return isinstance(error, trio.Cancelled)


def _without_cancelled(error: BaseException) -> BaseException:
    """Return what is left of an error when the cancels beside it are taken out of its groups."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    rest = error.split(trio.Cancelled)[1]
    assert rest is not None, "a group of only Cancelled is a cancel, and was told apart before"
    return rest


def most_telling(error: BaseException) -> BaseException:
    """Return what a group is about: one error that is no cancel if there is such, else a cancel."""
    while isinstance(error, BaseExceptionGroup):
        rest = error.split(trio.Cancelled)[1]
        error = (error if rest is None else rest).exceptions[0]
    return error


def unwrap_single(error: Exception) -> Exception:
    """Return the one error inside a group of one, however deep; anything else as it is.

    Code that opens a nursery raises groups. Whoever waits for one kind of error should find it
    all the same. The group's notes, and its cause where the error has none, go along.
    """
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        inner = error.exceptions[0]
        for note in getattr(error, "__notes__", ()):
            inner.add_note(note)
        if inner.__cause__ is None and error.__cause__ is not None:
            inner.__cause__ = error.__cause__
        error = inner
    return error


def add_note(error: BaseException, run: Run) -> None:
    """Note on an exception which run it came out of, unless it says so already.

    One exception object may come out of many runs, nested or not, so the notes are bounded.
    """
    note = f"{_NOTE}{run.path}"
    notes = [n for n in getattr(error, "__notes__", ()) if n.startswith(_NOTE)]
    if len(notes) >= NOTES_AT_MOST or any(n == note or n.startswith(f"{note}/") for n in notes):
        return
    try:
        error.add_note(note)
    except Exception:
        pass  # A frozen exception takes no notes; the error itself matters more.


def time_out(run: Run, stuck_at: types.TracebackType | None) -> RunTimedOut:
    """Return the error for a run whose own deadline took effect, saying where it was."""
    seconds = (run._ended_at or 0.0) - run._started_at
    where = f", in {describe_wait(traceback_frames(stuck_at))}" if stuck_at is not None else ""
    error = RunTimedOut(f"run {run.path!r} ran out of time after {seconds:g} s{where}")
    error.run_id = run.id
    return error


async def _join_tasks(run: Run, error: BaseException | None) -> BaseException | None:
    """Wait until the tasks that others started for this run are gone.

    If the body raised they are cancelled first. Returns the exception to leave the run with.

    Cancellation: they are cancelled too and waited for, shielded: nothing outlives the run.
    """
    if error is None:
        try:
            await _wait_for_tasks(run)
        except BaseException as interrupted:
            return interrupted
        return None
    await _end_tasks(run)
    return error


async def _wait_for_tasks(run: Run) -> None:
    waiting_for = functools.partial(_task_words, run)  # noqa: F841 (read by `dump`)
    try:
        while run._tasks:
            run._idle = trio.Event()
            await run._idle.wait()
    except BaseException:
        await _end_tasks(run)
        raise


async def _end_tasks(run: Run) -> None:
    waiting_for = functools.partial(_task_words, run)  # noqa: F841 (read by `dump`)
    with trio.CancelScope(shield=True):
        while run._tasks:
            for scope in run._tasks:
                cancel_scope(scope, f"run {run.path!r} is over")
            run._idle = trio.Event()
            await run._idle.wait()


def _task_words(run: Run) -> str:
    return f"its tasks in other nurseries: {', '.join((run._tasks or {}).values())}"


class _NoValue:
    """Stands where a function has not returned."""


_NO_VALUE = _NoValue()
