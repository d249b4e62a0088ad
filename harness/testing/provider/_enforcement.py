"""Judge requests against limits the way model providers do.

Everything here is arithmetic on a number of seconds that the caller passes in;
nothing reads a clock, so a test can check exact values. Three meters judge one
amount each:

- `Bucket` refills continuously and holds the whole limit: somebody who was idle
  may spend a full minute's worth at once.
- `FixedWindow` counts from zero again at each multiple of its length.
- `Paced` is a fixed minute in which, besides, no second may hold more than its
  share.

`Limits` puts meters side by side: a request is charged to all of them or, when
one refuses, to none. A refused request costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TypeAlias

import attrs

Judged: TypeAlias = Literal["bucket", "second", "minute"]
"""Over what the limits per minute are judged; see `build_limits`."""

MINUTE_SECONDS = 60.0
DAY_SECONDS = 86_400.0

# A client that waits for exactly the announced time computes the same moment by
# another route; it must not be refused over the last bits of a float.
_UNIT_TOLERANCE = 1e-6
_WINDOW_TOLERANCE = 1e-9


class Meter(Protocol):
    """What the limits need of the arithmetic behind one of them."""

    @property
    def limit(self) -> float:
        """The most that can be available."""
        ...

    def remaining(self, now: float) -> float:
        """Return what is left; negative after an overrun."""
        ...

    def wait_seconds(self, amount: float, now: float) -> float:
        """Return how long until ``amount`` would be accepted: 0 for now, infinity for never."""
        ...

    def reset_seconds(self, now: float) -> float:
        """Return how long until the whole limit is available again."""
        ...

    def charge(self, amount: float, now: float) -> None:
        """Take ``amount``, even if that leaves less than nothing."""
        ...


@attrs.define(eq=False)
class Bucket:
    """A limit that refills continuously.

    Its state is the one moment at which it will be full again. A charge moves
    that moment on, and everything else follows from it, so reading changes
    nothing and rounding errors don't pile up.
    """

    limit: float
    period_seconds: float = MINUTE_SECONDS
    _full_at: float = attrs.field(default=-math.inf, init=False)

    def remaining(self, now: float) -> float:
        """Return what is left; negative after an overrun."""
        missing_seconds = max(0.0, self._full_at - now)
        return self.limit - missing_seconds * self.limit / self.period_seconds

    def wait_seconds(self, amount: float, now: float) -> float:
        """Return how long until ``amount`` would be accepted: 0 for now, infinity for never."""
        if amount > self.limit:
            return math.inf
        short_by = amount - self.remaining(now)
        if short_by <= _UNIT_TOLERANCE:
            return 0.0
        return short_by * self.period_seconds / self.limit

    def reset_seconds(self, now: float) -> float:
        """Return how long until the bucket is full."""
        return max(0.0, self._full_at - now)

    def charge(self, amount: float, now: float) -> None:
        """Take ``amount``, even if that leaves less than nothing."""
        self._full_at = max(self._full_at, now) + amount * self.period_seconds / self.limit


@attrs.define(eq=False)
class FixedWindow:
    """A limit that starts anew at each multiple of the window's length.

    What a window was overrun by is forgotten with it, as the providers do.
    """

    limit: float
    period_seconds: float
    _window: int = attrs.field(default=0, init=False)
    _used: float = attrs.field(default=0.0, init=False)

    def remaining(self, now: float) -> float:
        """Return what is left in this window; negative after an overrun."""
        return self.limit - (self._used if self._window == self._window_at(now) else 0.0)

    def wait_seconds(self, amount: float, now: float) -> float:
        """Return how long until ``amount`` would be accepted: 0 for now, infinity for never."""
        if amount > self.limit:
            return math.inf
        if amount <= self.remaining(now) + _UNIT_TOLERANCE:
            return 0.0
        return self._next_window_at(now) - now

    def reset_seconds(self, now: float) -> float:
        """Return how long until the next window, or 0 while this one is untouched."""
        if self.remaining(now) >= self.limit:
            return 0.0
        return self._next_window_at(now) - now

    def charge(self, amount: float, now: float) -> None:
        """Take ``amount``, even if that leaves less than nothing."""
        window = self._window_at(now)
        if window != self._window:
            self._window = window
            self._used = 0.0
        self._used += amount

    def _window_at(self, now: float) -> int:
        return math.floor(now / self.period_seconds + _WINDOW_TOLERANCE)

    def _next_window_at(self, now: float) -> float:
        return (self._window_at(now) + 1) * self.period_seconds


@attrs.define(eq=False)
class Paced:
    """A limit per minute that expects its requests to be spread evenly.

    Each second may hold the limit's sixtieth, rounded up, so that a flow that is
    even and at the limit is never refused. Below sixty a minute the interval
    grows until it may hold one whole request. What is left and when it resets
    are those of the minute: that is what such a provider announces.
    """

    limit: float
    _minute: FixedWindow = attrs.field(init=False)
    _interval: FixedWindow = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._minute = FixedWindow(self.limit, MINUTE_SECONDS)
        self._interval = FixedWindow(
            max(1.0, math.ceil(self.limit / MINUTE_SECONDS)),
            max(1.0, MINUTE_SECONDS / self.limit),
        )

    def remaining(self, now: float) -> float:
        """Return what is left in this minute."""
        return self._minute.remaining(now)

    def wait_seconds(self, amount: float, now: float) -> float:
        """Return how long until ``amount`` would be accepted: 0 for now, infinity for never."""
        return max(
            self._minute.wait_seconds(amount, now),
            self._interval.wait_seconds(amount, now),
        )

    def reset_seconds(self, now: float) -> float:
        """Return how long until the next minute, or 0 while this one is untouched."""
        return self._minute.reset_seconds(now)

    def charge(self, amount: float, now: float) -> None:
        """Take ``amount``, even if that leaves less than nothing."""
        self._minute.charge(amount, now)
        self._interval.charge(amount, now)


@attrs.frozen(kw_only=True)
class LimitState:
    """How one limit stands at one moment."""

    limit: float
    remaining: float
    """At least 0, also after an overrun."""
    reset_seconds: float
    """Until the whole limit is available again."""


@attrs.frozen(kw_only=True)
class Refused:
    """Why a request was refused."""

    name: str
    """Which limit: ``requests``, ``tokens`` and so on."""
    limit: float
    used: float
    asked: float
    wait_seconds: float
    """How long until the same request would be accepted; infinity for never."""


@attrs.define(eq=False)
class Limits:
    """Every limit of one provider, judged together."""

    meters: Mapping[str, Meter]

    def admit(self, amounts: Mapping[str, float], now: float) -> Refused | None:
        """Charge ``amounts`` to all limits, or to none and say which one refused.

        Args:
          amounts: What the request takes, by the limit's name. A limit that has
            no entry here isn't asked.
          now: Seconds since the provider was opened.

        Returns:
          ``None`` if it was charged, else the refusal with the longest wait.
        """
        worst: Refused | None = None
        for name, meter in self.meters.items():
            asked = amounts.get(name)
            if asked is None:
                continue
            wait = meter.wait_seconds(asked, now)
            if wait > 0 and (worst is None or wait > worst.wait_seconds):
                worst = Refused(
                    name=name,
                    limit=meter.limit,
                    used=meter.limit - meter.remaining(now),
                    asked=asked,
                    wait_seconds=wait,
                )
        if worst is None:
            self.charge(amounts, now)
        return worst

    def charge(self, amounts: Mapping[str, float], now: float) -> None:
        """Charge what turned out only later, such as the length of an answer."""
        for name, meter in self.meters.items():
            amount = amounts.get(name)
            if amount:
                meter.charge(amount, now)

    def states(self, now: float) -> dict[str, LimitState]:
        """Return how each limit stands, by name."""
        return {
            name: LimitState(
                limit=meter.limit,
                remaining=max(0.0, meter.remaining(now)),
                reset_seconds=meter.reset_seconds(now),
            )
            for name, meter in self.meters.items()
        }


_TOKEN_METERS: Mapping[Judged, Callable[[float], Meter]] = {
    "bucket": Bucket,
    # Providers that judge requests over a second still judge tokens over a
    # minute: one long prompt can be more than any second's share.
    "second": lambda limit: FixedWindow(limit, MINUTE_SECONDS),
    "minute": lambda limit: FixedWindow(limit, MINUTE_SECONDS),
}

_REQUEST_METERS: Mapping[Judged, Callable[[float], Meter]] = {
    **_TOKEN_METERS,
    "second": Paced,
}


def build_limits(
    *,
    requests_per_minute: float | None = None,
    tokens_per_minute: float | None = None,
    input_tokens_per_minute: float | None = None,
    output_tokens_per_minute: float | None = None,
    requests_per_day: float | None = None,
    judged: Judged = "bucket",
) -> Limits:
    """Return the limits of one provider.

    Args:
      requests_per_minute: Most requests a minute; ``None`` for no limit, as below.
      tokens_per_minute: Most tokens a minute, those of questions and answers together.
      input_tokens_per_minute: Most tokens of questions a minute.
      output_tokens_per_minute: Most tokens of answers a minute.
      requests_per_day: Most requests in each 24 hours since the provider was opened.
      judged: Over what the limits per minute are judged. ``"bucket"`` refills
        continuously, ``"minute"`` counts from zero each minute since the provider
        was opened, ``"second"`` does so too and spreads the requests, but not the
        tokens, over the minute's seconds.

    Raises:
      TypeError: if a limit is not a number.
      ValueError: if a limit is not finite and greater than 0, or ``judged`` is
        none of the three.
    """
    if judged not in _REQUEST_METERS:
        raise ValueError(
            f"judged must be one of {', '.join(map(repr, _REQUEST_METERS))}, not {judged!r}"
        )
    per_minute = {
        "requests": requests_per_minute,
        "tokens": tokens_per_minute,
        "input_tokens": input_tokens_per_minute,
        "output_tokens": output_tokens_per_minute,
    }
    meters: dict[str, Meter] = {}
    for name, limit in per_minute.items():
        if limit is not None:
            checked = _checked_limit(f"{name}_per_minute", limit)
            build = _REQUEST_METERS if name == "requests" else _TOKEN_METERS
            meters[name] = build[judged](checked)
    if requests_per_day is not None:
        checked = _checked_limit("requests_per_day", requests_per_day)
        meters["requests_day"] = FixedWindow(checked, DAY_SECONDS)
    return Limits(meters)


def _checked_limit(name: str, limit: float) -> float:
    if isinstance(limit, bool) or not isinstance(limit, (int, float)):
        raise TypeError(f"{name} must be a number, or None for no limit, not {limit!r}")
    if not (math.isfinite(limit) and limit > 0):
        raise ValueError(
            f"{name} must be finite and greater than 0, not {limit!r}; use None for no limit"
        )
    return float(limit)
