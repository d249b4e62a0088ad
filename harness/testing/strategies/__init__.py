"""Hypothesis strategies: schedules, outcomes, and trees of runs.

Needs the extra ``testing`` (Hypothesis)::

    @given(tree=run_trees(), schedule=schedules())
    def test_every_run_ends_as_planned(tree, schedule):
        run_schedule(tree.play, schedule).unwrap()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.testing.strategies._run_tree import Ending, PlannedError, RunTree

if TYPE_CHECKING:
    from harness.testing.strategies._strategies import outcomes, results, run_trees, schedules

__all__ = [
    "Ending",
    "PlannedError",
    "RunTree",
    "outcomes",
    "results",
    "run_trees",
    "schedules",
]

_NEED_HYPOTHESIS = frozenset({"outcomes", "results", "run_trees", "schedules"})


def __getattr__(name: str) -> Any:
    if name not in _NEED_HYPOTHESIS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        strategies = import_module("harness.testing.strategies._strategies")
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "hypothesis":
            raise
        raise ImportError(
            f"harness.testing.strategies.{name} needs hypothesis, which is not installed; "
            "run: pip install 'trio-harness[testing]'",
            name=error.name,
        ) from error
    return getattr(strategies, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NEED_HYPOTHESIS})
