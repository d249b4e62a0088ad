"""Report what a limiter and each of its dimensions let through, and how long tasks waited."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class DimensionStatistics:
    """One dimension at one moment."""

    limit: float
    """The limit in force for one period; lower than stated if the provider says so."""

    period_seconds: float
    """How long the window of the limit is."""

    used: float
    """What was charged during the last period."""

    debt: float
    """What was used beyond the limit or the burst; it holds back the next requests."""

    unsettled: float
    """What is held by reservations neither settled nor left."""

    provider_remaining: float | None
    """What the provider's own count leaves, if it is stricter than ours."""

    slowing: bool
    """Whether grants are spaced out: others use the same limit, and the provider counts more than
    80 % of it as used."""

    @property
    def use(self) -> float:
        """The share of the limit used during the last period, from 0 to 1 or above."""
        return self.used / self.limit


@attrs.frozen(kw_only=True)
class LimiterStatistics:
    """A limiter at one moment."""

    name: str
    """The limiter's name."""

    granted: int
    """Reservations that were entered, since the start."""

    waiting: int
    """Tasks now waiting in line."""

    waiting_by_priority: Mapping[float, int]
    """The same by priority, the largest first."""

    in_flight: int
    """Reservations now holding a place."""

    concurrent: int | None
    """How many reservations may be held at once now, or ``None`` for any number."""

    dimensions: Mapping[str, DimensionStatistics]
    """Each limited dimension by its name, such as ``"requests"`` or ``"tokens"``."""

    waits: int
    """Reservations that had to wait in line, since the start."""

    waited_seconds: float
    """How long they waited in total."""

    paused_seconds: float
    """How much longer the limiter is paused; 0 if it isn't."""

    pauses: int
    """Shared pauses, since the start."""

    rate_limited: int
    """Responses with status 429 or 529, since the start."""

    unreadable: int
    """Header values that made no sense and were ignored, since the start."""

    @property
    def use(self) -> dict[str, float]:
        """The used share of each limit, by dimension."""
        return {name: dimension.use for name, dimension in self.dimensions.items()}

    @property
    def debt(self) -> dict[str, float]:
        """What is owed in each dimension."""
        return {name: dimension.debt for name, dimension in self.dimensions.items()}

    def __str__(self) -> str:
        used = ", ".join(
            f"{name} {dimension.use:.0%}{', slowing at 80 %' if dimension.slowing else ''}"
            for name, dimension in self.dimensions.items()
        )
        places = "" if self.concurrent is None else f" of {self.concurrent}"
        waiting = f"{self.waiting} waiting"
        if len(self.waiting_by_priority) > 1:
            lanes = self.waiting_by_priority.items()
            waiting += f" ({', '.join(f'{count} at {priority:g}' for priority, count in lanes)})"
        mean_seconds = self.waited_seconds / self.waits if self.waits else 0.0
        return (
            f"{self.name}: {used or 'no rate limit'}; {self.in_flight}{places} in flight, "
            f"{waiting}; {self.waits} waited {mean_seconds:.1f} s on average"
        )
