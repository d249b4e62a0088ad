"""Define what a fan-out tells observers, besides that its runs begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.runs._notices import Notice

if TYPE_CHECKING:
    # For checkers alone: a protocol takes a while to make, and `import harness` would make it.
    from typing import Protocol

    from harness.fanout._snapshot import FanOutStatistics

    class ObservedFanOut(Protocol):
        """A fan-out, a pipeline or a router under way, as observers see it. For trio's thread."""

        @property
        def slots(self) -> int:
            """How many items, or calls of stages, may be in progress at once."""
            ...

        def statistics(self) -> FanOutStatistics:
            """Return how many items are where."""
            ...


class FanOutBegan(Notice):
    """A fan-out, a pipeline or a router has begun. Told of its run, whose end is its end."""

    __slots__ = ("size", "fan_out")

    size: int | None
    """How many items there are; None if that isn't known."""

    fan_out: ObservedFanOut
    """To be asked while it runs, and to be let go of when its run is over."""


class ItemOver(Notice):
    """An item has its result. Told of the fan-out's run."""

    __slots__ = ("item", "status", "attempts", "started_at", "ended_at", "degraded")

    item: int
    """Which item, by its place in the input."""

    status: str
    attempts: int
    started_at: float
    """When its first attempt began."""

    ended_at: float
    degraded: bool
    """Whether the fallback gave the value."""


class AttemptOver(Notice):
    """An attempt at an item has ended."""

    __slots__ = ("run_id", "item", "key", "number", "status", "started_at", "value")

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


class RetryPlanned(Notice):
    """Another attempt follows a failed one. Told of the fan-out's run, or the item's at a stage."""

    __slots__ = ("item", "key", "number", "after", "delay", "error")

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


class HedgeBegan(Notice):
    """An attempt begins beside one that is late. Told of the fan-out's run, or the item's."""

    __slots__ = ("item", "key", "run_id", "beside")

    item: int | None
    key: Any
    run_id: str | None
    """The run of the new attempt."""

    beside: str | None
    """The run of the late one."""
