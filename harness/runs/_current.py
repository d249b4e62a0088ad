"""Find the run that the calling code belongs to."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar

from harness.errors import NoRunError
from harness.runs._frames import where_we_are
from harness.runs._run import Run

current: ContextVar[Run | None] = ContextVar("harness.current_run", default=None)
"""The run that code belongs to. The only place where runs are ambient."""


def current_run() -> Run:
    """Return the run this code belongs to.

    In a task that outlived its run, this is the run that ended; using it raises `RunEndedError`.

    Raises:
      NoRunError: outside any run.
    """
    run = current.get()
    if run is None:
        raise no_run_error()
    return run


def current_run_or_none() -> Run | None:
    """Return the run this code belongs to, or None outside any."""
    return current.get()


def no_run_error(why: str = "") -> NoRunError:
    """Return the error that says how to get a run where this is called.

    Args:
      why: What needs one, if that isn't obvious; ends with a comma or "and".
    """
    where = where_we_are()
    return NoRunError(
        f"{why}{' ' if why else ''}there is no run here{where}; open one with "
        '`async with harness.open_run("name"):`, or put @harness.open_run("name") above the '
        f"function, for a run of its own for each call{_advice(in_trio=bool(where))}"
    )


def _advice(*, in_trio: bool) -> str:
    if in_trio:
        advice = (
            ". A task of a nursery outside the run's block is the run's if it is started with "
            "harness.start_soon(nursery, fn, run=run)"
        )
    elif (asyncio := sys.modules.get("asyncio")) and asyncio._get_running_loop() is not None:
        advice = ". In asyncio only the decorator will do: the block needs trio"
    else:
        advice = (
            ". In a plain function only the decorator will do; a thread has the run of whoever "
            "starts it with trio.to_thread.run_sync"
        )
    if "PYTEST_CURRENT_TEST" in os.environ:
        advice += (
            ". An async test has a run of its own, unless the setting or the marker harness_run "
            "turns that off; what a plain test or a fixture calls hasn't"
        )
    return advice
