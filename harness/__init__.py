"""Run many agents at once, and trust every result. Built on trio."""

from typing import TYPE_CHECKING

from harness import errors
from harness._lazy import lazy
from harness.fanout import Limit, Result, Results, fan_out, gather, open_fan_out, race
from harness.policies import Attempt, BestEffort, FailFast, FirstSuccess, Hedge, Quorum, Retry
from harness.runs import (
    Event,
    LogFilter,
    Run,
    RunLocal,
    cleanup,
    current_run,
    current_run_or_none,
    dump,
    observing,
    open_run,
    run_sync_soon,
    start_soon,
)

if TYPE_CHECKING:
    from harness._budget import Budget
    from harness._progress import progress
    from harness.fanout import Backlog
else:
    __getattr__, __dir__ = lazy(extras={"rich": "progress"})

__all__ = [
    "Attempt",
    "Backlog",
    "BestEffort",
    "Budget",
    "Event",
    "FailFast",
    "FirstSuccess",
    "Hedge",
    "Limit",
    "LogFilter",
    "Quorum",
    "Result",
    "Results",
    "Retry",
    "Run",
    "RunLocal",
    "cleanup",
    "current_run",
    "current_run_or_none",
    "dump",
    "errors",
    "fan_out",
    "gather",
    "observing",
    "open_fan_out",
    "open_run",
    "progress",
    "race",
    "run_sync_soon",
    "start_soon",
]
