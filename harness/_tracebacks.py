"""Show where an error came from, in the user's own frames.

Between a fan-out and the function that failed there are a dozen frames of harness and trio, the
same ones for every item. They say nothing about the error, so they are left out, also for its
causes and for the errors in a group.
"""

from __future__ import annotations

import os
import traceback

import outcome
import trio
from trio.lowlevel import enable_ki_protection

from harness.errors import JournaledError

_MOST_CHARACTERS = 20_000

# A compiled module has no file to show anyway.
_LEFT_OUT = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep
    for file in (__file__, trio.__file__, outcome.__file__)
)


@enable_ki_protection  # `traceback` has a bare `except`, which would swallow a Ctrl-C.
def traceback_of(error: BaseException | None) -> str | None:
    """Return the traceback of an item's error as Python prints it, without frames of harness.

    Returns:
      None if there is none: no error, or one that was never raised. Of an error that another
      process recorded: what it recorded.
    """
    if isinstance(error, JournaledError):
        return error.traceback
    if error is None or not (
        error.__traceback__ or error.__cause__ or isinstance(error, BaseExceptionGroup)
    ):
        return None
    try:
        shown = traceback.TracebackException.from_exception(error)
        _leave_out(shown, set())
        text = "".join(shown.format())
    except Exception as broken:  # An error's own code runs when it is printed.
        return f"(its traceback can't be shown: {type(broken).__name__})"
    if len(text) > _MOST_CHARACTERS:
        half = _MOST_CHARACTERS // 2
        text = f"{text[:half]}\n[...]\n{text[-half:]}"
    return text.rstrip("\n")


def frames_of(error: BaseException, *, at_most: int = 8) -> list[str]:
    """Return where an error came from, as ``file:line function``, innermost last; user frames only.

    Cheap: no source is read.
    """
    found: list[str] = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(_LEFT_OUT):
            found.append(f"{code.co_filename}:{traceback.tb_lineno} {code.co_qualname}")
        traceback = traceback.tb_next
    return found[-at_most:]


def _leave_out(shown: traceback.TracebackException, seen: set[int]) -> None:
    if id(shown) in seen:
        return
    seen.add(id(shown))
    theirs = [frame for frame in shown.stack if not frame.filename.startswith(_LEFT_OUT)]
    shown.stack = traceback.StackSummary.from_list(theirs)
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _leave_out(other, seen)
