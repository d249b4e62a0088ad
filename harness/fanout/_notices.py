"""Define what a fan-out tells observers about attempts, besides that their runs begin and end."""

from __future__ import annotations

from typing import Any, NamedTuple


class AttemptOver(NamedTuple):
    """An attempt at an item has ended."""

    run_id: str
    """The run that it was made in: its own in a fan-out, the item's at a stage."""

    item: int | None
    """The item; None at a stage, where the run is the item's."""

    key: Any
    """The item's key; the stage's name at a stage."""

    number: int
    """Which attempt at it, counting from 1."""

    status: str
    """How it ended."""

    started_at: float
    """When it began."""

    value: Any
    """What it returned, or the error."""


class RetryPlanned(NamedTuple):
    """Another attempt follows a failed one. Told of the fan-out's run, or the item's at a stage."""

    item: int | None
    key: Any
    number: int
    """Which attempt failed, counting from 1."""

    after: str | None
    """The id of the run of the failed attempt."""

    delay: float
    """The seconds until the next one."""

    error: BaseException
    """Why it failed."""


class HedgeBegan(NamedTuple):
    """An attempt begins beside one that is late. Told of the fan-out's run, or the item's."""

    item: int | None
    key: Any
    run_id: str | None
    """The run of the new attempt."""

    beside: str | None
    """The run of the late one."""
