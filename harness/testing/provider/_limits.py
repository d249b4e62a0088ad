"""Judge a request against all limits of a provider together.

A request is charged to every limit or, if one refuses, to none: a refused request costs nothing. An
`Allowance` has each limit's arithmetic; nothing here reads a clock either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import attrs

from harness.testing.provider._enforcement import (
    MINUTE_SECONDS,
    Allowance,
    Bucket,
    FixedWindow,
    Paced,
)

Judged: TypeAlias = Literal["bucket", "second", "minute"]
"""How the limits per minute are judged; see `open_provider`."""

DAY_SECONDS = 86_400.0


@attrs.frozen(kw_only=True)
class LimitState:
    """The state of one limit at one moment."""

    limit: float
    remaining: float
    """At least 0, even after an overrun."""
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

    allowances: Mapping[str, Allowance]

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
        for name, allowance in self.allowances.items():
            asked = amounts.get(name)
            if asked is None:
                continue
            wait = allowance.wait_seconds(asked, now)
            if wait > 0 and (worst is None or wait > worst.wait_seconds):
                worst = Refused(
                    name=name,
                    limit=allowance.limit,
                    used=allowance.limit - allowance.remaining(now),
                    asked=asked,
                    wait_seconds=wait,
                )
        if worst is None:
            self.charge(amounts, now)
        return worst

    def charge(self, amounts: Mapping[str, float], now: float) -> None:
        """Charge what becomes known only later, such as the length of an answer."""
        for name, allowance in self.allowances.items():
            amount = amounts.get(name)
            if amount:
                allowance.charge(amount, now)

    def states(self, now: float) -> dict[str, LimitState]:
        """Return the state of each limit, by name."""
        return {
            name: LimitState(
                limit=allowance.limit,
                remaining=max(0.0, allowance.remaining(now)),
                reset_seconds=allowance.reset_seconds(now),
            )
            for name, allowance in self.allowances.items()
        }


_TOKEN_ALLOWANCES: Mapping[Judged, Callable[[float], Allowance]] = {
    "bucket": Bucket,
    # Providers that judge requests over a second still judge tokens over a
    # minute: one long prompt can be more than any second's share.
    "second": lambda limit: FixedWindow(limit, MINUTE_SECONDS),
    "minute": lambda limit: FixedWindow(limit, MINUTE_SECONDS),
}

_REQUEST_ALLOWANCES: Mapping[Judged, Callable[[float], Allowance]] = {
    **_TOKEN_ALLOWANCES,
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
      tokens_per_minute: Most tokens a minute, questions and answers together.
      input_tokens_per_minute: Most tokens of questions a minute.
      output_tokens_per_minute: Most tokens of answers a minute.
      requests_per_day: Most requests in each 24 hours since the provider was opened.
      judged: How the limits per minute are judged. ``"bucket"`` refills continuously, ``"minute"``
        counts from zero each minute since the provider was opened, ``"second"`` does so too and
        spreads the requests, but not the tokens, over the minute's seconds.

    Raises:
      TypeError: if a limit isn't a number.
      ValueError: if a limit isn't finite and greater than 0, or ``judged`` is none of the three.
    """
    if judged not in _REQUEST_ALLOWANCES:
        raise ValueError(
            f"judged must be one of {', '.join(map(repr, _REQUEST_ALLOWANCES))}, not {judged!r}"
        )
    per_minute = {
        "requests": requests_per_minute,
        "tokens": tokens_per_minute,
        "input_tokens": input_tokens_per_minute,
        "output_tokens": output_tokens_per_minute,
    }
    allowances: dict[str, Allowance] = {}
    for name, limit in per_minute.items():
        if limit is not None:
            checked = _checked_limit(f"{name}_per_minute", limit)
            build = _REQUEST_ALLOWANCES if name == "requests" else _TOKEN_ALLOWANCES
            allowances[name] = build[judged](checked)
    if requests_per_day is not None:
        checked = _checked_limit("requests_per_day", requests_per_day)
        allowances["requests_day"] = FixedWindow(checked, DAY_SECONDS)
    return Limits(allowances)


def _checked_limit(name: str, limit: float) -> float:
    if isinstance(limit, bool) or not isinstance(limit, (int, float)):
        raise TypeError(f"{name} must be a number, or None for no limit, not {limit!r}")
    if not (math.isfinite(limit) and limit > 0):
        raise ValueError(
            f"{name} must be finite and greater than 0, not {limit!r}; use None for no limit"
        )
    return float(limit)
