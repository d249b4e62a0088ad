"""How much a test does, and how long it waits.

Little by default, the counts of the specification on request.

`make check-full` sets ``HARNESS_FULL=1``. A test that repeats something asks here how often.
"""

import os
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")

FULL = os.environ.get("HARNESS_FULL") == "1"
"""Whether this is a run with full counts."""


def some_of(cases: Iterable[Case], *, one_in: int) -> list[Case]:
    """Return one case in so many, or all in a run with full counts."""
    return list(cases)[:: 1 if FULL else one_in]


def scaled(count: int, *, full: int) -> int:
    """Return ``count``, or ``full`` in a run with full counts."""
    return full if FULL else count


PATIENCE_SECONDS = 500.0
"""How long a test waits for what ought to come at once, such as the end of another process.

No machine is ever so busy; and it ends before pytest-timeout does, which says less.
"""
