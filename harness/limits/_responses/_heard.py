"""Hold what a response said about rate limits, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

LONGEST_WAIT_SECONDS = 120.0
"""Nobody waits in line for a longer pause: it is an error, or the next provider's turn."""


@attrs.frozen(kw_only=True)
class RateLimitDimension:
    """One limit as the provider counts it. Every number is finite and not negative."""

    limit: float | None = None
    """The limit for one window."""

    remaining: float | None = None
    """What is left of it."""

    reset_seconds: float | None = None
    """How long until it is full again. After a success, that isn't a time to wait."""

    window_seconds: float | None = None
    """How long the window is, if the provider or its profile says."""

    charged: float | None = None
    """What this request was charged, if the provider says."""


@attrs.frozen(kw_only=True)
class RateLimitHeaders:
    """Everything a response said about rate limits. What made no sense is absent."""

    dimensions: Mapping[str, RateLimitDimension]
    """The limits by name: ``requests``, ``tokens``, ``project_tokens``, ``input_tokens``,
    ``output_tokens``, ``priority_input_tokens``, ``unified``, ``requests_day``,
    ``requests_month``."""

    retry_after_seconds: float | None
    """The delay that the provider asked for, by a header or in the body."""

    wait_seconds: float | None
    """How long to wait before the next request; ``None`` after a success, or if unknown.

    It is the delay asked for, or else the longest reset of the used-up limits.
    """

    retryable: bool
    """Whether the same request may succeed later, without paying or waiting a day."""

    is_rate_limit: bool
    """Whether the provider refused the request because there were too many."""

    daily_quota: bool
    """Whether what is used up is a quota for a day."""

    quota_exhausted: bool
    """Whether a quota for a day, a month or an account is used up, and isn't back within two
    minutes. A rolling quota for a day may be: its refusals say "try again in 8.6 s"."""

    too_large: bool
    """Whether the request alone is above the provider's limit, so that it can't succeed."""

    unreadable: int
    """How many values that should have meant something didn't."""
