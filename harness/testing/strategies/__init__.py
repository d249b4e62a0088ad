"""Hypothesis strategies: schedules, outcomes, and trees of runs.

Needs the extra ``testing`` (Hypothesis)::

    @given(tree=run_trees(), schedule=schedules())
    def test_every_run_ends_as_planned(tree, schedule):
        run_schedule(tree.play, schedule).unwrap()
"""

from typing import TYPE_CHECKING, Any

from harness._extras import load_with_extra
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
    return load_with_extra(
        "harness.testing.strategies._strategies",
        name,
        subject=f"harness.testing.strategies.{name}",
        extras={"hypothesis": "testing"},
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *_NEED_HYPOTHESIS})
