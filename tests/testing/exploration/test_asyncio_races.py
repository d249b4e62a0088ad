"""Find the races that asyncio programs were reported for, and none in their corrections."""

import asyncio
import os
from functools import partial

import pytest

from harness.errors import ScheduleError
from harness.testing import Found, NotFound, explore_schedules, find_schedule, run_schedule
from tests.testing.exploration.asyncio_races import RACES, Race

pytestmark = pytest.mark.slow

NAMES = {
    "check_then_act": "left",
    "lost_update": "count",
    "current_request": "App.request",
    "request_in_a_callback": "latest",
    "lost_wake_up": "ready",
    "cancel_leaves_a_reply": "replies",
    "gathered_list": "results",
    "cache_stampede": "loads",
    "two_clients": "client",
    "double_close": "closes",
    "lost_task_done": "queue",
    "rotating_token": "token",
    "window_of_a_limiter": "window",
    "condition_without_a_loop": "items",
    "two_locks": "ada",
    "stopped_while_starting": "state",
    "read_while_writing": "first",
}
"""What the report names, where tasks change something behind each other's back."""

SEEDS = range(30 if os.environ.get("HARNESS_FULL") else 4)

each_race = pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)


@each_race
def test_a_race_is_found_from_every_seed(race: Race) -> None:
    for seed in SEEDS:
        found = find_schedule(partial(race, right=False), seed=seed)
        assert isinstance(found, Found), f"not found from seed {seed}"
        assert found.run.backend == "asyncio"
        assert found.run.schedule.switches <= 3
        again = run_schedule(partial(race, right=False), str(found.run.schedule))
        assert again.diverged_at is None
        assert repr(again.error) == repr(found.run.error)


@pytest.mark.long
@each_race
def test_its_correction_raises_no_alarm(race: Race) -> None:
    for seed in SEEDS:
        found = find_schedule(partial(race, right=True), seed=seed, schedules=300)
        assert isinstance(found, NotFound), found.error


@pytest.mark.parametrize("race", [race for race in RACES if race.__name__ in NAMES])
def test_the_object_that_tasks_share_is_named(race: Race) -> None:
    async def test() -> None:
        await race(right=False)

    with pytest.raises(ScheduleError) as caught:
        asyncio.run(explore_schedules(test)())
    name = race.__name__
    assert caught.value.objects[0] == f"{NAMES[name]} (local of {name})"
    assert not any("harness" in path or "_" in path.split()[0] for path in caught.value.objects)
