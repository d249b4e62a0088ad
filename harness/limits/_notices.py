"""Define what a limiter tells observers, besides the waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from harness.limits._charges import Charge
from harness.limits._limiter_statistics import LimiterStatistics


class LimiterUsed(NamedTuple):
    """A limiter is used, for the first time as far as these observers know. Told of a run."""

    name: str
    statistics: Callable[[], LimiterStatistics]
    """Returns its state, in trio's thread: a bound method, which keeps the limiter alive."""


class ReservationOver(NamedTuple):
    """A reservation has been left. Told of the run that waited for it."""

    wait: int
    """The wait that its grant ended."""

    settled: tuple[float, Charge] | None
    """When it was settled, and to what: requests, tokens, and the input and output among them, as
    far as they count. None if it never was, so that the estimate holds."""
