"""Try concurrent agents: find shared state, replay schedules, and simulate a provider.

Each name is loaded when it is first used, so whoever needs one part doesn't wait for the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.testing._clock import ThreadsHoldClock, hold_clock
    from harness.testing.chaos import (
        Arrivals,
        Chaos,
        ChaosStatistics,
        Recording,
        StressReport,
        all_failure_combinations,
        assert_consistent,
        assert_stable_under_load,
    )
    from harness.testing.exploration import (
        explore_arrivals,
        explore_schedules,
        exploring_with,
    )
    from harness.testing.isolation import Isolation, assert_isolated
    from harness.testing.schedules import (
        BlockedTask,
        Fault,
        Found,
        NotFound,
        Observer,
        Schedule,
        ScheduleRun,
        arriving,
        faultable,
        faulty,
        find_schedule,
        run_schedule,
    )

__all__ = [
    "Arrivals",
    "BlockedTask",
    "Chaos",
    "ChaosStatistics",
    "Fault",
    "Found",
    "Isolation",
    "NotFound",
    "Observer",
    "Recording",
    "Schedule",
    "ScheduleRun",
    "StressReport",
    "ThreadsHoldClock",
    "all_failure_combinations",
    "arriving",
    "assert_consistent",
    "assert_isolated",
    "assert_stable_under_load",
    "explore_arrivals",
    "explore_schedules",
    "exploring_with",
    "faultable",
    "faulty",
    "find_schedule",
    "hold_clock",
    "run_schedule",
]

_LOADED_WHEN_USED = {
    "Arrivals": "harness.testing.chaos",
    "Chaos": "harness.testing.chaos",
    "ChaosStatistics": "harness.testing.chaos",
    "Recording": "harness.testing.chaos",
    "StressReport": "harness.testing.chaos",
    "ThreadsHoldClock": "harness.testing._clock",
    "all_failure_combinations": "harness.testing.chaos",
    "assert_consistent": "harness.testing.chaos",
    "assert_stable_under_load": "harness.testing.chaos",
    "hold_clock": "harness.testing._clock",
    "BlockedTask": "harness.testing.schedules",
    "Fault": "harness.testing.schedules",
    "Found": "harness.testing.schedules",
    "Isolation": "harness.testing.isolation",
    "NotFound": "harness.testing.schedules",
    "Observer": "harness.testing.schedules",
    "Schedule": "harness.testing.schedules",
    "ScheduleRun": "harness.testing.schedules",
    "assert_isolated": "harness.testing.isolation",
    "arriving": "harness.testing.schedules",
    "explore_arrivals": "harness.testing.exploration",
    "explore_schedules": "harness.testing.exploration",
    "exploring_with": "harness.testing.exploration",
    "faultable": "harness.testing.schedules",
    "faulty": "harness.testing.schedules",
    "find_schedule": "harness.testing.schedules",
    "run_schedule": "harness.testing.schedules",
}


def __getattr__(name: str) -> Any:
    module = _LOADED_WHEN_USED.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LOADED_WHEN_USED})
