"""Run a program under chosen orders of its tasks' steps, and find the order that breaks it.

`run_schedule` runs a program once under a `Schedule`, and `find_schedule` searches for one under
which it fails. `faultable` and `faulty` say what a schedule can make go wrong, and `arriving` whose
replies can overtake each other. The checks of `harness.testing` are built on these.

What is controlled is the order in which tasks go on at their checkpoints, virtual time, and the
faults. Not controlled are worker threads, sockets, randomness and the real time; what a program
waited for of the first two is in every report.
"""

from harness.testing.schedules._arrivals import arriving
from harness.testing.schedules._blocked import BlockedTask
from harness.testing.schedules._controlled import ScheduleRun
from harness.testing.schedules._faults import faultable, faulty
from harness.testing.schedules._find import Found, NotFound, find_schedule
from harness.testing.schedules._run_schedule import run_schedule
from harness.testing.schedules._schedule import Fault, Schedule
from harness.testing.schedules._step_backend import Observer

__all__ = [
    "BlockedTask",
    "Fault",
    "Found",
    "NotFound",
    "Observer",
    "Schedule",
    "ScheduleRun",
    "arriving",
    "faultable",
    "faulty",
    "find_schedule",
    "run_schedule",
]
