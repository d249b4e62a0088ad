"""A thousand callers of the real clients of OpenAI and Anthropic, against a real HTTP server.

The clock is virtual, and jumps only when no socket has had anything to say for a moment. On the
loopback of one process that means that everybody waits, so limits per minute take seconds to try,
and a busy machine changes nothing. The last test has the machine's own clock.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any, Literal

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.limits import Limiter, current_reservation
from harness.testing.provider import Faults, Provider, ProviderRequest, open_provider
from tests.scale import scaled

# As Any: their types take minutes to check, and both are asked in the same way here.
openai: Any = import_module("openai")
anthropic: Any = import_module("anthropic")

CALLERS = scaled(130, full=1_000)
CLIENTS = scaled(2, full=4)
PER_MINUTE = scaled(60, full=120)
TOKENS_PER_MINUTE = PER_MINUTE * 100

Ask = Callable[[Any, str], Awaitable[None]]
Judged = Literal["bucket", "second", "minute"]


@pytest.fixture
def autojump_clock() -> MockClock:
    """A virtual clock that leaves sockets the time to answer."""
    return MockClock(autojump_threshold=0.003)


async def ask_openai(client: Any, prompt: str) -> None:
    """Ask, and settle with what the response says."""
    raw = await client.chat.completions.with_raw_response.create(
        model="m", messages=[{"role": "user", "content": prompt}]
    )
    tokens = raw.parse().usage.total_tokens
    current_reservation().settle(tokens=tokens, headers=raw.headers, status=raw.status_code)


async def ask_anthropic(client: Any, prompt: str) -> None:
    """Ask, and settle with what the response says."""
    raw = await client.messages.with_raw_response.create(
        model="m", max_tokens=50, messages=[{"role": "user", "content": prompt}]
    )
    parsed = raw.parse()
    usage = (await parsed if isinstance(parsed, Awaitable) else parsed).usage
    current_reservation().settle(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        headers=raw.headers,
        status=raw.status_code,
    )


SDKS: dict[str, tuple[Callable[..., Any], Ask]] = {
    "openai": (openai.AsyncOpenAI, ask_openai),
    "anthropic": (anthropic.AsyncAnthropic, ask_anthropic),
}


@attrs.define
class Callers:
    """Callers that share a few clients and a limiter, and nothing else."""

    clients: list[Any]
    ask: Ask
    refused: type[Exception]
    asked: int = 0
    refused_at: list[float] = attrs.field(factory=list)
    """Seconds since the first call."""

    async def run(self, limiter: Limiter, count: int) -> harness.Results[None]:
        """Let ``count`` callers make one call each, all at once; a refusal is waited for."""
        began = trio.current_time()

        async def call(number: int) -> None:
            self.asked += 1
            try:
                # Prompts of 20 to 159 tokens, answered by as many.
                words = "word" * (20 + number * 37 % 140)
                await self.ask(self.clients[number % len(self.clients)], words)
            except self.refused:
                self.refused_at.append(trio.current_time() - began)
                raise

        return await harness.fan_out(
            call,
            range(count),
            limit=count,
            policy=harness.BestEffort(),
            # One attempt: what a refusal costs is a wait, and nothing else may go wrong.
            each=harness.Attempt(limiter=limiter, tokens=_tokens, retry=harness.Retry(1)),
        )


def _tokens(number: int) -> int:
    # The words, the answer, and some for what surrounds them.
    return 2 * (20 + number * 37 % 140) + 10


def answer(request: ProviderRequest) -> str:
    """Answer as much as was asked."""
    return request.prompt


@asynccontextmanager
async def open_callers(sdk: str, provider: Provider) -> AsyncGenerator[Callers]:
    """Open a few clients of one kind, with their own retries off."""
    make, ask = SDKS[sdk]
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                make(base_url=provider.base_url, api_key="any", max_retries=0, timeout=600)
            )
            for _ in range(CLIENTS)
        ]
        yield Callers(clients, ask, {"openai": openai, "anthropic": anthropic}[sdk].RateLimitError)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sdk", "judged"),
    [
        ("openai", "bucket"),
        ("openai", "second"),
        pytest.param("openai", "minute", marks=pytest.mark.full),
        ("anthropic", "bucket"),
        pytest.param("anthropic", "second", marks=pytest.mark.full),
        ("anthropic", "minute"),
    ],
)
async def test_known_limits_are_never_broken(
    sdk: str, judged: Judged, autojump_clock: MockClock
) -> None:
    """No call sees a 429, and the limit is used: a thousand callers take as long as it says.

    The time is measured once more if it is over: the clock can jump while a socket is at work.
    That no limit is broken holds each time.
    """
    allowed_seconds = CALLERS / PER_MINUTE * 60 / 0.97 + 30
    seconds = await seconds_without_a_refusal(sdk, judged)
    if seconds > allowed_seconds:
        seconds = await seconds_without_a_refusal(sdk, judged)
    assert seconds <= allowed_seconds


async def seconds_without_a_refusal(sdk: str, judged: Judged) -> float:
    """Have all callers served, none refused, and return how long it took."""
    limiter = Limiter(
        "azure" if judged == "second" else sdk,
        requests_per_minute=PER_MINUTE,
        tokens_per_minute=TOKENS_PER_MINUTE * 10,
    )
    async with (
        open_provider(
            answer=answer,
            requests_per_minute=PER_MINUTE,
            tokens_per_minute=TOKENS_PER_MINUTE * 10,
            judged=judged,
            faults=Faults(latency_seconds=(1, 30)),
        ) as provider,
        open_callers(sdk, provider) as callers,
    ):
        began = trio.current_time()
        results = await callers.run(limiter, CALLERS)
        seconds = trio.current_time() - began
        assert provider.statistics().violations == len(callers.refused_at) == 0
        assert provider.statistics().peak_in_flight >= 10, "they were at once"
    assert results.complete
    assert callers.asked == CALLERS
    return seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sdk", "wrong"),
    [
        ("openai", "requests"),
        pytest.param("openai", "tokens", marks=pytest.mark.full),
        pytest.param("anthropic", "requests", marks=pytest.mark.full),
        ("anthropic", "tokens"),
    ],
)
async def test_limits_that_are_twice_too_high_are_corrected(
    sdk: str, wrong: str, autojump_clock: MockClock
) -> None:
    """Fewer than 1 % of calls see a 429 after the first window, and all succeed."""
    limiter = Limiter(
        sdk,
        requests_per_minute=PER_MINUTE * (2 if wrong == "requests" else 1),
        tokens_per_minute=TOKENS_PER_MINUTE * (2 if wrong == "tokens" else 10),
    )
    async with (
        open_provider(
            answer=answer,
            requests_per_minute=PER_MINUTE,
            tokens_per_minute=TOKENS_PER_MINUTE * (1 if wrong == "tokens" else 10),
            judged="minute",
            faults=Faults(latency_seconds=(0.5, 5)),
        ) as provider,
        open_callers(sdk, provider) as callers,
    ):
        results = await callers.run(limiter, CALLERS)
    late = [seconds for seconds in callers.refused_at if seconds > 60]
    assert results.complete
    assert len(late) < 0.01 * callers.asked
    assert provider.statistics().accepted == CALLERS


@pytest.mark.real_clock
@pytest.mark.parametrize("sdk", ["openai", pytest.param("anthropic", marks=pytest.mark.full)])
async def test_on_a_real_clock_no_second_sees_more_than_allowed(sdk: str) -> None:
    """Callers, clients and server share one busy loop, so requests arrive late, in clumps.

    What arrives within one second was granted within 1.25 s, as the headroom says.
    """
    per_second = 50
    limiter = Limiter("azure", requests_per_minute=60 * per_second, headroom=0.8)
    async with (
        open_provider(
            answer=answer,
            requests_per_minute=60 * per_second,
            judged="second",
            faults=Faults(latency_seconds=0.2),
        ) as provider,
        open_callers(sdk, provider) as callers,
    ):
        results = await callers.run(limiter, scaled(40, full=1_000))
        assert provider.statistics().violations == 0
    assert results.complete
