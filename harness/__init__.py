"""Run many agents at once, and trust every result. Built on trio."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness import errors
from harness.fanout import Result, Results, fan_out, open_fan_out, race
from harness.policies import (
    Attempt,
    BestEffort,
    Budget,
    FailFast,
    FirstSuccess,
    Hedge,
    Quorum,
    Retry,
)
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
    from harness.fanout import Fold, Similar, coverage, merge, resolve

__all__ = [
    "Attempt",
    "BestEffort",
    "Budget",
    "Event",
    "FailFast",
    "FirstSuccess",
    "Fold",
    "Hedge",
    "LogFilter",
    "Quorum",
    "Result",
    "Results",
    "Retry",
    "Run",
    "RunLocal",
    "Similar",
    "cleanup",
    "coverage",
    "current_run",
    "current_run_or_none",
    "dump",
    "errors",
    "fan_out",
    "merge",
    "observing",
    "open_fan_out",
    "open_run",
    "race",
    "resolve",
    "run_sync_soon",
    "start_soon",
]

_LOADED_WHEN_USED = frozenset({"Fold", "Similar", "coverage", "merge", "resolve"})


def __getattr__(name: str) -> Any:
    if name in _LOADED_WHEN_USED:
        return getattr(import_module("harness.fanout"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LOADED_WHEN_USED})
