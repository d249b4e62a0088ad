"""Try concurrent agents: find shared state, replay schedules, and simulate a provider.

Each name is loaded when it is first used, so whoever needs one part doesn't wait for the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    "BlockedTask",
    "Fault",
    "Found",
    "Isolation",
    "NotFound",
    "Observer",
    "Schedule",
    "ScheduleRun",
    "arriving",
    "explore_arrivals",
    "assert_isolated",
    "explore_schedules",
    "exploring_with",
    "faultable",
    "faulty",
    "find_schedule",
    "run_schedule",
]

_LOADED_WHEN_USED = {
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
