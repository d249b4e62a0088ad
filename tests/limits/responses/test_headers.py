"""Response headers: every family and form, and no input that can make the reader fail."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.limits import RateLimitDimension, RateLimitHeaders, parse_rate_limit_headers

NOW = 1_700_000_000.0
EXAMPLES = settings(max_examples=150, deadline=None)


def parse(headers: object = None, **given: object) -> RateLimitHeaders:
    given.setdefault("now", NOW)
    return parse_rate_limit_headers(headers, **given)  # type: ignore[arg-type]


# The delay -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2),
        ("0", 0),
        ("1.5", 1.5),
        ("6m0s", 360),
        ("12ms", 0.012),
        ("1h2m3.5s", 3723.5),
        (" 7 ", 7),
        (str(int(NOW) + 30), 30),
        (str((int(NOW) + 30) * 1000), 30),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60),
        ("Tuesday, 14-Nov-23 22:14:20 GMT", 60),
        ("Tue Nov 14 22:14:20 2023", 60),
        ("2023-11-14T22:14:20Z", 60),
        ("2023-11-14T23:14:20+01:00", 60),
        ("2023-11-14T22:14:20.500000000Z", 60.5),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0),
    ],
)
def test_retry_after_in_every_form(value: str, seconds: float) -> None:
    heard = parse({"Retry-After": value}, status=429)
    assert heard.retry_after_seconds == pytest.approx(seconds)
    assert heard.wait_seconds == pytest.approx(seconds)
    assert heard.unreadable == 0


@pytest.mark.parametrize(
    "value",
    [
        "-1",
        "nan",
        "NaN",
        "inf",
        "Infinity",
        "-inf",
        "",
        "soon",
        "1e999",
        "9" * 5000,
        "1_000",
        "٣",
        "Tue, 99 Nov 2023 22:14:20 GMT",
        "2023-13-45T99:99:99Z",
        "\x00",
        "--",
        "1h1",
        "1 2",
    ],
)
def test_a_senseless_delay_is_absent_and_counted(value: str) -> None:
    """-1 crashed a program's sleep, and nan or infinity made one sleep forever."""
    heard = parse({"retry-after": value}, status=429)
    assert heard.retry_after_seconds is None
    assert heard.wait_seconds is None
    assert heard.unreadable == 1
    assert heard.is_rate_limit
    assert heard.retryable


def test_zero_milliseconds_is_a_value() -> None:
    """`if not ms` skipped it, and took the 5 s beside it."""
    heard = parse({"retry-after-ms": "0", "retry-after": "5"}, status=429)
    assert heard.retry_after_seconds == 0
    assert heard.wait_seconds == 0


def test_senseless_milliseconds_leave_the_seconds() -> None:
    heard = parse({"retry-after-ms": "-1", "retry-after": "5"}, status=429)
    assert heard.wait_seconds == 5
    assert heard.unreadable == 1


def test_order_of_trust() -> None:
    reset = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "40s"}
    body = {"error": {"message": "Please try again in 30s."}}
    seconds = {"retry-after": "20"}
    milliseconds = {"retry-after-ms": "10000"}
    assert parse({**milliseconds, **seconds, **reset}, status=429, body=body).wait_seconds == 10
    assert parse({**seconds, **reset}, status=429, body=body).wait_seconds == 20
    assert parse(reset, status=429, body=body).wait_seconds == 30
    assert parse(reset, status=429).wait_seconds == 40


def test_the_longest_reset_of_what_is_used_up() -> None:
    """The short reset of requests hid the long one of tokens."""
    heard = parse(
        {
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-reset-tokens": "6m0s",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-remaining-requests": "0",
        },
        status=429,
    )
    assert heard.wait_seconds == 360


def test_a_limit_that_is_not_used_up_is_not_waited_for() -> None:
    heard = parse(
        {
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-remaining-tokens": "10",
            "x-ratelimit-reset-tokens": "6m0s",
        },
        status=429,
    )
    assert heard.wait_seconds == 1


def test_a_reset_on_a_success_is_not_a_wait() -> None:
    heard = parse(
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "60s"}, status=200
    )
    assert heard.wait_seconds is None
    assert not heard.is_rate_limit
    assert heard.dimensions["requests"].reset_seconds == 60


def test_moments_count_from_the_responses_own_date() -> None:
    """The provider's clock is two minutes before ours, and its delay is still 30 s."""
    heard = parse(
        {"Date": "Tue, 14 Nov 2023 22:11:20 GMT", "Retry-After": "Tue, 14 Nov 2023 22:11:50 GMT"},
        status=429,
    )
    assert heard.wait_seconds == 30
    broken = parse({"Date": "noon", "Retry-After": "Tue, 14 Nov 2023 22:13:50 GMT"}, status=429)
    assert broken.wait_seconds == 30
    assert broken.unreadable == 1


# The dimensions --------------------------------------------------------------------------------


def test_openai_headers() -> None:
    heard = parse(
        {
            "x-ratelimit-limit-requests": "500",
            "x-ratelimit-remaining-requests": "499",
            "x-ratelimit-reset-requests": "120ms",
            "x-ratelimit-limit-tokens": "30000",
            "x-ratelimit-remaining-tokens": "29000",
            "x-ratelimit-reset-tokens": "2s",
            "x-ratelimit-limit-project-tokens": "10000",
            "x-ratelimit-remaining-project-tokens": "9000",
            "x-ratelimit-reset-project-tokens": "6s",
        },
        provider="openai",
        status=200,
    )
    assert dict(heard.dimensions) == {
        "requests": RateLimitDimension(
            limit=500, remaining=499, reset_seconds=0.12, window_seconds=60
        ),
        "tokens": RateLimitDimension(
            limit=30_000, remaining=29_000, reset_seconds=2, window_seconds=60
        ),
        "project_tokens": RateLimitDimension(
            limit=10_000, remaining=9_000, reset_seconds=6, window_seconds=60
        ),
    }


def test_anthropic_headers() -> None:
    heard = parse(
        [
            (b"Anthropic-RateLimit-Requests-Limit", b"50"),
            (b"anthropic-ratelimit-requests-remaining", b"0"),
            (b"anthropic-ratelimit-requests-reset", b"2023-11-14T22:13:50Z"),
            (b"anthropic-ratelimit-input-tokens-limit", b"40000"),
            (b"anthropic-ratelimit-output-tokens-remaining", b"8000"),
            (b"anthropic-ratelimit-tokens-limit", b"48000"),
            (b"anthropic-priority-input-tokens-limit", b"10000"),
            (b"anthropic-ratelimit-unified-reset", b"1700000090"),
        ],
        provider="anthropic",
        status=429,
    )
    assert set(heard.dimensions) == {
        "requests",
        "input_tokens",
        "output_tokens",
        "tokens",
        "priority_input_tokens",
        "unified",
    }
    assert heard.dimensions["requests"] == RateLimitDimension(
        limit=50, remaining=0, reset_seconds=30, window_seconds=60
    )
    assert heard.dimensions["unified"].reset_seconds == 90


def test_groqs_requests_are_a_days() -> None:
    heard = parse(
        {"x-ratelimit-limit-requests": "14400", "x-ratelimit-remaining-requests": "14370"},
        provider="groq",
        status=200,
    )
    assert heard.dimensions["requests_day"] == RateLimitDimension(
        limit=14_400, remaining=14_370, window_seconds=86_400
    )
    assert "requests" not in heard.dimensions


def test_mistral_and_cohere_headers() -> None:
    mistral = parse(
        {
            "x-ratelimit-limit-req-minute": "60",
            "x-ratelimit-remaining-req-minute": "59",
            "x-ratelimit-limit-tokens-minute": "500000",
            "x-ratelimit-remaining-tokens-minute": "499000",
            "x-ratelimit-tokens-query-cost": "1000",
            "x-ratelimit-limit-tokens-month": "1000000000",
        },
        provider="mistral",
    )
    assert mistral.dimensions["requests"].limit == 60
    assert mistral.dimensions["tokens"].charged == 1_000
    assert mistral.dimensions["tokens"].limit == 500_000
    cohere = parse(
        {"x-endpoint-monthly-call-limit": "1000", "x-trial-endpoint-call-remaining": "9"},
        provider="cohere",
    )
    assert cohere.dimensions["requests_month"].limit == 1_000
    assert cohere.dimensions["requests"].remaining == 9


def test_a_gateways_single_window() -> None:
    heard = parse(
        {
            "X-RateLimit-Limit": "20",
            "X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset": str(int((NOW + 15) * 1000)),
        },
        status=429,
    )
    assert heard.dimensions["requests"] == RateLimitDimension(
        limit=20, remaining=0, reset_seconds=15
    )
    assert heard.wait_seconds == 15
    policy = parse({"ratelimit-limit": "100, 100;w=30", "ratelimit-remaining": "7"})
    assert policy.dimensions["requests"].limit == 100


def test_negative_limits_are_unknown() -> None:
    heard = parse(
        {
            "x-ratelimit-limit-requests": "-1",
            "x-ratelimit-remaining-requests": "-1",
            "x-ratelimit-reset-requests": "0",
        },
        status=200,
    )
    assert heard.dimensions["requests"] == RateLimitDimension(reset_seconds=0, window_seconds=60)
    assert heard.unreadable == 2


def dimension(remaining: float | None = None, **fields: float | None) -> RateLimitDimension:
    return RateLimitDimension(remaining=remaining, **fields)


# Header by header as the providers' public references, and answers shown in public, have them.
FIXTURES: dict[str, tuple[str | None, dict[str, str], dict[str, RateLimitDimension]]] = {
    "Mistral, by size": (
        "mistral",
        {
            "x-ratelimitbysize-limit-minute": "500000",
            "x-ratelimitbysize-remaining-minute": "499968",
            "x-ratelimitbysize-limit-month": "1000000000",
            "x-ratelimitbysize-remaining-month": "999999968",
            "ratelimitbysize-limit": "500000",
            "ratelimitbysize-remaining": "499968",
            "ratelimitbysize-reset": "33",
            "ratelimitbysize-query-cost": "32",
        },
        {
            "tokens": dimension(
                499_968, limit=500_000, reset_seconds=33, charged=32, window_seconds=60
            ),
            "tokens_month": dimension(999_999_968, limit=1_000_000_000, window_seconds=30 * 86_400),
        },
    ),
    "Mistral, by size, when the month is the nearer limit": (
        "mistral",
        {
            "x-ratelimitbysize-limit-minute": "500000",
            "ratelimitbysize-limit": "1000000000",
            "ratelimitbysize-reset": "1209600",
        },
        {"tokens": dimension(limit=500_000, window_seconds=60)},
    ),
    "Mistral, with its ten seconds, which have no name here": (
        "mistral",
        {
            "x-ratelimit-limit-req-minute": "720",
            "x-ratelimit-remaining-req-minute": "717",
            "x-ratelimit-limit-req-10-second": "2",
            "x-ratelimit-remaining-req-10-second": "0",
            "x-ratelimit-limit-tokens-month": "1000000000000",
            "x-ratelimit-remaining-tokens-month": "999998798434",
            "x-ratelimit-tokens-query-cost": "52",
        },
        {
            "requests": dimension(717, limit=720, window_seconds=60),
            "tokens_month": dimension(
                999_998_798_434, limit=1_000_000_000_000, window_seconds=30 * 86_400
            ),
        },
    ),
    "the IETF's three fields": (
        None,
        {"RateLimit-Limit": "100", "RateLimit-Remaining": "50", "RateLimit-Reset": "50"},
        {"requests": dimension(50, limit=100, reset_seconds=50)},
    ),
    "the IETF's three fields with a policy": (
        None,
        {
            "RateLimit-Limit": "10",
            "RateLimit-Policy": "10;w=1, 50;w=60, 1000;w=3600, 5000;w=86400",
            "RateLimit-Remaining": "9",
            "RateLimit-Reset": "1",
        },
        {"requests": dimension(9, limit=10, reset_seconds=1, window_seconds=1)},
    ),
    "the IETF's one field of the seventh draft": (
        None,
        {
            "RateLimit": "limit=100, remaining=50, reset=5",
            "RateLimit-Policy": '100;w=60;comment="it\'s, really; fine", 5000;w=86400',
        },
        {"requests": dimension(50, limit=100, reset_seconds=5, window_seconds=60)},
    ),
    "the IETF's list of policies": (
        None,
        {
            "RateLimit-Policy": '"burst";q=100;w=60,"daily";q=1000;w=86400',
            "RateLimit": '"burst";r=50;t=30, "daily";r=900;t=80000',
        },
        {
            "requests": dimension(50, limit=100, reset_seconds=30, window_seconds=60),
            "requests_day": dimension(
                900, limit=1_000, reset_seconds=80_000, window_seconds=86_400
            ),
        },
    ),
    "the IETF's list of policies, in units": (
        None,
        {
            "RateLimit-Policy": '"peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:, '
            '"t";q=9000;qu="tokens";w=60, "s";q=10;w=1, "m";q=300;w=60',
            "RateLimit": '"peruser";r=5;t=1, "m";r=299, "s";r=9;t=1',
        },
        {
            "tokens": dimension(limit=9_000, window_seconds=60),
            "requests": dimension(299, limit=300, window_seconds=60),
            "requests per 1 s": dimension(9, limit=10, reset_seconds=1, window_seconds=1),
        },
    ),
    "a hub that writes two names": (
        None,
        {
            "ratelimit": '"api";r=495;t=140',
            "ratelimit-policy": '"fixed window";"api";q=500;w=300',
        },
        {"requests": dimension(495, limit=500, reset_seconds=140, window_seconds=300)},
    ),
    "Cohere, with a key for trials": (
        "cohere",
        {
            "x-endpoint-monthly-call-limit": "1000",
            "x-trial-endpoint-call-limit": "20",
            "x-trial-endpoint-call-remaining": "19",
        },
        {
            "requests_month": dimension(limit=1_000, window_seconds=30 * 86_400),
            "requests": dimension(19, limit=20, window_seconds=60),
        },
    ),
    "Together, which counts by the second": (
        "together",
        {
            "x-ratelimit-limit": "10",
            "x-ratelimit-remaining": "9",
            "x-ratelimit-reset": "1",
            "x-tokenlimit-limit": "3000",
            "x-tokenlimit-remaining": "2976",
        },
        {
            "requests": dimension(9, limit=10, reset_seconds=1, window_seconds=1),
            "tokens": dimension(2_976, limit=3_000, window_seconds=1),
        },
    ),
    "the same from somebody unknown": (
        None,
        {"x-tokenlimit-limit": "3000", "x-tokenlimit-remaining": "2976"},
        {"tokens": dimension(2_976, limit=3_000)},
    ),
    "Fireworks": (
        "fireworks",
        {
            "x-ratelimit-limit-requests": "600",
            "x-ratelimit-remaining-requests": "599",
            "x-ratelimit-limit-tokens-prompt": "3600000",
            "x-ratelimit-remaining-tokens-prompt": "3599000",
            "x-ratelimit-limit-tokens-cache-adjusted-prompt": "900000",
            "x-ratelimit-limit-tokens-generated": "36000",
            "x-ratelimit-remaining-tokens-generated": "0",
            "x-ratelimit-over-limit": "no",
        },
        {
            "requests": dimension(599, limit=600, window_seconds=60),
            "input_tokens": dimension(3_599_000, limit=3_600_000, window_seconds=60),
            "output_tokens": dimension(0, limit=36_000, window_seconds=60),
        },
    ),
    "a gateway before a provider: the limit of one, never with the window of the other": (
        "openai",
        {
            "x-ratelimit-limit": "5",
            "x-ratelimit-remaining": "4",
            "x-ratelimit-limit-requests": "500",
            "x-ratelimit-remaining-requests": "499",
        },
        {"requests": dimension(499, limit=500, window_seconds=60)},
    ),
}


@pytest.mark.parametrize("name", FIXTURES)
def test_headers_as_providers_document_them(name: str) -> None:
    provider, headers, dimensions = FIXTURES[name]
    heard = parse(headers, provider=provider, status=200)
    assert dict(heard.dimensions) == dimensions
    assert heard.unreadable == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT1M30S", 90),
        ("pt0.5s", 0.5),
        ("PT2H", 7_200),
        ("P1DT1S", 86_401),
        ("P2W", 14 * 86_400),
        ("P1M", None),  # A month has no fixed length.
        ("P1Y", None),
        ("PT", None),
        ("P", None),
        ("-PT5S", None),
    ],
)
def test_iso_durations(text: str, seconds: float | None) -> None:
    heard = parse({"x-ratelimit-reset-tokens": text, "retry-after": text}, status=429)
    assert heard.retry_after_seconds == seconds
    assert heard.unreadable == (2 if seconds is None else 0)


@pytest.mark.parametrize(
    "headers",
    [
        {"ratelimit-policy": '"a";q=-1;w=60', "ratelimit": '"a";r=nan;t=1e9'},
        {"ratelimit-policy": '"a";q=ten', "ratelimit": "limit=x"},
        {"ratelimit": '"a";r=' + "9" * 300},
    ],
)
def test_senseless_policies_are_absent_and_counted(headers: dict[str, str]) -> None:
    heard = parse(headers, status=200)
    assert not any(one.limit or one.remaining for one in heard.dimensions.values())
    assert heard.unreadable


def test_headers_in_a_body_are_read_like_headers() -> None:
    """A gateway that passes refusals on puts the headers into the error."""
    headers = {
        "X-RateLimit-Limit": "20",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": str(int((NOW + 12) * 1000)),
    }
    message = "Rate limit exceeded: free-models-per-min. "
    error = {"message": message, "code": 429, "metadata": {"headers": headers}}
    heard = parse({}, provider="openrouter", status=429, body={"error": error})
    assert heard.dimensions["requests"] == dimension(0, limit=20, reset_seconds=12)
    assert (heard.wait_seconds, heard.quota_exhausted, heard.retryable) == (12, False, True)

    headers["X-RateLimit-Limit"] = "50"
    headers["X-RateLimit-Reset"] = str(int((NOW + 9_000) * 1000))
    error["message"] = (
        "Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000 free model "
        "requests per day"
    )
    heard = parse({}, provider="openrouter", status=429, body={"error": error})
    assert dict(heard.dimensions) == {
        "requests_day": dimension(0, limit=50, reset_seconds=9_000, window_seconds=86_400)
    }
    assert (heard.wait_seconds, heard.quota_exhausted, heard.daily_quota) == (9_000, True, True)


# What is used up -------------------------------------------------------------------------------

TOO_LARGE = (
    "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, "
    "Requested 45000. The input or output tokens must be reduced in order to run successfully."
)


@pytest.mark.parametrize(
    ("status", "message", "too_large"),
    [
        (429, TOO_LARGE, True),
        (413, TOO_LARGE, True),
        (
            413,
            "Request too large for model `m` on tokens per minute (TPM): Limit 6,000, "
            "Requested 6,413, please reduce your message size and try again.",
            True,
        ),
        (413, "Request exceeds the maximum size", True),
        (
            429,
            "Rate limit reached for m on tokens per min (TPM): Limit 30000, Used 20000, "
            "Requested 15000. Please try again in 10s.",
            False,
        ),
        (429, "Too many requests", False),
    ],
)
def test_a_request_above_the_limit_is_no_refusal_for_rate(
    status: int, message: str, too_large: bool
) -> None:
    body = {"error": {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}}
    heard = parse({"retry-after": "3"}, status=status, body=body)
    assert heard.too_large == too_large
    assert heard.is_rate_limit == heard.retryable == (not too_large)
    assert heard.wait_seconds == (None if too_large else 3)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [("8.64s", 8.64), ("1m26.4s", 86.4), ("2m0s", 120), ("2m0.5s", 120.5), ("7h12m0s", 25_920)],
)
def test_a_rolling_quota_for_a_day_may_be_back_soon(words: str, seconds: float) -> None:
    body = {
        "error": {
            "message": "Rate limit reached for m on requests per day (RPD): Limit 10000, Used "
            f"10000, Requested 1. Please try again in {words}. Visit https://x/limits."
        }
    }
    heard = parse({}, status=429, body=body)
    assert heard.daily_quota
    assert heard.wait_seconds == pytest.approx(seconds)
    assert heard.quota_exhausted == (seconds > 120)
    assert heard.retryable == (seconds <= 120)
    # In another sentence, the delay may be that of another limit.
    apart = {"error": {"message": body["error"]["message"].split(" Please")[0]}, "retry_after": 5}
    assert parse({}, status=429, body=apart).quota_exhausted


@pytest.mark.parametrize(
    "message",
    [
        "Too many requests. See your daily usage at https://x/usage",
        "Too many requests, see https://x/limits/requests-per-day and https://x/monthly-quota",
        "Slow down. A monthly report of your use is in the console.",
    ],
)
def test_a_hint_is_no_quota(message: str) -> None:
    heard = parse({}, status=429, body={"error": {"message": message}})
    assert not heard.quota_exhausted
    assert heard.retryable


def test_a_months_calls_are_a_quota() -> None:
    message = "You are using a Trial key, which is limited to 1000 API calls / month."
    assert parse({}, status=429, body={"message": message}).quota_exhausted
    minute = message.replace("1000 API calls / month", "20 API calls / minute")
    assert not parse({}, status=429, body={"message": minute}).quota_exhausted
    spent = {"x-ratelimit-remaining-tokens-month": "0"}
    assert parse(spent, provider="mistral", status=429).quota_exhausted


@pytest.mark.parametrize(
    "body",
    [
        {
            "error": {
                "code": 429,
                "status": "RESOURCE_EXHAUSTED",
                "details": [
                    {
                        "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                        "violations": [
                            {"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}
                        ],
                    },
                    {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"},
                ],
            }
        },
        {"error": {"message": "Rate limit reached for m on requests per day (RPD): Limit 200"}},
        {"error": {"message": "Rate limit reached for m on tokens per day (TPD): Limit 100000"}},
        "You have used up your daily quota.",
    ],
)
def test_a_daily_quota_is_not_retryable(body: object) -> None:
    for given_body in (body, json.dumps(body), json.dumps(body).encode()):
        heard = parse({}, status=429, body=given_body)
        assert heard.daily_quota
        assert heard.quota_exhausted
        assert not heard.retryable
        assert heard.is_rate_limit


def test_a_daily_quota_in_headers() -> None:
    heard = parse(
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2h"},
        provider="groq",
        status=429,
    )
    assert heard.daily_quota
    assert not heard.retryable
    assert heard.wait_seconds == 7_200


def test_an_empty_account_is_not_retryable() -> None:
    heard = parse({}, status=429, body={"error": {"code": "insufficient_quota"}})
    assert heard.quota_exhausted
    assert not heard.daily_quota
    assert not heard.retryable


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ({"error": {"details": [{"@type": "x/google.rpc.RetryInfo", "retryDelay": "34s"}]}}, 34),
        ({"retryDelay": {"seconds": 3, "nanos": 500_000_000}}, 3.5),
        ({"retry_after": 1.5}, 1.5),
        ({"error": {"retry_after_ms": 1500}}, 1.5),
        ("Please try again in 6m0s.", 360),
        ("Please try again in 20ms. Visit", 0.02),
        ("Please retry after 26 seconds.", 26),
        ("Please retry in 36.25s.", 36.25),
        ("try again in 1 minute 5 seconds", 65),
        ({"retry_after": -1}, None),
        ({"retry_after": float("nan")}, None),
        ({"retry_after": float("inf")}, None),
        ({"retryDelay": "-3s"}, None),
        ("try again in a while", None),
    ],
)
def test_a_delay_in_the_body(body: object, seconds: float | None) -> None:
    assert parse({}, status=429, body=body).wait_seconds == (
        None if seconds is None else pytest.approx(seconds)
    )


@pytest.mark.parametrize(
    ("status", "retryable", "is_rate_limit"),
    [
        (200, False, False),
        (400, False, False),
        (401, False, False),
        (408, True, False),
        (429, True, True),
        (500, True, False),
        (503, True, False),
        (529, True, True),
        (None, False, False),
    ],
)
def test_what_a_status_means(status: int | None, retryable: bool, is_rate_limit: bool) -> None:
    heard = parse({}, status=status)
    assert heard.retryable == retryable
    assert heard.is_rate_limit == is_rate_limit


def test_the_provider_may_say_whether_to_retry() -> None:
    assert not parse({"x-should-retry": "false"}, status=500).retryable
    assert parse({"x-should-retry": "true"}, status=400).retryable


def test_the_value_is_frozen() -> None:
    heard = parse({"x-ratelimit-limit-requests": "1"})
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        heard.wait_seconds = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        heard.dimensions["x"] = RateLimitDimension()  # type: ignore[index]


# Anything at all -------------------------------------------------------------------------------

NAMES = st.sampled_from(
    [
        "retry-after",
        "retry-after-ms",
        "date",
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
        "x-ratelimit-reset-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-limit",
        "x-ratelimit-reset",
        "anthropic-ratelimit-input-tokens-reset",
        "anthropic-ratelimit-unified-reset",
        "x-ratelimit-limit-req-minute",
        "x-ratelimitbysize-limit-minute",
        "ratelimitbysize-reset",
        "ratelimit",
        "ratelimit-policy",
        "x-tokenlimit-remaining",
        "x-should-retry",
    ]
)
NUMBERS = st.one_of(st.integers(), st.floats(), st.integers(min_value=10**300, max_value=10**310))
PIECES = st.sampled_from(
    [
        *"0123456789",
        "s",
        "m",
        "h",
        "ms",
        ".",
        "-",
        ":",
        "T",
        "Z",
        " ",
        ",",
        ";w=",
        "Nov",
        "Tue",
        "e",
        "_",
        "²",
        "\x00",
        "GMT",
    ]
)
TEXTS = st.one_of(
    st.text(),
    NUMBERS.map(repr),
    st.lists(PIECES, max_size=20).map("".join),
    st.datetimes().map(str),
    st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
)
VALUES = st.one_of(
    TEXTS,
    TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")),
    NUMBERS,
    st.none(),
    st.booleans(),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(
                st.sampled_from(["retryDelay", "retry_after", "message", "seconds", "code"]),
                st.text(max_size=5),
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)
ANYTHING = st.one_of(VALUES, JSON, st.binary(), st.just(object()), st.just(int))


def assert_sensible(heard: RateLimitHeaders) -> None:
    numbers = [heard.retry_after_seconds, heard.wait_seconds]
    for dimension in heard.dimensions.values():
        numbers.extend(attrs.astuple(dimension))
    assert all(number is None or (math.isfinite(number) and number >= 0) for number in numbers), (
        heard
    )


@pytest.mark.slow
@given(
    headers=st.one_of(
        st.dictionaries(st.one_of(NAMES, st.text(), st.binary()), VALUES),
        st.lists(st.tuples(st.one_of(NAMES, NAMES.map(str.encode)), VALUES)),
        st.lists(st.lists(ANYTHING, max_size=3)),
        ANYTHING,
    ),
    status=st.one_of(st.none(), st.integers(), st.sampled_from([200, 429, 500, 529]), ANYTHING),
    body=ANYTHING,
    provider=st.one_of(st.none(), st.sampled_from(["groq", "openai", "nobody"]), ANYTHING),
    now=st.one_of(st.none(), st.floats(), ANYTHING),
)
@EXAMPLES
def test_no_input_raises(
    headers: object, status: object, body: object, provider: object, now: object
) -> None:
    assert_sensible(
        parse_rate_limit_headers(
            headers,
            provider=provider,  # type: ignore[arg-type]
            status=status,  # type: ignore[arg-type]
            body=body,
            now=now,  # type: ignore[arg-type]
        )
    )


@pytest.mark.slow
@given(name=NAMES, value=TEXTS)
@EXAMPLES
def test_no_value_of_a_known_header_raises(name: str, value: str) -> None:
    assert_sensible(parse({name: value}, status=429))


def test_hostile_containers_do_not_raise() -> None:
    class Angry:
        def items(self) -> object:
            raise RuntimeError("no")

    class Endless:
        def __iter__(self) -> Iterator[tuple[str, str]]:
            while True:
                yield "retry-after", "3"

    class Hashless(dict[str, object]):
        __hash__ = None

    assert parse(Angry(), status=429).unreadable == 1
    assert parse(Endless(), status=429).wait_seconds == 3
    assert parse({}, status=429, body=Hashless(retry_after=3)).wait_seconds is None
    assert parse({}, provider=[]).wait_seconds is None
    deep = "[" * 30_000 + "]" * 30_000
    assert parse({}, status=429, body=deep).wait_seconds is None
    wide = json.dumps({str(index): "try again in 5s" for index in range(3_000)})
    assert parse({}, status=429, body=wide).wait_seconds in (None, 5)
    cyclic: list[object] = []
    cyclic.append(cyclic)
    assert parse({}, status=429, body=cyclic).wait_seconds is None
