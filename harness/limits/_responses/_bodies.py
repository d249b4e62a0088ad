"""Read from the body of a refusal how long to wait and what is used up.

Bodies come from outside, so the walk through one is bounded in size, depth and steps, and no
content can make it fail.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType

import attrs

from harness._too_large import is_above_limit
from harness.limits._responses._durations import read_duration_seconds

_LARGEST_BODY = 65_536
_LONGEST_STRING = 2_000
_MOST_NODES = 500
_MOST_TEXTS = 40

_DELAY_FIELDS = frozenset(
    {"retrydelay", "retry_after", "retryafter", "retry_after_seconds", "retry-after"}
)
_MILLISECOND_FIELDS = frozenset({"retry_after_ms", "retryafterms", "retry-after-ms"})
_RATE_CODES = frozenset(
    {
        "rate_limit_error",
        "rate_limit_exceeded",
        "ratelimitexceeded",
        "overloaded_error",
        "resource_exhausted",
        "too_many_requests",
    }
)
_ACCOUNT_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached"})

_UNIT = r"(?:milliseconds?|seconds?|minutes?|hours?|days?|ms|s|m|h|d)"
_IN_WORDS = re.compile(
    rf"(?:try again|retry)\s{{1,4}}(?:in|after)\s{{1,4}}"
    rf"((?:[0-9]{{1,9}}(?:\.[0-9]{{1,9}})?\s{{0,2}}{_UNIT}\b\s{{0,2}}|"
    rf"[0-9]{{1,9}}(?:\.[0-9]{{1,9}})?{_UNIT}){{1,5}})",
    re.IGNORECASE,
)
_LONG_UNIT = re.compile(r"\s*(milliseconds?|seconds?|minutes?|hours?|days?|ms|s|m|h|d)\s*")
# "See your daily usage at ..." is advice, and so is whatever an address is called.
_WHAT_ENDS = r"[ _-](?:[a-z]{1,12}[ _-]){0,2}(?:limit|quota|cap|allowance)"
_DAY = re.compile(
    rf"(?:per[ _-]?|/ ?)day\b|PerDay|daily{_WHAT_ENDS}|_daily\b|\b[rt]pd\b", re.IGNORECASE
)
_MONTH = re.compile(rf"(?:per[ _-]?|/ ?)month\b|monthly{_WHAT_ENDS}", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://\S{1,500}")


@attrs.frozen(kw_only=True)
class BodyFacts:
    """What the body of a response says about rate limits."""

    delay_seconds: float | None = None
    is_rate_limit: bool = False
    daily_quota: bool = False
    daily_delay_seconds: float | None = None
    """When a day's quota is back, if the sentence that names the day says so. Any other delay may
    belong to another limit."""
    quota_exhausted: bool = False
    too_large: bool = False
    headers: Mapping[str, object] = MappingProxyType({})
    """Headers that a gateway wrote into the body."""
    unreadable: int = 0


NOTHING = BodyFacts()


def read_body(body: object) -> BodyFacts:
    """Return what ``body`` says: text, bytes, parsed JSON, or anything at all."""
    if body is None:
        return NOTHING
    if isinstance(body, bytes | bytearray):
        body = bytes(body[:_LARGEST_BODY]).decode("utf-8", "replace")
    if isinstance(body, str):
        text = body[:_LARGEST_BODY]
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            body = text
    return _facts(body)


def _facts(body: object) -> BodyFacts:
    texts: list[str] = []
    delays: list[float] = []
    headers: dict[str, object] = {}
    unreadable = 0
    nodes: list[tuple[str, object]] = [("", body)]
    visited = 0
    while nodes and visited < _MOST_NODES:
        visited += 1
        name, value = nodes.pop()
        if name in _DELAY_FIELDS or name in _MILLISECOND_FIELDS:
            seconds = _field_seconds(value)
            if seconds is None:
                unreadable += 1
            else:
                delays.append(seconds / 1000 if name in _MILLISECOND_FIELDS else seconds)
        elif isinstance(value, str):
            if len(texts) < _MOST_TEXTS:
                texts.append(value[:_LONGEST_STRING])
        elif type(value) is dict and name == "headers":
            headers = headers or {str(key): member for key, member in list(value.items())[:64]}
        elif type(value) is dict:
            room = _MOST_NODES - len(nodes)
            nodes.extend(
                (key.lower() if isinstance(key, str) else "", member)
                for key, member in list(value.items())[:room]
            )
        elif type(value) is list or type(value) is tuple:
            nodes.extend((name, member) for member in value[: _MOST_NODES - len(nodes)])
    if not delays:
        delays = [seconds for text in texts if (seconds := _seconds_in_words(text)) is not None]
    codes = {text.lower() for text in texts}
    texts = [_ADDRESS.sub("", text) for text in texts]
    about_days = [text for text in texts if _DAY.search(text)]
    daily_delays = [seconds for text in about_days if (seconds := _seconds_in_words(text))]
    account = bool(codes & _ACCOUNT_CODES)
    return BodyFacts(
        delay_seconds=max(delays, default=None),
        is_rate_limit=account or bool(codes & _RATE_CODES),
        daily_quota=bool(about_days),
        daily_delay_seconds=max(daily_delays, default=None),
        quota_exhausted=account or any(_MONTH.search(text) for text in texts),
        too_large=any(is_above_limit(text) for text in texts),
        headers=headers,
        unreadable=unreadable,
    )


def _field_seconds(value: object) -> float | None:
    """Return the seconds in a field: a number, a text, or separate seconds and nanoseconds."""
    if type(value) is dict:
        whole = _field_seconds(value.get("seconds", 0))
        parts = _field_seconds(value.get("nanos", 0))
        return None if whole is None or parts is None else whole + parts * 1e-9
    if isinstance(value, str):
        return read_duration_seconds(value[:_LONGEST_STRING])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if 0 <= value < 1e18 else None
    return None


def _seconds_in_words(text: str) -> float | None:
    found = _IN_WORDS.search(text)
    if found is None:
        return None
    compact = _LONG_UNIT.sub(
        lambda unit: "ms" if unit[1].lower().startswith(("ms", "mil")) else unit[1][0],
        found[1].lower(),
    )
    return read_duration_seconds(compact)
