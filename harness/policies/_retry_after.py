"""Read from an error whether another attempt may succeed, and how long it asks to wait first.

Errors of HTTP clients differ in shape but agree in substance: a status and response headers, on
the error or on its ``response``. Nothing here raises, whatever an error carries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from harness._http_dates import http_date
from harness._root_errors import root_errors
from harness._too_large import is_above_limit
from harness._words import error_in_words, repr_of
from harness.errors import RateLimitedError

RATE_LIMIT_STATUSES = frozenset({429, 529})
"""Too many requests (RFC 6585), and "overloaded" as Anthropic's API sends it."""


HOPELESS_STATUSES = frozenset(
    {400, 401, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 422, 451}
)
"""A request that is wrong, not allowed, or for something that isn't there: so it is next time."""

# Groq says it with the second.
_TOO_LARGE_STATUSES = frozenset({429, 413})


def is_too_large(error: BaseException) -> bool:
    """Return whether the error is a refusal of a request that alone is above the limit."""
    if _status(error) not in _TOO_LARGE_STATUSES:
        return False
    said = (error_in_words(error, at_most=2_000), repr_of(_read(error, "body")))
    return any(is_above_limit(text) for text in said)


def is_rate_limit(error: Exception) -> bool:
    """Return whether the error says that requests came too fast."""
    return isinstance(error, RateLimitedError) or _status(error) in RATE_LIMIT_STATUSES


def may_succeed(error: Exception) -> bool:
    """Return whether the same request may succeed next time, for all that the error says.

    A group of errors says no if each of them does.
    """
    roots = root_errors(error)
    return not roots or any(
        isinstance(root, RateLimitedError) or _status(root) not in HOPELESS_STATUSES
        for root in roots
    )


def _status(error: BaseException) -> int | None:
    for holder in (error, _read(error, "response")):
        for name in ("status_code", "status"):
            status = _read(holder, name)
            if isinstance(status, int):
                return status
    return None


def retry_after_seconds(error: Exception, *, now: float) -> float | None:
    """Return how many seconds the error asks to wait, or None if it doesn't say.

    Looks in this order: the attribute ``retry_after``; the headers ``retry-after-ms`` and
    ``retry-after`` (seconds or an HTTP date, which counts from the response's own ``date``).
    Negative, infinite and unreadable values count as absent.

    Args:
      error: The error.
      now: Seconds since the epoch, for dates.
    """
    seconds = _as_seconds(_read(error, "retry_after"))
    if seconds is not None:
        return seconds
    for holder in (error, _read(error, "response")):
        headers = _lower_names(_read(holder, "headers"))
        milliseconds = _as_seconds(headers.get("retry-after-ms"))
        if milliseconds is not None:
            return milliseconds / 1000
        text = headers.get("retry-after")
        seconds = _as_seconds(text)
        if seconds is not None:
            return seconds
        moment = _as_epoch(text)
        if moment is not None:
            sent = _as_epoch(headers.get("date"))
            return max(0.0, moment - (now if sent is None else sent))
    return None


def _read(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception:  # A property of somebody else's error class.
        return None


def _lower_names(headers: Any) -> dict[str, Any]:
    try:
        pairs = headers.items() if isinstance(headers, Mapping) else list(headers or ())
        return {_text(name).lower(): value for name, value in pairs}
    except Exception:  # Not headers at all.
        return {}


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _as_seconds(value: Any) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        seconds = float(_text(value)) if isinstance(value, (str, bytes)) else float(value)
    except Exception:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _as_epoch(value: Any) -> float | None:
    try:
        return None if value is None else http_date(_text(value))
    except Exception:  # Its own __str__ may do anything.
        return None
