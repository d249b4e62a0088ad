"""What the strategies draw is sound, shrinks to the plain case, and says so without Hypothesis."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import outcome
import pytest
import trio
from hypothesis import find, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import harness
from harness.testing import Recording, Schedule, run_schedule
from harness.testing.chaos import assert_consistent
from harness.testing.strategies import RunTree, outcomes, results, run_trees, schedules


@given(schedules(runs=3))
def test_a_schedule_survives_its_replay_string(schedule: Schedule) -> None:
    assert Schedule.parse(str(schedule)) == schedule
    assert len(schedule.deviations) <= 4
    assert all(fault.run < 3 for fault in schedule.faults)


@given(schedules())
def test_without_runs_there_are_no_faults(schedule: Schedule) -> None:
    assert schedule.faults == ()


@pytest.mark.slow
def test_schedules_shrink_to_the_plain_one() -> None:
    few = settings(max_examples=200)
    assert find(schedules(runs=2), lambda _: True, settings=few) == Schedule()
    one = find(schedules(), lambda schedule: schedule.switches == 1, settings=few)
    assert one.choices() == {0: 1}


@given(outcomes(st.just("v"), errors=[KeyError("k")]))
def test_an_outcome_is_a_value_or_one_of_the_errors(
    drawn: outcome.Value[Any] | outcome.Error,
) -> None:
    if isinstance(drawn, outcome.Value):
        assert drawn.value == "v"
    else:
        assert isinstance(drawn.error, KeyError)


@given(outcomes(errors=()))
def test_without_errors_every_call_returns(drawn: outcome.Value[Any] | outcome.Error) -> None:
    assert isinstance(drawn, outcome.Value)


@given(results(min_size=1))
def test_results_are_consistent_and_can_be_replayed(drawn: harness.Results[int]) -> None:
    assert_consistent(drawn, items=len(drawn))

    async def count() -> None:
        recording = Recording(drawn)
        await recording.assert_order_independent(lambda some: sorted(some.values()), orders=10)

    trio.run(count)


@pytest.mark.parametrize("status", ["ok", "failed", "timed_out", "cancelled", "skipped"])
@pytest.mark.slow
def test_every_ending_is_drawn(status: str) -> None:
    few = settings(max_examples=200)
    find(results(), lambda drawn: any(one.status == status for one in drawn), settings=few)


@pytest.mark.slow
@given(run_trees(), schedules())
@settings(deadline=None)
def test_a_tree_of_runs_ends_as_planned_under_any_schedule(
    tree: RunTree, schedule: Schedule
) -> None:
    """A property of runs themselves: no ending leaks into another run."""
    ran = run_schedule(tree.play, schedule)
    assert ran.outcome.unwrap() == tree.statuses()


async def test_a_tree_takes_the_time_it_says(autojump_clock: MockClock) -> None:
    tree = RunTree("r", "timed_out", 2, (RunTree("a", "failed", 5), RunTree("b", "timed_out", 1)))
    assert await tree.play() == {"r": "timed_out", "r/a": "failed", "r/b": "timed_out"}
    assert trio.current_time() == tree.total_seconds == 6


@pytest.mark.slow
def test_without_hypothesis_an_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from harness.testing import strategies\n"
        "try: strategies.schedules\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'trio-harness[testing]'" in done.stdout
