"""Draw schedules, outcomes, trees of runs and concurrent calls with Hypothesis.

Needs the extra ``testing`` (Hypothesis)::

    @given(tree=run_trees(), schedule=schedules())
    def test_every_run_ends_as_planned(tree, schedule):
        run_schedule(tree.play, schedule).unwrap()
"""

from typing import TYPE_CHECKING

from harness._lazy import lazy
from harness.testing.strategies._run_tree import Ending, PlannedError, RunTree

if TYPE_CHECKING:
    from harness.testing.strategies._machine import ConcurrentStateMachine, at_once
    from harness.testing.strategies._strategies import outcomes, results, run_trees, schedules
else:
    __getattr__, __dir__ = lazy(extras={"hypothesis": "testing"})

__all__ = [
    "ConcurrentStateMachine",
    "Ending",
    "PlannedError",
    "RunTree",
    "at_once",
    "outcomes",
    "results",
    "run_trees",
    "schedules",
]
