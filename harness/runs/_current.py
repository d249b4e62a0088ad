"""Which run the code that asks belongs to."""

from __future__ import annotations

from contextvars import ContextVar

from harness.errors import NoRunError
from harness.runs._run import Run

current: ContextVar[Run | None] = ContextVar("harness.current_run", default=None)
"""The run that code belongs to. The one place where runs are ambient."""


def current_run() -> Run:
    """Return the run this code belongs to.

    In a task that outlived its run this is the run that ended; using it raises `RunEndedError`.

    Raises:
      NoRunError: outside of any run.
    """
    run = current.get()
    if run is None:
        raise NoRunError(
            "there is no run here; open one with `async with harness.open_run(name):`, "
            "or start this task with harness.start_soon(nursery, fn, run=run)"
        )
    return run


def current_run_or_none() -> Run | None:
    """Return the run this code belongs to, or None outside of any."""
    return current.get()
