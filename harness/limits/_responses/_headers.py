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
from harness.limits._responses._families import Family, chosen, standard_families
from harness.limits._responses._heard import (
    LONGEST_WAIT_SECONDS,
    RateLimitDimension,
    RateLimitHeaders,
)
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
_TOO_LARGE = 413
_RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})

_X_FAMILY = re.compile(
    r"(?:x-)?rate-?limit-(?P<field>limit|remaining|reset)"
    r"(?:-(?P<unit>requests|req|tokens|project-tokens|input-tokens|output-tokens|tokens-prompt"
    r"|tokens-generated))?(?:-(?P<period>minute|day|month))?"
)
_ANTHROPIC_FAMILY = re.compile(
    r"anthropic-(?:ratelimit-)?(?P<unit>(?<=ratelimit-)(?:requests|tokens|input-tokens"
    r"|output-tokens|unified)|(?<=anthropic-)priority-input-tokens)-(?P<field>limit|remaining|reset)"
)
_TOKENS_FAMILY = re.compile(
    r"(?:(?:x-)?ratelimitbysize-(?P<field>limit|remaining|reset)-(?P<period>minute|month)"
    r"|x-tokenlimit-(?P<field_2>limit|remaining|reset))"
)
_UNITS = {"req": "requests", "tokens-prompt": "input_tokens", "tokens-generated": "output_tokens"}
# Names that mean something by themselves: which dimension, which field, which window.
_SINGLE = {
    "x-endpoint-monthly-call-limit": ("requests_month", "limit", MONTH_SECONDS),
    "x-trial-endpoint-call-limit": ("requests", "limit", MINUTE_SECONDS),
    "x-trial-endpoint-call-remaining": ("requests", "remaining", MINUTE_SECONDS),
}
_COSTS = (
    "x-ratelimit-tokens-query-cost",
    "x-ratelimitbysize-query-cost",
    "ratelimitbysize-query-cost",
)
_WINDOWS = {"minute": MINUTE_SECONDS, "day": DAY_SECONDS, "month": MONTH_SECONDS}
_OWN_WINDOWS = {"requests_day": DAY_SECONDS, "requests_month": MONTH_SECONDS}
_QUOTAS_OF_A_DAY = ("requests_day", "tokens_day")
_QUOTAS_OF_A_MONTH = ("requests_month", "tokens_month")
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
        self._found: list[Family] = []
        self._texts = self._lower(headers)
        self._now = self._base(now)

    def read(self, status: int | None, body: object) -> RateLimitHeaders:
        facts = read_body(body)
        self.unreadable += facts.unreadable
        success = status is not None and status < 400
        too_large = not success and (status == _TOO_LARGE or facts.too_large)
        refused = not (success or too_large) and (status in _REFUSED or facts.is_rate_limit)
        for name, text in self._texts.items():
            self._read_field(name, text)
        for name, text in self._lower(facts.headers).items():
            if self._texts.setdefault(name, text) is text:
                self._read_field(name, text, of_a_day=facts.daily_quota)
        self._read_standard_fields()
        retry_after = self._retry_after()
        if retry_after is None:
            retry_after = facts.delay_seconds
        dimensions = self._dimensions()
        wait = None
        if not success and not too_large:
            wait = retry_after if retry_after is not None else _longest_reset(dimensions, refused)
        used_up = [name for name, dimension in dimensions.items() if dimension.remaining == 0]
        days = [dimensions[name] for name in used_up if name in _QUOTAS_OF_A_DAY]
        daily = not success and not too_large and (facts.daily_quota or bool(days))
        exhausted = not success and (
            facts.quota_exhausted or any(name in _QUOTAS_OF_A_MONTH for name in used_up)
        )
        if daily:
            back = facts.daily_delay_seconds or max(
                (day.reset_seconds for day in days if day.reset_seconds is not None), default=None
            )
            if back is not None:
                wait = max(back, retry_after or 0.0)
            exhausted = exhausted or back is None or wait is None or wait > LONGEST_WAIT_SECONDS
        return RateLimitHeaders(
            dimensions=MappingProxyType(dimensions),
            retry_after_seconds=retry_after,
            wait_seconds=wait,
            retryable=not (exhausted or too_large) and self._retryable(status, refused=refused),
            is_rate_limit=refused,
            daily_quota=daily,
            quota_exhausted=exhausted,
            too_large=too_large,
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

    def _read_field(self, name: str, text: str, *, of_a_day: bool = False) -> None:
        period = "day" if of_a_day else None
        if (single := _SINGLE.get(name)) is not None:
            dimension, field, window = single
            family = dimension
        elif (found := _X_FAMILY.fullmatch(name)) is not None:
            field, unit = found["field"], found["unit"]
            period = found["period"] or period
            known = _dimension(_UNITS.get(unit, unit or "requests").replace("-", "_"), period)
            if known is None:
                return
            dimension, window = known, _WINDOWS.get(period or "", MINUTE_SECONDS if unit else 0.0)
            family = name.replace(f"-{field}", "", 1)
        elif (found := _ANTHROPIC_FAMILY.fullmatch(name)) is not None:
            dimension, field = found["unit"].replace("-", "_"), found["field"]
            window = 0.0 if dimension == "unified" else MINUTE_SECONDS
            family = dimension
        elif (found := _TOKENS_FAMILY.fullmatch(name)) is not None:
            field = found["field"] or found["field_2"]
            dimension = "tokens_month" if found["period"] == "month" else "tokens"
            window = _WINDOWS.get(found["period"] or "", 0.0)
            family = name.replace(f"-{field}", "", 1)
        else:
            return
        dimension = self._profile.renamed.get(dimension, dimension)
        if (policy := _WITH_POLICY.fullmatch(text)) is not None and field != "reset":
            text = policy[1]
            if (stretch := _POLICY_WINDOW.search(policy[2])) is not None:
                window = float(stretch[1])
        number = self._delay(text) if field == "reset" else read_number(text)
        if number is None:
            self.unreadable += 1
            return
        field = "reset_seconds" if field == "reset" else field
        window = _OWN_WINDOWS.get(dimension, window)
        window = self._profile.window_seconds.get(dimension, window)
        for one in self._found:
            if one.name == family and one.dimension == dimension:
                break
        else:
            one = Family(family, dimension)
            self._found.append(one)
        one.fields.setdefault(field, number)
        one.window = window or one.window

    def _read_standard_fields(self) -> None:
        """Read the fields of the IETF's drafts, whose policy may name the windows of others."""
        state, policy = self._texts.get("ratelimit"), self._texts.get("ratelimit-policy")
        if state is None and policy is None:
            return
        if any(len(text or "") >= _LONGEST_VALUE for text in (state, policy)):
            self.unreadable += 1  # It may be cut off within a number.
            return
        families, unreadable = standard_families(state or "", policy or "", beside=self._found)
        self._found += families
        self.unreadable += unreadable

    def _dimensions(self) -> dict[str, RateLimitDimension]:
        fields = chosen(self._found)
        if "tokens" in fields:
            self._add_to_tokens(fields["tokens"].fields)
        return {
            name: RateLimitDimension(window_seconds=one.window or None, **one.fields)
            for name, one in fields.items()
        }

    def _add_to_tokens(self, tokens: dict[str, float]) -> None:
        """Add what Mistral says of its tokens without naming the window."""
        for name in _COSTS:
            if (cost := self._number(name, read_number)) is not None:
                tokens.setdefault("charged", cost)
        # Its reset is that of the limit beside it, which may be the minute's or the month's.
        limit = self._texts.get("ratelimitbysize-limit")
        if limit is not None and read_number(limit) == tokens.get("limit"):
            reset = self._number("ratelimitbysize-reset", self._delay)
            if reset is not None:
                tokens.setdefault("reset_seconds", reset)

    def _retryable(self, status: int | None, *, refused: bool) -> bool:
        told = self._texts.get("x-should-retry", "").lower()
        if told in ("true", "false"):
            return told == "true"
        return refused or status in _RETRYABLE


def _dimension(unit: str, period: str | None) -> str | None:
    if period in (None, "minute"):
        return unit
    # Other units have no name here for a day or a month, and none of our limits needs one.
    return f"{unit}_{period}" if unit in ("requests", "tokens") else None


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
