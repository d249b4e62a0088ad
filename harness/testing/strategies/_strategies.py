"""Define the strategies; the only file of harness that imports Hypothesis for its users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import outcome
from hypothesis import strategies as st

from harness.errors import ItemSkipped, RunCancelled, RunTimedOut
from harness.fanout import Result, Results
from harness.testing.schedules import Fault, Schedule
from harness.testing.strategies._run_tree import RunTree

_ERRORS = (ValueError("planned"), ConnectionError("planned"), TimeoutError("planned"))


def schedules(
    *,
    max_deviations: int = 4,
    max_gap: int = 30,
    max_choice: int = 4,
    runs: int = 0,
    max_at: int = 30,
) -> st.SearchStrategy[Schedule]:
    """Draw schedules for `harness.testing.run_schedule`; they shrink to the plain one.

    Args:
      max_deviations: How often at most a task other than the next goes on.
      max_gap: How many decisions may lie between two of these.
      max_choice: How far down the line the other task may be.
      runs: How many runs there are for faults to hit; 0 for no faults.
      max_at: The latest step or call of a run at which a fault may hit it.
    """
    deviations = st.lists(
        st.tuples(st.integers(0, max_gap), st.integers(0, max_choice)), max_size=max_deviations
    )
    if runs == 0:
        return st.builds(Schedule, deviations.map(tuple))
    faults = st.lists(
        st.builds(
            Fault,
            run=st.integers(0, runs - 1),
            at=st.integers(1, max_at),
            kind=st.sampled_from(("cancel", "cancel_waking", "fail", "delay")),
        ),
        max_size=2,
    )
    return st.builds(Schedule, deviations.map(tuple), faults.map(tuple))


def outcomes(
    values: st.SearchStrategy[Any] | None = None,
    *,
    errors: Sequence[Exception] = _ERRORS,
) -> st.SearchStrategy[outcome.Value[Any] | outcome.Error]:
    """Draw how a call may end: `outcome.Value` or `outcome.Error`, as in `harness.Result.outcome`.

    Args:
      values: What it may return; by default small integers.
      errors: What it may raise; if empty, it always returns.
    """
    returned = (st.integers(0, 9) if values is None else values).map(outcome.Value)
    if not errors:
        return returned
    return returned | st.sampled_from(list(errors)).map(outcome.Error)


def results(
    values: st.SearchStrategy[Any] | None = None,
    *,
    errors: Sequence[Exception] = _ERRORS,
    min_size: int = 0,
    max_size: int = 6,
) -> st.SearchStrategy[Results[Any]]:
    """Draw what a fan-out may give: `harness.Results` with all five endings.

    For testing what comes after a fan-out: `harness.testing.Recording` and your own aggregates.

    Args:
      values: The values of items that are ok; by default small integers.
      errors: The errors of items that failed.
      min_size: The fewest results.
      max_size: The most results.
    """
    endings: list[st.SearchStrategy[tuple[str, Any]]] = [
        st.tuples(st.just("ok"), st.integers(0, 9) if values is None else values),
        st.tuples(st.just("timed_out"), st.builds(RunTimedOut, st.just("planned"))),
        st.tuples(st.just("cancelled"), st.builds(RunCancelled, st.just("planned"))),
        st.tuples(st.just("skipped"), st.builds(ItemSkipped, st.just("planned"))),
    ]
    if errors:
        failed = st.sampled_from(list(errors))
        endings.insert(1, st.tuples(st.just("failed"), failed))

    def result(index: int, status: Any, ended_with: Any) -> Result[Any]:
        run_id, attempts = (None, 0) if status == "skipped" else (f"run-{index}", 1)
        times = 0.0, float(attempts)
        return Result(index, index, index, run_id, status, ended_with, attempts, *times)

    def gather(drawn: list[tuple[Any, Any]]) -> Results[Any]:
        return Results(result(index, *ended) for index, ended in enumerate(drawn))

    drawn = st.lists(st.one_of(endings), min_size=min_size, max_size=max_size)
    return drawn.map(gather)


def run_trees(*, max_runs: int = 12, max_children: int = 3) -> st.SearchStrategy[RunTree]:
    """Draw trees of runs that end in all ways; see `RunTree.play` and `RunTree.statuses`.

    Args:
      max_runs: Roughly the most runs.
      max_children: The most runs directly below one.
    """
    endings = st.sampled_from(("ok", "failed", "timed_out", "cancelled"))
    seconds = st.integers(0, 3).map(float)
    leaf = st.builds(RunTree, st.just("r"), endings, seconds)

    def above(children: st.SearchStrategy[RunTree]) -> st.SearchStrategy[RunTree]:
        several = st.lists(children, min_size=1, max_size=max_children)
        return st.builds(RunTree, st.just("r"), endings, seconds, several.map(_numbered))

    return st.recursive(leaf, above, max_leaves=max_runs)


def _numbered(trees: list[RunTree]) -> tuple[RunTree, ...]:
    """Return trees with distinct names, so that their paths differ."""
    return tuple(
        RunTree(f"{tree.name}{number}", tree.ending, tree.seconds, tree.children)
        for number, tree in enumerate(trees)
    )
