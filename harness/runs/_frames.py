"""Say where code is waiting, in the user's terms.

A trio task's stack ends in trio's own frames, which say nothing. Here the frames are sorted into
the user's, a library's and ours, and the innermost one that means something is put into words.

A primitive of harness says what it is waiting for in a local variable called ``_waiting_for`` in
the waiting frame: a string, or a function that returns one. That costs nothing until somebody asks,
unlike a field that is set before every wait.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
from collections.abc import Iterable, Iterator
from types import FrameType

import attrs
import outcome
import trio

WAITING_FOR = "_waiting_for"


def _folder(module: types.ModuleType) -> str:
    return os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OUR_HOOKS = os.path.join(os.path.dirname(os.path.dirname(_OURS)), "harness_pytest") + os.sep
"""Our pytest plugin, which is next to the package."""

_PLUMBING = (_folder(trio), _folder(outcome), _folder(attrs))
"""Frames left out of every stack, because they are the same in each."""

_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))


def is_plumbing(filename: str) -> bool:
    """Return whether a frame of this file says nothing about what the program does."""
    return filename.startswith(_PLUMBING) or filename.startswith("<")


def is_ours(filename: str) -> bool:
    """Return whether this file is part of harness."""
    return filename.startswith((_OURS, _OUR_HOOKS))


def is_user_code(filename: str) -> bool:
    """Return whether this file belongs to neither harness, an installed package nor Python."""
    return not (
        filename.startswith((_OURS, _OUR_HOOKS, *_PLUMBING, _STANDARD_LIBRARY, "<"))
        or any(folder in filename for folder in _INSTALLED)
    )


def place(code: types.CodeType, line: int) -> str:
    """Return a function and line in words: ``fetch (worker.py:12)``."""
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{line})"


def describe_wait(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return in words what the innermost meaningful frame is waiting for.

    Args:
      frames: Frames with their current lines, outermost first.
    """
    library: str | None = None
    for frame, line in reversed(list(frames)):
        code = frame.f_code
        filename = code.co_filename
        if filename.startswith(_OURS):
            if WAITING_FOR in code.co_varnames:
                words = frame.f_locals.get(WAITING_FOR)
                if words is not None:
                    return str(words()) if callable(words) else str(words)
        elif is_user_code(filename):
            return place(code, line)
        elif library is None and not is_plumbing(filename):
            library = place(code, line)
    return library or "nothing that Python code can show"


def describe_await(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """Return in words what the user's code awaited when an error came out of it.

    That is what a primitive of ours was waiting for, or the coroutine that the innermost frame of
    the user awaited, with that frame; None if the error arose in the user's own code.

    Args:
      frames: The frames of the error's traceback with their lines, outermost first.
    """
    awaited: str | None = None
    for frame, line in reversed(list(frames)):
        code = frame.f_code
        if is_user_code(code.co_filename):
            return None if awaited is None else f"{awaited} in {place(code, line)}"
        if is_ours(code.co_filename) and WAITING_FOR in code.co_varnames:
            words = frame.f_locals.get(WAITING_FOR)
            if words is not None:
                return str(words()) if callable(words) else str(words)
        awaited = code.co_qualname if code.co_flags & inspect.CO_COROUTINE else None
    return None


def task_frames(task: trio.lowlevel.Task) -> list[tuple[FrameType, int]]:
    """Return the frames of a task with their lines, outermost first.

    The running task is read from the call stack: its coroutines can't say where they are while they
    run.
    """
    running = _running_frames(task)
    return running if running is not None else list(task.iter_await_frames())


def _running_frames(task: trio.lowlevel.Task) -> list[tuple[FrameType, int]] | None:
    try:
        if trio.lowlevel.current_task() is not task:
            return None
    except RuntimeError:
        return None
    frames: list[tuple[FrameType, int]] = []
    frame: FrameType | None = _caller_outside_harness()
    outermost = getattr(task.coro, "cr_frame", None)
    while frame is not None:
        frames.append((frame, frame.f_lineno))
        if frame is outermost:
            return frames[::-1]
        frame = frame.f_back
    return None  # Between two steps: the task isn't on the stack, so it is suspended.


def _caller_outside_harness() -> FrameType | None:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame


def caller() -> str:
    """Return in words which line called into harness: ``main (app.py:12)``."""
    frame = _caller_outside_harness()
    return "this call" if frame is None else place(frame.f_code, frame.f_lineno)


def traceback_frames(traceback: types.TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a traceback with their lines, outermost first."""
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def where_we_are() -> str:
    """Return in words which task this is and whose nursery it lives in; empty outside trio."""
    try:
        task = trio.lowlevel.current_task()
    except RuntimeError:
        return ""
    nursery = task.parent_nursery
    opener = "" if nursery is None else nursery.parent_task.name
    # trio's own tasks have such names, and say nothing to anybody.
    owner = f", in a nursery opened by task {opener!r}" if opener and opener[0] != "<" else ""
    return f" (this is task {task.name!r}{owner})"
