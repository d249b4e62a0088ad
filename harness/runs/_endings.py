"""Tell a cancel from an error, and say on an error which run it came out of.

A cancel can arrive as a group of nothing but `trio.Cancelled`, when the body had a nursery open.
"""

from __future__ import annotations

import types

import trio

from harness.errors import RunTimedOut
from harness.runs._frames import describe_wait, traceback_frames
from harness.runs._run import Run

NOTES_AT_MOST = 8
"""Notes that harness leaves on one exception; one that a thousand runs raise stays small."""

_NOTE = "in run "


def is_only_cancelled(error: BaseException) -> bool:
    """Return whether this is a cancel: `trio.Cancelled`, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_only_cancelled(inner) for inner in error.exceptions)
    return isinstance(error, trio.Cancelled)


def without_cancelled(error: BaseException) -> BaseException:
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


def timed_out_error(run: Run, stuck_at: types.TracebackType | None) -> RunTimedOut:
    """Return the error for a run whose own deadline took effect, saying where it was."""
    seconds = (run._ended_at or 0.0) - run._started_at
    where = f", in {describe_wait(traceback_frames(stuck_at))}" if stuck_at is not None else ""
    return RunTimedOut(f"run {run.path!r} ran out of time after {seconds:g} s{where}")
