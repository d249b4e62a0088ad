"""Make a traceback of frames in which nothing was raised, for a debugger or a report."""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType, TracebackType

from harness.testing._users_code import is_users_frame


def as_traceback(frames: Iterable[tuple[FrameType, int]]) -> TracebackType | None:
    """Return a traceback of those frames that run the user's code; None if there are none.

    Args:
      frames: Frames with their lines, outermost first.
    """
    made: TracebackType | None = None
    for frame, line in reversed([one for one in frames if is_users_frame(one[0])]):
        made = TracebackType(made, frame, frame.f_lasti, line)
    return made


def users_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return the frames of the user's code that an error has passed, outermost first.

    Of a group, on into the error in it, as long as there is only one.
    """
    frames: list[tuple[FrameType, int]] = []
    traceback = error.__traceback__
    while traceback is not None:
        if is_users_frame(traceback.tb_frame):
            frames.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        frames += users_frames(error.exceptions[0])
    return frames
