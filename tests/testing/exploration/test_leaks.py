"""Faults that were reported in public are found from every seed; their corrections pass."""

import pytest

from harness.errors import ScheduleError
from harness.testing import explore_schedules
from tests.scale import scaled
from tests.testing.corpus.leak import deviations
from tests.testing.exploration.leaks import LEAKS, Leak

pytestmark = pytest.mark.slow

SEEDS = scaled(5, full=30)
CORRECTED_SCHEDULES = scaled(60, full=300)

each_leak = pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS.keys())


@each_leak
async def test_a_leak_is_found_from_every_seed_and_its_object_named(leak: Leak) -> None:
    for seed in range(SEEDS):
        with pytest.raises(ScheduleError) as caught:
            await explore_schedules(seed=seed)(leak.test)()
        error = caught.value
        assert error.schedules_run <= 500
        assert any(path.endswith(leak.names) for path in error.objects) or leak.names in str(error)
        assert error.schedule is not None
        assert deviations(error.schedule) <= 3
        with pytest.raises(ScheduleError, match="under the schedule that was given"):
            await explore_schedules(schedule=error.schedule)(leak.test)()


@each_leak
async def test_its_corrected_twin_raises_no_alarm(leak: Leak) -> None:
    await explore_schedules(schedules=CORRECTED_SCHEDULES)(leak.corrected)()
