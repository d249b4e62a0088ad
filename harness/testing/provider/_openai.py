"""Write what OpenAI's two APIs have in common: errors, and the headers about limits."""

from __future__ import annotations

import math
from collections.abc import Mapping

from harness.testing.provider._dialect import Dialect, Failure, Headers, JSONObject
from harness.testing.provider._limits import LimitState
from harness.testing.provider._rounding import whole_milliseconds, whole_seconds, whole_units

_ABBREVIATIONS = {
    "requests": "requests per min (RPM)",
    "tokens": "tokens per min (TPM)",
    "input_tokens": "input tokens per min (TPM)",
    "output_tokens": "output tokens per min (TPM)",
    "requests_day": "requests per day (RPD)",
}


class OpenAI(Dialect):
    """What the dialects of both have in common."""

    counts_maximum = True
    provider = "openai"
    tool_call_prefix = "call"

    def failure(self, failure: Failure) -> JSONObject:
        """Return an error's body."""
        message, kind, code = failure.message, "invalid_request_error", None
        refused = failure.refused
        if refused is not None:
            kind = "tokens" if "tokens" in refused.name else "requests"
            code = "rate_limit_exceeded"
            message = (
                f"{failure.message} on {_ABBREVIATIONS[refused.name]}: limit {refused.limit:.0f}, "
                f"used {refused.used:.0f}, requested {refused.asked:.0f}"
            )
            if math.isfinite(refused.wait_seconds):
                message = f"{message}. Please try again in {go_duration(refused.wait_seconds)}."
            else:
                message = f"{message}. It is larger than the whole limit; send less."
        elif failure.status == 429:
            kind, code = "requests", "rate_limit_exceeded"
        elif failure.status == 401:
            code = "invalid_api_key"
        elif failure.status >= 500:
            kind = "server_error"
        told = {"message": message, "type": kind, "param": failure.parameter, "code": code}
        return {"error": told}

    def headers(
        self, states: Mapping[str, LimitState], *, number: int, epoch_seconds: float
    ) -> Headers:
        """Return the headers that every answer carries.

        A provider that has only a daily limit announces that one as its requests, the
        way OpenAI does for models that are limited so.
        """
        headers = [("x-request-id", f"req_{number:024d}"), ("openai-version", "2020-10-01")]
        requests = states.get("requests", states.get("requests_day"))
        for name, state in (("requests", requests), ("tokens", states.get("tokens"))):
            if state is not None:
                headers.append((f"x-ratelimit-limit-{name}", f"{state.limit:.0f}"))
                headers.append((f"x-ratelimit-remaining-{name}", str(whole_units(state.remaining))))
                headers.append((f"x-ratelimit-reset-{name}", go_duration(state.reset_seconds)))
        return headers

    def retry_headers(self, wait_seconds: float) -> Headers:
        """Return the headers that name a time to wait, in both units."""
        return [
            ("retry-after", str(whole_seconds(wait_seconds))),
            ("retry-after-ms", str(whole_milliseconds(wait_seconds))),
        ]


def go_duration(seconds: float) -> str:
    """Return ``seconds`` as OpenAI's headers spell durations: ``12ms``, ``1.5s``, ``6m0s``."""
    milliseconds = whole_milliseconds(seconds)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    second, milliseconds = divmod(milliseconds, 1000)
    fraction = f".{milliseconds:03d}".rstrip("0") if milliseconds else ""
    text = f"{second}{fraction}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
