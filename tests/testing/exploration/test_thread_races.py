"""Find the races that threaded programs were reported for, and none in their corrections."""

import os
from functools import partial

import pytest

from harness.testing import Found, NotFound, find_schedule, run_schedule
from tests.testing.exploration.thread_races import RACES, Race

pytestmark = pytest.mark.slow

FULL = bool(os.environ.get("HARNESS_FULL"))
SEEDS = range(30 if FULL else 3)

each_race = pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)


@each_race
def test_a_race_is_found_from_every_seed(race: Race) -> None:
    for seed in SEEDS:
        found = find_schedule(partial(race, right=False), seed=seed)
        assert isinstance(found, Found), f"not found from seed {seed}"
        assert found.run.backend == "threads"
        assert found.run.schedule.switches <= 3
        again = run_schedule(partial(race, right=False), str(found.run.schedule))
        assert again.diverged_at is None
        assert repr(again.error) == repr(found.run.error)


@pytest.mark.long
@each_race
def test_its_correction_raises_no_alarm(race: Race) -> None:
    for seed in SEEDS if FULL else [0]:
        found = find_schedule(partial(race, right=True), seed=seed, schedules=300)
        assert isinstance(found, NotFound), found.error


@each_race
def test_a_race_is_among_its_distinct_orders(race: Race) -> None:
    found = find_schedule(partial(race, right=False), search="distinct")
    assert isinstance(found, Found)
