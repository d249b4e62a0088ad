"""Read the rate-limit headers of a response, from any provider.

It never raises, whatever it is given: headers come from outside, and a limiter that a strange
header can stop is worse than one that knows a little less. Values that make no sense count as
absent, and are tallied.

Order of trust for the delay: ``retry-after-ms``, ``retry-after``, a delay in the body, then
the longest reset of the limits that are used up. Moments are measured from the response's own
``Date``, because the provider's clock needn't agree with ours.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import TypeAlias

from harness.limits._responses._bodies import read_body
from harness.limits._responses._durations import read_delay_seconds, read_moment, read_number
from harness.limits._responses._heard import RateLimitDimension, RateLimitHeaders
from harness.limits._responses._profiles import (
    DAY_SECONDS,
    GENERIC,
    MINUTE_SECONDS,
    MONTH_SECONDS,
    ProviderProfile,
    profile_of,
)

HeaderSource: TypeAlias = object
"""Headers as a mapping or as pairs, of str or bytes, or ``None``; anything else is empty."""

_MOST_HEADERS = 256
_LONGEST_VALUE = 256
_REFUSED = frozenset({429, 529})
_RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})

_X_FAMILY = re.compile(
    r"(?:x-)?rate-?limit-(limit|remaining|reset)"
    r"(?:-(requests|req|tokens|project-tokens|input-tokens|output-tokens))?"
    r"(?:-(minute|day|month))?"
)
_ANTHROPIC_FAMILY = re.compile(
    r"anthropic-(?:ratelimit-(requests|tokens|input-tokens|output-tokens|unified)"
    r"|(priority-input-tokens))-(limit|remaining|reset)"
)
_BY_SIZE_FAMILY = re.compile(r"(?:x-)?ratelimitbysize-(limit|remaining|reset)-minute")
# Names that mean something by themselves: which dimension, which field, which window.
_SINGLE = {
    "x-endpoint-monthly-call-limit": ("requests_month", "limit", MONTH_SECONDS),
    "x-trial-endpoint-call-limit": ("requests", "limit", MINUTE_SECONDS),
    "x-trial-endpoint-call-remaining": ("requests", "remaining", MINUTE_SECONDS),
    "x-ratelimit-tokens-query-cost": ("tokens", "charged", MINUTE_SECONDS),
    "x-ratelimitbysize-query-cost": ("tokens", "charged", MINUTE_SECONDS),
    "ratelimitbysize-query-cost": ("tokens", "charged", MINUTE_SECONDS),
}
_WINDOWS = {"minute": MINUTE_SECONDS, "day": DAY_SECONDS, "month": MONTH_SECONDS}
_OWN_WINDOWS = {"requests_day": DAY_SECONDS, "requests_month": MONTH_SECONDS}
# A gateway may put its whole policy into one value: `100, 100;w=60`.
_WITH_POLICY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s{0,4}[,;](.*)", re.DOTALL)
_POLICY_WINDOW = re.compile(r"\bw=([0-9]{1,9})\b")


def parse_rate_limit_headers(
    headers: HeaderSource,
    *,
    provider: str | ProviderProfile | None = None,
    status: int | None = None,
    body: object = None,
    now: float | None = None,
) -> RateLimitHeaders:
    """Return what a response says about rate limits. Never raises.

    Args:
      headers: A mapping or pairs, of str or bytes, in any case; or ``None``.
      provider: Whose response it is, which decides what its headers mean; without it, they are read
        by their names.
      status: The response's status.
      body: The response's body, if it is an error's: text, bytes or parsed JSON.
      now: The time in epoch seconds, for responses without a ``Date``.

    Returns:
      A frozen value; numbers in it are finite and not negative, or ``None``.
    """
    return _Reader(headers, profile_of(provider) or GENERIC, now).read(_status(status), body)


class _Reader:
    """The reading of one response."""

    def __init__(self, headers: HeaderSource, profile: ProviderProfile, now: float | None) -> None:
        self.unreadable = 0
        self._profile = profile
        self._fields: dict[str, dict[str, float]] = {}
        self._windows: dict[str, float] = {}
        self._texts = self._lower(headers)
        self._now = self._base(now)

    def read(self, status: int | None, body: object) -> RateLimitHeaders:
        for name, text in self._texts.items():
            self._read_field(name, text)
        facts = read_body(body)
        self.unreadable += facts.unreadable
        success = status is not None and status < 400
        refused = not success and (status in _REFUSED or facts.is_rate_limit)
        retry_after = self._retry_after()
        if retry_after is None:
            retry_after = facts.delay_seconds
        dimensions = self._dimensions()
        wait = None
        if not success:
            wait = retry_after if retry_after is not None else _longest_reset(dimensions, refused)
        daily = not success and (facts.daily_quota or _used_up(dimensions, "requests_day"))
        exhausted = daily or (
            not success and (facts.quota_exhausted or _used_up(dimensions, "requests_month"))
        )
        return RateLimitHeaders(
            dimensions=MappingProxyType(dimensions),
            retry_after_seconds=retry_after,
            wait_seconds=wait,
            retryable=not exhausted and self._retryable(status, refused=refused),
            is_rate_limit=refused,
            daily_quota=daily,
            quota_exhausted=exhausted,
            unreadable=self.unreadable,
        )

    def _lower(self, headers: HeaderSource) -> dict[str, str]:
        """Return the headers as text with lower-case names; the first of each name counts."""
        texts: dict[str, str] = {}
        # Other people's containers may raise anything, and be endless.
        try:
            for pair in islice(_pairs(headers), _MOST_HEADERS):
                if not isinstance(pair, tuple | list) or len(pair) != 2:
                    continue
                name, value = _text(pair[0]), _text(pair[1])
                if name is not None and value is not None:
                    texts.setdefault(name.strip().lower(), value[:_LONGEST_VALUE].strip())
        except Exception:
            self.unreadable += 1
        return texts

    def _base(self, now: float | None) -> float:
        date = self._texts.get("date")
        if date is not None:
            moment = read_moment(date)
            if moment is not None:
                return moment
            self.unreadable += 1
        if isinstance(now, int | float) and not isinstance(now, bool) and abs(now) < 1e14:
            return float(now)
        return time.time()

    def _retry_after(self) -> float | None:
        milliseconds = self._number("retry-after-ms", read_number)
        if milliseconds is not None:
            return milliseconds / 1000
        return self._number("retry-after", self._delay)

    def _delay(self, text: str) -> float | None:
        return read_delay_seconds(text, now=self._now)

    def _number(self, name: str, read: Callable[[str], float | None]) -> float | None:
        text = self._texts.get(name)
        if text is None:
            return None
        number = read(text)
        if number is None:
            self.unreadable += 1
        return number

    def _read_field(self, name: str, text: str) -> None:
        if (single := _SINGLE.get(name)) is not None:
            dimension, field, window = single
        elif (found := _X_FAMILY.fullmatch(name)) is not None:
            field, unit, period = found.groups()
            known = _x_dimension(unit, period)
            if known is None:
                return
            dimension, window = known, _WINDOWS.get(period, MINUTE_SECONDS if unit else 0.0)
        elif (found := _ANTHROPIC_FAMILY.fullmatch(name)) is not None:
            dimension = (found[1] or found[2]).replace("-", "_")
            field, window = found[3], 0.0 if dimension == "unified" else MINUTE_SECONDS
        elif (found := _BY_SIZE_FAMILY.fullmatch(name)) is not None:
            dimension, field, window = "tokens", found[1], MINUTE_SECONDS
        else:
            return
        dimension = self._profile.renamed.get(dimension, dimension)
        if (policy := _WITH_POLICY.fullmatch(text)) is not None and field != "reset":
            text = policy[1]
            if (stretch := _POLICY_WINDOW.search(policy[2])) is not None:
                window = float(stretch[1])
        number = self._delay(text) if field == "reset" else read_number(text)
        field = "reset_seconds" if field == "reset" else field
        if number is None:
            self.unreadable += 1
            return
        self._fields.setdefault(dimension, {}).setdefault(field, number)
        window = _OWN_WINDOWS.get(dimension, window)
        self._windows[dimension] = self._profile.window_seconds.get(dimension, window)

    def _dimensions(self) -> dict[str, RateLimitDimension]:
        return {
            name: RateLimitDimension(window_seconds=self._windows[name] or None, **fields)
            for name, fields in self._fields.items()
        }

    def _retryable(self, status: int | None, *, refused: bool) -> bool:
        told = self._texts.get("x-should-retry", "").lower()
        if told in ("true", "false"):
            return told == "true"
        return refused or status in _RETRYABLE


def _x_dimension(unit: str | None, period: str | None) -> str | None:
    if unit in (None, "requests", "req"):
        return "requests" if period in (None, "minute") else f"requests_{period}"
    # Tokens per day or month have no name here, and none of our limits depends on them.
    return unit.replace("-", "_") if period in (None, "minute") else None


def _longest_reset(dimensions: Mapping[str, RateLimitDimension], refused: bool) -> float | None:
    """Return the longest reset among the limits that are used up.

    If a refusal says only when something resets, that is taken to be used up.
    """
    resets = [
        dimension.reset_seconds
        for dimension in dimensions.values()
        if dimension.reset_seconds is not None
        and (dimension.remaining == 0 or (refused and dimension.remaining is None))
    ]
    return max(resets, default=None)


def _used_up(dimensions: Mapping[str, RateLimitDimension], name: str) -> bool:
    dimension = dimensions.get(name)
    return dimension is not None and dimension.remaining == 0


def _pairs(headers: object) -> Iterable[object]:
    if headers is None or isinstance(headers, str | bytes | bytearray):
        return ()
    items = getattr(headers, "items", None)
    found = items() if callable(items) else headers
    return found if isinstance(found, Iterable) else ()


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value[:_LONGEST_VALUE]).decode("latin-1")
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return str(value)
        except ValueError:  # Python refuses to write out an int of thousands of digits.
            return None
    return None


def _status(status: object) -> int | None:
    if isinstance(status, bool) or not isinstance(status, int):
        return None
    return int(status)
