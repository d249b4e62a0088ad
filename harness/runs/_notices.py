"""Define what harness itself tells observers about runs: plain frozen records.

Each is the payload of an `Event`, handed to the ``notice`` method of an observer that has one. What
a program emits goes to all observers and subscribers; these go only to who asks for them, and
while nobody does, none is made. Higher floors add records of their own.

Named tuples, as `Event` is: one is made for every run that is observed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class RunBegan(NamedTuple):
    """A run has begun."""

    by: str | None
    """The id of the run whose end, or failure, let it begin; None for its parent's own code."""

    inline: bool
    """Whether it is in its parent's own task, which therefore waits for it."""

    item: int | None
    """Which item of its parent it is an attempt at."""

    tags: Mapping[str, Any]
    """The tags it was opened with."""


class RunOver(NamedTuple):
    """A run has ended."""

    status: str
    """The status it ended with."""

    error: BaseException | None
    """What ended it, unless that was its return or its cancel."""


class WaitBegan(NamedTuple):
    """Code of the run waits for something."""

    wait: int
    """Tells it from all other waits of this process."""

    reason: str
    """``"limiter"``, ``"queue"``, ``"retry"``, ``"model"``, ``"tool"`` or ``"cleanup"``; more may
    be added."""

    on: str
    """What it waits for, by name."""

    held_by: tuple[str, ...]
    """The ids of the runs that have what it waits for, as far as they are known."""


class WaitOver(NamedTuple):
    """That wait is over, however it ended."""

    wait: int
    """Which one."""

    reason: str
    """As when it began."""

    by: str | None
    """The id of the run whose code ended it; None for the clock, or an answer from outside."""

    facts: Mapping[str, Any]
    """More about it, for instance what a limiter has granted: strings and numbers."""
