"""Recognize errors that come from using two event loops at once."""

from __future__ import annotations

from harness.runs._frames import is_plumbing, traceback_frames


def was_refused_by_trio(error: BaseException) -> bool:
    """Return whether trio's own checks failed, as they do when a task of another loop is woken."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(was_refused_by_trio, error.exceptions))
    if not isinstance(error, AssertionError):
        return False
    frames = list(traceback_frames(error.__traceback__))
    return bool(frames) and is_plumbing(frames[-1][0].f_code.co_filename)


def starts_trio(error: BaseException) -> bool:
    """Return whether somebody called `trio.run` where trio is already running."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(starts_trio, error.exceptions))
    return isinstance(error, RuntimeError) and "call run() from inside" in str(error)
