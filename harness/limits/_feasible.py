"""Say what a limiter's limits come to for requests of one size: how many a minute, and what binds.

Plain arithmetic, before anything is sent. Whether more requests at once would help depends on how
long one takes: as many as go in that time are enough, and any more only wait.
"""

from __future__ import annotations

from math import ceil

import attrs

from harness.limits._rate import Rate
from harness.limits._responses._profiles import MINUTE_SECONDS

_SLACK = 1e-9  # For quotients such as 0.3 / 0.1.


@attrs.frozen
class Feasible:
    """How many requests of one size a limiter lets through, as `Limiter.feasible` returns it."""

    per_minute: float | None
    """How many a minute, in the long run; ``None`` if only places bound it and nobody said how long
    a request takes."""

    in_flight: int | None
    """How many at once are enough for that; ``None`` if nobody said how long a request takes."""

    binding: str
    """What holds back more: a dimension, such as ``"tokens"``, or ``"places"``."""

    def __str__(self) -> str:
        words = [f"{self.binding} bind"]
        if self.per_minute is not None:
            shown = f"{self.per_minute:.3g}" if self.per_minute < 10 else f"{self.per_minute:,.0f}"
            words.append(f"{shown} a minute")
        if self.in_flight is not None:
            words.append(
                f"{self.in_flight:,} in flight {'is' if self.in_flight == 1 else 'are'} enough"
            )
        return f"{words[0]}: {', '.join(words[1:])}" if words[1:] else words[0]


def per_minute(rate: Rate, amount: float, *, headroom: float) -> float:
    """Return how many requests of ``amount`` fit into ``rate`` in a minute.

    A strict window holds whole requests only; one above the whole limit is repaid first.
    """
    return (
        min(
            _whole(rate.amount * headroom / amount) / rate.period,
            _whole(rate.amount / amount) * headroom / rate.period,
        )
        * MINUTE_SECONDS
    )


def _whole(requests: float) -> float:
    return float(int(requests + _SLACK)) if requests >= 1 - _SLACK else requests


def feasible(bounds: dict[str, float], *, places: int | None, seconds: float | None) -> Feasible:
    """Return what all bounds come to together.

    Args:
      bounds: How many requests a minute each dimension allows.
      places: How many may be in flight, or ``None`` for any number.
      seconds: How long a request takes, if known.
    """
    if places is not None and seconds:
        bounds = {**bounds, "places": places / seconds * MINUTE_SECONDS}
    if not bounds:
        return Feasible(None, places, "places")
    binding = min(bounds, key=lambda name: bounds[name])
    most = bounds[binding]
    if seconds is None:
        return Feasible(most, None, binding)
    enough = max(1, ceil(most / MINUTE_SECONDS * seconds - _SLACK))
    return Feasible(most, enough if places is None else min(enough, places), binding)
