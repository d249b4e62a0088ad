"""Read how far off something is, in every form that providers use.

Durations (``6m0s``, ``12ms``, ``1h2m3.5s``, ISO 8601's ``PT1M30S``, plain seconds), moments (epoch
seconds or milliseconds, told apart by magnitude; ISO 8601; the three forms of an HTTP date).
Negative durations, nan, infinity and nonsense are ``None``; a moment in the past is 0.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from harness._http_dates import http_date

_LONGEST_TEXT = 64  # The longest valid form is about 35 characters long.

_NUMBER = re.compile(r"[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18}")
_PART = r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ns|us|µs|μs|ms|s|m|h|d)"
_COMPOUND = re.compile(rf"(?:{_PART}){{1,8}}")
_ONE_PART = re.compile(_PART)
# Years and months have no fixed length, so a duration that has any is unreadable.
_ISO_DURATION = re.compile(
    r"p(?=.)(?:([0-9]{1,9})w)?(?:([0-9]{1,9})d)?"
    r"(?:t(?=.)(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,12}(?:[.,][0-9]{1,12})?)s)?)?"
)
_ISO_SECONDS = (7 * 86_400.0, 86_400.0, 3600.0, 60.0, 1.0)
_ISO_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}.*")

_UNIT_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}

# As a duration, a billion seconds are 31 years; as an epoch, they are the year 2001.
_EPOCH_SECONDS_FROM = 1e9
_EPOCH_MILLISECONDS_FROM = 1e11
_EPOCH_MILLISECONDS_TO = 1e14


def read_number(text: str) -> float | None:
    """Return a number that is finite and not negative, as an int if it is whole."""
    text = text.strip()
    if len(text) > _LONGEST_TEXT or not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.isdecimal() else float(text)


def read_duration_seconds(text: str) -> float | None:
    """Return the seconds of a duration such as ``6m0s``, ``12ms``, ``PT1M30S`` or ``1.5``."""
    text = text.strip().lower()
    if len(text) > _LONGEST_TEXT:
        return None
    number = read_number(text)
    if number is not None:
        return number
    if (iso := _ISO_DURATION.fullmatch(text)) is not None:
        parts = zip(iso.groups("0"), _ISO_SECONDS, strict=True)
        return sum(float(value.replace(",", ".")) * seconds for value, seconds in parts)
    if not _COMPOUND.fullmatch(text):
        return None
    return sum(float(value) * _UNIT_SECONDS[unit] for value, unit in _ONE_PART.findall(text))


def read_delay_seconds(text: str, *, now: float) -> float | None:
    """Return how far from ``now`` a duration or a moment is.

    Args:
      text: What the provider wrote.
      now: The time in epoch seconds, by the provider's clock if known.
    """
    seconds = read_duration_seconds(text)
    if seconds is None:
        moment = read_moment(text)
        return None if moment is None else max(0.0, moment - now)
    if seconds < _EPOCH_SECONDS_FROM:
        return seconds
    if seconds < _EPOCH_MILLISECONDS_FROM:
        return max(0.0, seconds - now)
    if seconds < _EPOCH_MILLISECONDS_TO:
        return max(0.0, seconds / 1000 - now)
    return None


def read_moment(text: str) -> float | None:
    """Return the epoch seconds of an ISO 8601 time or an HTTP date."""
    text = text.strip()
    if len(text) > _LONGEST_TEXT:
        return None
    try:
        if _ISO_MOMENT.fullmatch(text):
            moment = datetime.fromisoformat(text.upper())
        else:
            return http_date(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
