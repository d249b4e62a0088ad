"""Against a provider that judges for itself: no violation, full use, quick adaptation.

The simulated provider is in the testing kit, a floor above the limits; it is used here because it
judges by its own arithmetic.
"""

from __future__ import annotations

import random
from typing import Literal

import attrs
import pytest
import trio
from trio.testing import MockClock

from harness.limits import Limiter
from harness.testing.provider import Faults, Provider, open_provider

CHAT = "/v1/chat/completions"


@attrs.define
class Client:
    """Callers that reserve, ask, settle, and ask again when they are refused."""

    provider: Provider
    limiter: Limiter
    jitter_seconds: float = 0.0
    draws: random.Random = attrs.field(factory=lambda: random.Random(1))
    asked: int = 0
    refused_at: list[float] = attrs.field(factory=list)
    succeeded: int = 0

    async def call(self) -> None:
        question = "word " * self.draws.randint(1, 40)
        body = {"model": "m", "messages": [{"role": "user", "content": question}]}
        while True:
            async with self.limiter.reserve(tokens=len(question) // 4 + 50) as reservation:
                if self.jitter_seconds:
                    await trio.sleep(self.draws.uniform(0, self.jitter_seconds))
                self.asked += 1
                reply = await self.provider.request(CHAT, body)
                tokens = reply.body["usage"]["total_tokens"] if reply.status == 200 else None
                reservation.settle(
                    tokens=tokens, headers=reply.headers, status=reply.status, body=reply.body
                )
            if reply.status == 200:
                self.succeeded += 1
                return
            self.refused_at.append(trio.current_time())

    async def run(self, count: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(self.call)


def answer(request: object) -> str:
    return "answer " * 10


Judged = Literal["bucket", "minute", "second"]


@pytest.mark.long
@pytest.mark.parametrize("judged", ["bucket", "minute", "second"])
@pytest.mark.parametrize("seed", range(2))
async def test_known_limits_are_never_broken(
    judged: Judged, seed: int, autojump_clock: MockClock
) -> None:
    async with open_provider(
        answer=answer,
        requests_per_minute=300,
        tokens_per_minute=60_000,
        judged=judged,
        http=False,
    ) as provider:
        # What judges by the second needs the profile of such a provider.
        limiter = Limiter(
            "azure" if judged == "second" else "openai",
            requests_per_minute=300,
            tokens_per_minute=60_000,
        )
        client = Client(provider, limiter, draws=random.Random(seed))
        started = trio.current_time()
        await client.run(1_500)
        assert provider.statistics().violations == 0
        assert client.succeeded == 1_500
        minutes = (trio.current_time() - started) / 60
        assert minutes <= 1_500 / 300 / 0.97


@pytest.mark.slow
@pytest.mark.parametrize("judged", ["bucket", "minute"])
async def test_network_jitter_with_headroom_breaks_no_limit(
    judged: Judged, autojump_clock: MockClock
) -> None:
    async with open_provider(
        answer=answer, requests_per_minute=120, judged=judged, http=False
    ) as provider:
        limiter = Limiter("openai", requests_per_minute=120, headroom=60 / 62)
        client = Client(provider, limiter, jitter_seconds=2.0)
        await client.run(1_000)
        assert provider.statistics().violations == 0
        assert client.succeeded == 1_000


@pytest.mark.slow
@pytest.mark.parametrize("judged", ["bucket", "minute"])
@pytest.mark.parametrize("dimension", ["requests", "tokens"])
async def test_limits_that_are_twice_too_high_are_corrected(
    judged: Judged, dimension: str, autojump_clock: MockClock
) -> None:
    """Fewer than 1 % of calls see a 429 after the first window, and all succeed."""
    async with open_provider(
        answer=answer,
        requests_per_minute=300,
        tokens_per_minute=30_000,
        judged=judged,
        http=False,
    ) as provider:
        wrong = 2 if dimension == "requests" else 1
        limiter = Limiter(
            "openai",
            requests_per_minute=300 * wrong,
            tokens_per_minute=30_000 * (3 - wrong),
        )
        client = Client(provider, limiter)
        await client.run(1_500)
        late = [moment for moment in client.refused_at if moment > 60]
        assert client.succeeded == 1_500
        assert len(late) < 0.01 * client.asked
        assert limiter.statistics().dimensions[dimension].limit in (300, 30_000)


@pytest.mark.slow
@pytest.mark.parametrize(("judged", "least_use"), [("bucket", 0.995), ("minute", 0.95)])
async def test_long_calls_leave_little_unused(
    judged: Judged, least_use: float, autojump_clock: MockClock
) -> None:
    """100 calls are always in progress; taking them off the provider's count twice cost 16 %."""
    async with open_provider(
        answer=answer,
        requests_per_minute=300,
        judged=judged,
        http=False,
        faults=Faults(latency_seconds=20),
    ) as provider:
        client = Client(provider, Limiter("openai", requests_per_minute=300))
        with trio.move_on_after(300):
            await client.run(1_800)
        assert provider.statistics().violations == 0
        # Those of the last 20 s have not been answered.
        assert client.succeeded >= least_use * 300 * 280 / 60


@pytest.mark.slow
async def test_two_clients_share_one_key(autojump_clock: MockClock) -> None:
    """Each believes that it has the limit to itself; the provider's count tells them."""
    async with open_provider(answer=answer, requests_per_minute=300, http=False) as provider:
        clients = [Client(provider, Limiter("openai", requests_per_minute=300)) for _ in range(2)]
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client.run, 750)
        asked = sum(client.asked for client in clients)
        late = [moment for client in clients for moment in client.refused_at if moment > 60]
        assert sum(client.succeeded for client in clients) == 1_500
        assert len(late) < 0.01 * asked
        assert trio.current_time() < 1_500 / 300 * 60 * 1.3
