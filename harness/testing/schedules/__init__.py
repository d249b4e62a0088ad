"""Run a program under chosen orders of its tasks' steps, and find the order that breaks it.

`run_schedule` runs a program once under a `Schedule`, and `find_schedule` searches for one under
which it fails. `faultable` and `faulty` mark what a schedule can make go wrong, and `arriving`
marks functions whose replies can overtake each other. The checks of `harness.testing` are built on
these.

Controlled are the order in which tasks resume at their checkpoints, virtual time, and faults. Not
controlled are worker threads, sockets, randomness and real time; every report says whether the
program waited for either of the first two.
"""

from harness.testing.schedules._arrivals import arriving
from harness.testing.schedules._blocked import BlockedTask
from harness.testing.schedules._controlled import ScheduleRun
from harness.testing.schedules._faults import faultable, faulty
from harness.testing.schedules._find import Found, NotFound, find_schedule
from harness.testing.schedules._orders_seen import OrdersSeen, RacingLines
from harness.testing.schedules._run_schedule import run_schedule
from harness.testing.schedules._schedule import Fault, Schedule
from harness.testing.schedules._strand import Kind, Observer, Strand
from harness.testing.schedules._task_cancels import after_cancel
from harness.testing.schedules._ways import PriorityBound

__all__ = [
    "BlockedTask",
    "Fault",
    "Found",
    "Kind",
    "NotFound",
    "Observer",
    "OrdersSeen",
    "PriorityBound",
    "RacingLines",
    "Schedule",
    "ScheduleRun",
    "Strand",
    "after_cancel",
    "arriving",
    "faultable",
    "faulty",
    "find_schedule",
    "run_schedule",
]
