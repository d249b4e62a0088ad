"""Try concurrent agents: find shared state, replay schedules, and simulate a provider.

Each name is loaded when first used, so needing one part doesn't mean waiting for the others.
"""

from typing import TYPE_CHECKING

from harness._lazy import lazy

if TYPE_CHECKING:
    from harness.testing._clock import ThreadsHoldClock, hold_clock
    from harness.testing._shares import Share
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
        explore_cancellations,
        explore_schedules,
        exploring_with,
    )
    from harness.testing.isolation import (
        Isolation,
        Leakage,
        LeakageAtOnce,
        LeakageThrough,
        assert_isolated,
    )
    from harness.testing.linearizability import assert_linearizable
    from harness.testing.schedules import (
        BlockedTask,
        Fault,
        Found,
        NotFound,
        Observer,
        OrdersSeen,
        PriorityBound,
        RacingLines,
        Schedule,
        ScheduleRun,
        Strand,
        after_cancel,
        arriving,
        faultable,
        faulty,
        find_schedule,
        run_schedule,
    )
    from harness.testing.verification import Recorded, Verification, verify
else:
    __getattr__, __dir__ = lazy()

__all__ = [
    "Arrivals",
    "BlockedTask",
    "Chaos",
    "ChaosStatistics",
    "Fault",
    "Found",
    "Isolation",
    "Leakage",
    "LeakageAtOnce",
    "LeakageThrough",
    "NotFound",
    "Observer",
    "OrdersSeen",
    "PriorityBound",
    "RacingLines",
    "Recorded",
    "Recording",
    "Schedule",
    "ScheduleRun",
    "Share",
    "Strand",
    "StressReport",
    "ThreadsHoldClock",
    "Verification",
    "after_cancel",
    "all_failure_combinations",
    "arriving",
    "assert_consistent",
    "assert_isolated",
    "assert_linearizable",
    "assert_stable_under_load",
    "explore_arrivals",
    "explore_cancellations",
    "explore_schedules",
    "exploring_with",
    "faultable",
    "faulty",
    "find_schedule",
    "hold_clock",
    "run_schedule",
    "verify",
]
