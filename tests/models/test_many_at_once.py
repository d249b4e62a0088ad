"""Many calls of one model at once, cancelled at random: no cross-talk, no stuck connection."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import ModelError
from harness.limits import Limiter
from harness.models import ModelResponse
from harness.models._clients import SharedClients
from harness.testing.provider import Faults, ProviderRequest
from tests.models.providers import WAYS, ProviderModel, ask, open_model, read
from tests.scale import scaled
from tests.support.checkpoints import cancel_at_every_checkpoint

CALLS = scaled(40, full=500)


@pytest.fixture
def autojump_clock() -> MockClock:
    """A virtual clock that leaves sockets the time to answer."""
    return MockClock(autojump_threshold=0.02)


def echo(request: ProviderRequest) -> str:
    return f"you said {request.prompt}"


def clients_of(model: ProviderModel) -> SharedClients:
    assert model._clients is not None
    return model._clients


def connections_in(clients: SharedClients) -> list[Any]:
    """Return the connections that the libraries hold."""
    return [
        connection
        for client in clients.clients
        for connection in client._client._transport._pool.connections
    ]


async def check_clean(model: ProviderModel, provider: Any) -> None:
    """Check that neither end has anything in progress."""
    await trio.sleep(60)  # The simulated provider notices who is gone.
    clients = clients_of(model)
    assert clients.in_flight == 0
    assert all(connection.is_idle() for connection in connections_in(clients))
    statistics = provider.statistics()
    assert statistics.in_flight == 0
    # It may have closed some that were idle for long; it must not hold one that nobody knows of.
    assert statistics.connections <= len(connections_in(clients))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_each_call_has_its_own_answer(way: str, autojump_clock: MockClock) -> None:
    faults = Faults(latency_seconds=5.0, event_gap_seconds=0.5)
    async with open_model(way, answer=echo, faults=faults) as (model, provider):

        async def call(number: int) -> str:
            request = ask(f"number {number}")
            if number % 2:
                return (await model.complete(request)).content
            text, whole = await read(model, request)
            assert text == whole.content
            return text

        results = await harness.fan_out(call, range(CALLS), limit=CALLS)
        assert results.values() == [f"you said number {number}" for number in range(CALLS)]
        assert provider.statistics().peak_in_flight >= CALLS * 0.9, "they were at once"
        await check_clean(model, provider)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_at_random_nothing_is_stuck(way: str, autojump_clock: MockClock) -> None:
    """A third is cancelled, some break off, the rest have their own answers, faults and all."""
    draw = random.Random(17)
    limiter = Limiter("provider", concurrent=max(20, CALLS // 5))
    # All on one grid of half seconds: each jump of the clock costs some milliseconds.
    faults = Faults(
        seed=3,
        errors={500: 0.1},
        cut=0.1,
        malformed=0.05,
        hang=0.05,
        latency_seconds=lambda draw: round(draw * 10) / 2,
        event_gap_seconds=0.5,
    )
    async with open_model(way, answer=echo, faults=faults, options={"limiter": limiter}) as (
        model,
        provider,
    ):
        answers: dict[int, str] = {}
        failed = cancelled = left = 0

        async def call(number: int) -> None:
            nonlocal failed, cancelled, left
            request = ask(f"number {number} and a few words more")
            patience = draw.randrange(80) / 4 if number % 3 == 0 else 300.0
            with trio.move_on_after(patience) as scope:
                try:
                    if number % 2:
                        answers[number] = (await model.complete(request)).content
                    elif number % 5:
                        answers[number] = (await read(model, request))[0]
                    else:
                        async with model.stream(request) as stream:
                            assert not isinstance(await anext(stream), ModelResponse)
                            left += 1
                except ModelError:
                    failed += 1
            cancelled += scope.cancelled_caught

        async with trio.open_nursery() as nursery:
            for number in range(CALLS):
                nursery.start_soon(call, number)
        assert answers == {
            number: f"you said number {number} and a few words more" for number in answers
        }
        assert len(answers) + failed + cancelled + left == CALLS
        assert min(len(answers), failed, cancelled, left) >= 1
        assert limiter.statistics().in_flight == limiter.statistics().waiting == 0
        await check_clean(model, provider)


@pytest.mark.parametrize(
    "way", ["chat", *(pytest.param(way, marks=pytest.mark.full) for way in WAYS[1:])]
)
@pytest.mark.slow
async def test_cancelled_at_each_checkpoint_both_ends_are_clean(
    way: str, autojump_clock: MockClock
) -> None:
    limiter = Limiter("provider", concurrent=1)
    async with open_model(way, answer=echo, options={"limiter": limiter}) as (model, provider):

        async def use() -> None:
            await model.complete(ask("one"))
            await read(model, ask("two"))

        async def check() -> None:
            await check_clean(model, provider)
            statistics = limiter.statistics()
            assert (statistics.in_flight, statistics.waiting) == (0, 0)

        # The first call of a client asks a thread what machine this is. The clock would not wait
        # for a slow one, but jump to the deadline of the helper.
        await model.complete(ask("who are you"))
        assert await cancel_at_every_checkpoint(use, check) >= 10


@pytest.mark.slow
async def test_calls_spread_over_a_few_clients(autojump_clock: MockClock) -> None:
    """One for few calls; another one only when all are busy."""
    async with open_model("chat", answer=echo, faults=Faults(latency_seconds=2.0)) as (model, _):
        await model.complete(ask("one"))
        assert len(clients_of(model).clients) == 1
        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(model.complete, ask(f"number {number}"))
        assert len(clients_of(model).clients) == 2
        assert [client.max_retries for client in clients_of(model).clients] == [0, 0]


async def test_a_call_inside_a_stream_of_the_same_model_is_fine() -> None:
    async with open_model("chat", answer=echo) as (model, _):
        async with model.stream(ask("outer")) as stream:
            await anext(stream)
            assert (await model.complete(ask("inner"))).content == "you said inner"
