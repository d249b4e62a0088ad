"""What the provider accepts and announces, on a virtual clock."""

from __future__ import annotations

import json
import math

import pytest
import trio
from trio.testing import MockClock

from harness.testing.provider import (
    Answer,
    ErrorAnswer,
    Judged,
    Provider,
    ProviderRequest,
    open_provider,
)
from tests.testing.provider.asks import CHAT, MESSAGES, PATHS, RESPONSES, ask, echo


async def accepted_of(provider: Provider, count: int, *, path: str = CHAT) -> int:
    """Send ``count`` requests at this moment and return how many got through."""
    replies = [await provider.request(path, ask(path)) for _ in range(count)]
    assert {reply.status for reply in replies} <= {200, 429}
    return sum(reply.status == 200 for reply in replies)


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        # At 0 s, 0.5 s, 1 s, 30 s and 60 s: 200 requests each time, at 120 a minute.
        ("bucket", [120, 1, 1, 58, 60]),
        ("second", [2, 0, 2, 2, 2]),
        ("minute", [120, 0, 0, 0, 120]),
    ],
)
async def test_each_way_of_judging_accepts_exactly_what_it_should(
    judged: Judged, expected: list[int], autojump_clock: MockClock
) -> None:
    async with open_provider(
        answer=echo, requests_per_minute=120, judged=judged, http=False
    ) as provider:
        accepted: list[int] = []
        for moment in (0, 0.5, 1, 30, 60):
            await trio.sleep_until(moment)
            accepted.append(await accepted_of(provider, 200))
        statistics = provider.statistics()

    assert accepted == expected
    assert statistics.requests == 1000
    assert statistics.accepted == statistics.answered == sum(expected)
    assert statistics.violations == 1000 - sum(expected)
    assert statistics.violations_by_limit == {"requests": 1000 - sum(expected)}


async def test_daily_quota_lasts_for_the_day(autojump_clock: MockClock) -> None:
    async with open_provider(answer=echo, requests_per_day=3, http=False) as provider:
        assert await accepted_of(provider, 5) == 3
        await trio.sleep(3600)
        refused = await provider.request(CHAT, ask(CHAT))
        await trio.sleep(86_400 - 3600)
        assert await accepted_of(provider, 5) == 3

    assert refused.headers["retry-after"] == "82800"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert "requests per day (RPD)" in refused.body["error"]["message"]
    assert "try again in 23h0m0s" in refused.body["error"]["message"]


async def test_openai_headers_tell_how_limits_stand(autojump_clock: MockClock) -> None:
    async with open_provider(
        answer=lambda _: "x" * 40, requests_per_minute=60, tokens_per_minute=600, http=False
    ) as provider:
        first = await provider.request(CHAT, ask(CHAT, "y" * 80))  # 20 + 10 tokens.
        for _ in range(18):
            await provider.request(RESPONSES, ask(RESPONSES, "y" * 80))
        last = await provider.request(RESPONSES, ask(RESPONSES, "y" * 80))
        refused = await provider.request(CHAT, ask(CHAT, "y" * 80))

    assert {name: first.headers[name] for name in first.headers if "ratelimit" in name} == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "570",
        "x-ratelimit-reset-tokens": "3s",
    }
    assert first.body["usage"]["total_tokens"] == 30
    assert last.headers["x-ratelimit-remaining-tokens"] == "0"
    assert last.headers["x-ratelimit-reset-tokens"] == "1m0s"
    assert refused.status == 429
    assert refused.headers["retry-after"] == "2"
    assert refused.headers["retry-after-ms"] == "2000"
    assert refused.body["error"]["type"] == "tokens"
    assert refused.body["error"]["code"] == "rate_limit_exceeded"


async def test_anthropic_headers_tell_how_limits_stand(autojump_clock: MockClock) -> None:
    async with open_provider(
        answer=echo,
        requests_per_minute=2,
        input_tokens_per_minute=60,
        output_tokens_per_minute=600,
        http=False,
    ) as provider:
        await provider.request(MESSAGES, ask(MESSAGES))
        second = await provider.request(MESSAGES, ask(MESSAGES))
        refused = await provider.request(MESSAGES, ask(MESSAGES))

    assert second.headers["date"] == "Thu, 01 Jan 2026 00:00:00 GMT"
    assert second.headers["anthropic-ratelimit-requests-limit"] == "2"
    assert second.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert second.headers["anthropic-ratelimit-requests-reset"] == "2026-01-01T00:01:00Z"
    assert second.headers["anthropic-ratelimit-input-tokens-remaining"] == "56"
    assert second.headers["anthropic-ratelimit-input-tokens-reset"] == "2026-01-01T00:00:04Z"
    assert second.headers["anthropic-ratelimit-output-tokens-remaining"] == "596"
    assert "anthropic-ratelimit-tokens-limit" not in second.headers
    assert "retry-after" not in second.headers
    assert refused.status == 429
    assert refused.headers["retry-after"] == "30"
    assert refused.body["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize(
    ("path", "maximum", "charged"),
    [
        (CHAT, {"max_tokens": 1, "max_completion_tokens": 50}, 60),
        (RESPONSES, {"max_output_tokens": 50}, 60),
        (MESSAGES, {"max_tokens": 50}, 15),
        (CHAT, {}, 15),
        (CHAT, {"max_tokens": 2}, 15),
    ],
)
async def test_the_requested_maximum_counts_where_the_provider_counts_it(
    path: str, maximum: dict[str, int], charged: int, autojump_clock: MockClock
) -> None:
    """10 tokens of question and 5 of answer; the larger of two maxima is the one that counts."""
    async with open_provider(
        answer=lambda _: "x" * 20, tokens_per_minute=600, http=False
    ) as provider:
        reply = await provider.request(path, ask(path, "y" * 40, **maximum))
    name = (
        "anthropic-ratelimit-tokens-remaining"
        if path == MESSAGES
        else ("x-ratelimit-remaining-tokens")
    )
    assert int(reply.headers[name]) == 600 - charged


async def test_an_answer_may_overrun_and_the_next_request_waits(autojump_clock: MockClock) -> None:
    async with open_provider(
        answer=lambda _: Answer("much", output_tokens=90), tokens_per_minute=60, http=False
    ) as provider:
        overrun = await provider.request(MESSAGES, ask(MESSAGES, "y" * 40))
        refused = await provider.request(MESSAGES, ask(MESSAGES, "y" * 40))
        await trio.sleep(50)
        again = await provider.request(MESSAGES, ask(MESSAGES, "y" * 40))

    assert [reply.status for reply in (overrun, refused, again)] == [200, 429, 200]
    assert overrun.headers["anthropic-ratelimit-tokens-remaining"] == "0"
    assert refused.headers["retry-after"] == "50"


async def test_a_question_over_the_whole_limit_is_never_told_to_come_again(
    autojump_clock: MockClock,
) -> None:
    async with open_provider(answer=echo, tokens_per_minute=10, http=False) as provider:
        reply = await provider.request(CHAT, ask(CHAT, "y" * 400))
    assert reply.status == 429
    assert "retry-after" not in reply.headers
    assert "larger than the whole limit" in reply.body["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
async def test_waiting_for_retry_after_is_enough(path: str, autojump_clock: MockClock) -> None:
    async with open_provider(answer=echo, requests_per_minute=7, http=False) as provider:
        await accepted_of(provider, 7, path=path)
        for _ in range(20):
            refused = await provider.request(path, ask(path))
            assert refused.status == 429
            if path != MESSAGES:
                await trio.sleep(int(refused.headers["retry-after-ms"]) / 1000)
            else:
                await trio.sleep(int(refused.headers["retry-after"]))
            assert (await provider.request(path, ask(path))).status == 200


async def test_refused_requests_never_reach_the_answer_function(autojump_clock: MockClock) -> None:
    asked: list[str] = []

    def answer(request: ProviderRequest) -> str:
        asked.append(request.prompt)
        return "fine"

    async with open_provider(answer=answer, requests_per_minute=2, http=False) as provider:
        for number in range(5):
            await provider.request(CHAT, ask(CHAT, f"question {number}"))
    assert asked == ["question 0", "question 1"]


async def test_the_answer_function_sees_the_body_either_way(autojump_clock: MockClock) -> None:
    seen: list[ProviderRequest] = []

    def answer(request: ProviderRequest) -> str:
        seen.append(request)
        return "fine"

    async with open_provider(answer=answer, http=False) as provider:
        await provider.request(CHAT, ask(CHAT, temperature=0.5), headers={"X-Who": "me"})
    (request,) = seen
    assert request["temperature"] == request.body["temperature"] == 0.5
    assert request.get("seed") is None
    assert dict(request) == json.loads(json.dumps(ask(CHAT, temperature=0.5)))
    assert request.headers["x-who"] == "me"
    assert (request.dialect, request.number, request.prompt) == ("openai-chat", 1, "hello")


async def test_answers_may_be_async_and_may_be_errors(autojump_clock: MockClock) -> None:
    async def answer(request: ProviderRequest) -> str | ErrorAnswer:
        await trio.sleep(2)
        if request.prompt == "no":
            return ErrorAnswer(status=503, message="closed", retry_after_seconds=7)
        return "yes"

    async with open_provider(answer=answer, requests_per_minute=10, http=False) as provider:
        good = await provider.request(CHAT, ask(CHAT, "please"))
        bad = await provider.request(CHAT, ask(CHAT, "no"))
        statistics = provider.statistics()

    assert trio.current_time() == 4
    assert good.body["choices"][0]["message"]["content"] == "yes"
    assert (bad.status, bad.headers["retry-after"]) == (503, "7")
    assert bad.body["error"]["message"] == "closed"
    assert (statistics.accepted, statistics.answered, statistics.violations) == (2, 2, 0)


async def test_a_mistake_in_the_answer_function_comes_out_as_itself(
    autojump_clock: MockClock,
) -> None:
    async with open_provider(answer=lambda request: request["nothing"], http=False) as provider:
        with pytest.raises(KeyError, match="nothing"):
            await provider.request(CHAT, ask(CHAT))
        assert provider.statistics().in_flight == 0


async def test_a_run_repeats_to_the_byte(autojump_clock: MockClock) -> None:
    async def one_run() -> list[bytes]:
        contents: list[bytes] = []
        async with open_provider(answer=echo, requests_per_minute=3, http=False) as provider:
            for path in PATHS:
                for streaming in (False, True):
                    reply = await provider.request(path, ask(path, stream=streaming))
                    contents.append(reply.content + repr(sorted(reply.headers.items())).encode())
        return contents

    assert await one_run() == await one_run()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
async def test_only_loopback_is_listened_on(host: str) -> None:
    for http in (True, False):
        with pytest.raises(ValueError, match="only on a loopback address"):
            async with open_provider(answer=echo, host=host, http=http):
                pass


async def test_without_sockets_there_is_no_address(autojump_clock: MockClock) -> None:
    async with open_provider(answer=echo, http=False) as provider:
        for name in ("base_url", "port", "host"):
            with pytest.raises(RuntimeError, match="http=False"):
                getattr(provider, name)
    with pytest.raises(trio.ClosedResourceError):
        await provider.request(CHAT, ask(CHAT))


async def test_an_answer_that_is_no_function_is_refused() -> None:
    answer: object = "yes"
    with pytest.raises(TypeError, match="answer must be a function"):
        async with open_provider(answer=answer):  # type: ignore[arg-type]
            pass


async def test_an_answer_of_another_type_is_an_error(autojump_clock: MockClock) -> None:
    async with open_provider(answer=lambda _: math.pi, http=False) as provider:  # type: ignore[arg-type,return-value]
        with pytest.raises(TypeError, match="a str, an Answer or an ErrorAnswer"):
            await provider.request(CHAT, ask(CHAT))
