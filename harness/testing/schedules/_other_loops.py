"""Recognize errors that come from using two event loops at once."""

from __future__ import annotations

from harness.runs._frames import is_plumbing, traceback_frames

_ANOTHER_LOOP = ("is bound to a different event loop", "attached to a different loop")
_STARTS_A_LOOP = ("call run() from inside", "cannot be called from a running event loop")


def was_refused_by_loop(error: BaseException) -> bool:
    """Return whether a loop's own checks failed, as when a task of another loop is woken."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(was_refused_by_loop, error.exceptions))
    if isinstance(error, RuntimeError):
        return any(words in str(error) for words in _ANOTHER_LOOP)
    if not isinstance(error, AssertionError):
        return False
    frames = list(traceback_frames(error.__traceback__))
    return bool(frames) and is_plumbing(frames[-1][0].f_code.co_filename)


def starts_a_loop(error: BaseException) -> bool:
    """Return whether somebody called `trio.run` or `asyncio.run` inside of one."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(starts_a_loop, error.exceptions))
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _STARTS_A_LOOP)
