"""Runs: pieces of work that own their state.

Everything here is about one run at a time; for many, see `harness.fanout`.
"""

from typing import TYPE_CHECKING

from harness._lazy import lazy
from harness.runs._block import RunBlock, open_run
from harness.runs._cleanup import Cleanup, cleanup
from harness.runs._current import current_run, current_run_or_none
from harness.runs._dump import dump
from harness.runs._events import Event, Subscription
from harness.runs._inbox import Inbox
from harness.runs._local import RunLocal, locals_of
from harness.runs._log import LogFilter, add_run
from harness.runs._notices import RunBegan, RunOver, WaitBegan, WaitOver
from harness.runs._observers import observing
from harness.runs._run import Run, RunStatus
from harness.runs._tasks import run_sync_soon, start_soon

if TYPE_CHECKING:
    # An instrument for tests, which few programs load.
    from harness.runs._strays import Stray, StrayTasks
else:
    __getattr__, __dir__ = lazy()

__all__ = [
    "Cleanup",
    "Event",
    "Inbox",
    "LogFilter",
    "Run",
    "RunBegan",
    "RunBlock",
    "RunLocal",
    "RunOver",
    "RunStatus",
    "Stray",
    "StrayTasks",
    "Subscription",
    "WaitBegan",
    "WaitOver",
    "add_run",
    "cleanup",
    "current_run",
    "current_run_or_none",
    "dump",
    "locals_of",
    "observing",
    "open_run",
    "run_sync_soon",
    "start_soon",
]
