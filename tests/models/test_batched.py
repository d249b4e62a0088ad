"""Requests through the providers' batch APIs, each sent once, whatever happens."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import Agent
from harness.budgets import budget_left
from harness.errors import ModelConnectionError, ModelNotOpenError, ModelStatusError
from harness.journal import open_journal
from harness.models import BatchedModel, Price, open_batched
from harness.models._batch_apis import (
    AnthropicBatches,
    BatchEntry,
    OpenAIBatches,
    _anthropic_entry,
    _openai_entry,
)
from harness.testing.provider import (
    Answer,
    ErrorAnswer,
    Provider,
    ProviderRequest,
    open_provider,
)
from tests.models.batch_session import BOUNDARIES, ITEMS
from tests.models.providers import WAYS, ask, make_model, open_model
from tests.scale import some_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def autojump_clock() -> MockClock:
    """A virtual clock that leaves sockets the time to answer."""
    return MockClock(autojump_threshold=0.05)


def echo(request: ProviderRequest) -> str:
    return f"label of {request.prompt}"


@asynccontextmanager
async def open_batches(
    way: str, *, options: dict[str, Any] | None = None, **provider_options: Any
) -> AsyncGenerator[tuple[BatchedModel, Provider]]:
    """Open a provider whose batches take an hour, and a model that sends them."""
    provider_options = {"answer": echo, "batch_seconds": 3_600, **provider_options}
    async with (
        open_model(way, options=options, **provider_options) as (model, provider),
        open_batched(model, poll_seconds=900) as batched,
    ):
        yield batched, provider


@pytest.mark.parametrize("way", WAYS)
async def test_a_fan_out_of_agents_is_one_batch(way: str, autojump_clock: MockClock) -> None:
    async with open_batches(way) as (batched, provider):
        begun = trio.current_time()
        agent = Agent("label", model=batched, instructions="Label it.")
        results = await harness.fan_out(agent, [f"item {n}" for n in range(20)])
        assert [reply.output for reply in results.values()] == [
            f"label of item {n}" for n in range(20)
        ]
        assert results[0].value.usage.output_tokens > 0
        assert 3_600 <= trio.current_time() - begun < 3_600 + 1_000
        seen = provider.statistics()
    assert (seen.batches, seen.batched_requests) == (1, 20)


async def test_a_batch_has_its_size_at_most(autojump_clock: MockClock) -> None:
    async with (
        open_model("chat", answer=echo) as (model, provider),
        open_batched(model, size=4) as batched,
    ):
        agent = Agent("label", model=batched)
        await harness.fan_out(agent, [f"item {n}" for n in range(10)])
        assert provider.statistics().batches == 3
        assert provider.statistics().batched_requests == 10


async def test_equal_requests_each_have_their_own_answer(autojump_clock: MockClock) -> None:
    said = iter(range(100))
    async with open_batches("chat", answer=lambda _: f"{next(said)}") as (batched, provider):
        results = await harness.fan_out(Agent("a", model=batched), ["same"] * 5)
        assert sorted(reply.output for reply in results.values()) == list("01234")
        answers: list[str] = []

        async def one() -> None:
            answers.append((await batched.complete(ask("same"))).content)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
        assert sorted(answers) == list("567")
        assert provider.statistics().batched_requests == 8


async def test_a_batch_costs_its_share(autojump_clock: MockClock) -> None:
    price = Price(input_usd_per_million_tokens=2, output_usd_per_million_tokens=10)

    def answer(_: ProviderRequest) -> Answer:
        return Answer("yes", input_tokens=100_000, output_tokens=10_000)

    async with open_batches("chat", answer=answer, options={"price": price}) as (batched, _):
        async with harness.open_run("night", budget=harness.Budget(cost_usd=1.0)):
            await batched.complete(ask("hello"))
            assert budget_left().cost_usd == pytest.approx(1.0 - 0.3 / 2)


@pytest.mark.parametrize("way", WAYS)
async def test_an_error_of_a_request_is_its_own_and_a_retry_sends_it_again(
    way: str, autojump_clock: MockClock
) -> None:
    asked: Counter[str] = Counter()

    def answer(request: ProviderRequest) -> str | ErrorAnswer:
        asked[request.prompt] += 1
        if request.prompt == "bad" or (request.prompt == "slow" and asked["slow"] == 1):
            return ErrorAnswer(status=500, message="the reason")
        return "yes"

    async with open_batches(way, answer=answer) as (batched, provider):
        results = await harness.fan_out(
            Agent("a", model=batched),
            ["good", "slow", "bad"],
            each=harness.Attempt(retry=harness.Retry(attempts=2)),
            policy=harness.BestEffort(),
        )
        assert [result.status for result in results] == ["ok", "ok", "failed"]
        error = results[2].error
        assert isinstance(error, ModelStatusError)
        assert error.status_code == 500
        assert "the reason" in str(error)
        assert provider.statistics().batched_requests == 5


@pytest.mark.parametrize("way", ["chat", "messages"])
async def test_a_lost_reply_is_no_reason_to_send_again(
    way: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The provider has the batch, and the connection broke before it could say so."""
    api: Any = OpenAIBatches if way == "chat" else AnthropicBatches
    send = api.send
    lost = 0

    async def losing(*args: Any) -> str:
        nonlocal lost
        batch_id: str = await send(*args)
        if not lost:
            lost += 1
            raise ModelConnectionError("broke the connection", model="m")
        return batch_id

    monkeypatch.setattr(api, "send", losing)
    async with open_batches(way) as (batched, provider):
        results = await harness.fan_out(
            Agent("a", model=batched),
            ["one", "two"],
            each=harness.Attempt(retry=harness.Retry(attempts=3)),
        )
        assert [reply.output for reply in results.values()] == ["label of one", "label of two"]
        assert lost == 1
        assert provider.statistics().batches == 1


async def test_a_cancelled_wait_is_taken_up_where_it_stopped(autojump_clock: MockClock) -> None:
    async with open_batches("chat") as (batched, provider):
        for _ in range(3):
            with trio.move_on_after(600) as scope:
                await batched.complete(ask("hello"))
            assert scope.cancelled_caught
        assert (await batched.complete(ask("hello"))).content == "label of hello"
        assert provider.statistics().batches == 1


async def test_it_is_used_inside_its_block_only(autojump_clock: MockClock) -> None:
    async with open_batches("chat") as (batched, _):
        pass
    with pytest.raises(ModelNotOpenError, match="open_batched"):
        await batched.complete(ask("hello"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 0}, "size"),
        ({"within": -1}, "within"),
        ({"poll_seconds": float("nan")}, "poll_seconds"),
        ({"price_share": 2}, "a share from 0 to 1, not 2"),
        ({"journal": 3}, "journal"),
    ],
)
async def test_bad_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    async with make_model("chat", "http://127.0.0.1:9") as model:
        with pytest.raises((TypeError, ValueError), match=words):
            async with open_batched(model, **arguments):
                pass
    with pytest.raises(TypeError, match="others have no batches"):
        async with open_batched("gpt"):  # type: ignore[arg-type]
            pass


# What came back -----------------------------------------------------------------------------------


def test_what_providers_say_of_a_request_is_read() -> None:
    """After https://platform.openai.com/docs/guides/batch and Anthropic's page on batches."""
    expired = {"code": "batch_expired", "message": "This request could not be executed in time."}
    assert _openai_entry({"custom_id": "a", "response": None, "error": expired}) == BatchEntry(
        error={"error": expired}
    )
    refused = {"status_code": 429, "body": {"error": {"message": "slow"}}}
    assert _openai_entry({"response": refused, "error": None}) == BatchEntry(
        error={"error": {"message": "slow"}}, status=429
    )
    assert _anthropic_entry({"type": "succeeded", "message": {"id": "m"}}) == BatchEntry(
        {"id": "m"}
    )
    assert "expired" in str(_anthropic_entry({"type": "expired"}).error)
    invalid = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
    assert _anthropic_entry({"type": "errored", "error": invalid}) == BatchEntry(
        error=invalid, status=400
    )


# Sessions that end --------------------------------------------------------------------------------


async def test_the_next_session_waits_for_the_same_batches(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_provider(answer=echo, batch_seconds=3_600) as provider:
        results = None
        for patience_seconds in (5.0, 60.0, 600.0, 7_200.0):
            with trio.move_on_after(patience_seconds):
                async with (
                    make_model("chat", provider.base_url) as model,
                    open_journal(tmp_path / "night.db") as journal,
                    open_batched(model, journal=journal, poll_seconds=900) as batched,
                ):
                    results = await harness.fan_out(
                        Agent("a", model=batched), ["one", "two"], journal=journal, key=str
                    )
        assert results is not None
        assert [reply.output for reply in results.values()] == ["label of one", "label of two"]
        assert provider.statistics().batches == 1


async def test_what_failed_in_an_earlier_session_is_sent_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    broken = True

    def answer(_: ProviderRequest) -> str | ErrorAnswer:
        return ErrorAnswer(status=500) if broken else "yes"

    async with open_provider(answer=answer, batch_seconds=60) as provider:
        results = None
        for session in range(2):
            async with (
                make_model("chat", provider.base_url) as model,
                open_journal(tmp_path / "night.db", retry_failed=bool(session)) as journal,
                open_batched(model, journal=journal) as batched,
            ):
                results = await harness.fan_out(
                    Agent("a", model=batched),
                    ["one"],
                    journal=journal,
                    key=str,
                    policy=harness.BestEffort(),
                )
            broken = False
        assert results is not None
        assert results[0].status == "ok"
        assert provider.statistics().batches == 2


@pytest.mark.real_clock
@pytest.mark.parametrize("way", ["chat", "messages"])
async def test_sessions_killed_at_every_boundary_send_nothing_twice(
    way: str, tmp_path: Path
) -> None:
    """Each goes a step further than the one before, and finds what that left behind."""
    asked: Counter[str] = Counter()

    def answer(request: ProviderRequest) -> str:
        asked[request.prompt] += 1
        return echo(request)

    async with open_provider(answer=answer, batch_seconds=0.2) as provider:

        async def session(boundary: str) -> Any:
            return await trio.run_process(
                [
                    sys.executable,
                    *("-m", "tests.models.batch_session"),
                    *(way, provider.base_url, str(tmp_path / "run.db"), boundary),
                ],
                capture_stdout=True,
                check=False,
                cwd=ROOT,
            )

        for boundary in some_of(BOUNDARIES, one_in=3):
            if way == "messages" and boundary == "between the file and the batch":
                continue
            killed = await session(boundary)
            assert killed.returncode == -signal.SIGKILL, boundary
        ended = await session("")
        assert ended.returncode == 0
        assert json.loads(ended.stdout) == [f"label of item {n}" for n in range(ITEMS)]
    assert asked == {f"item {n}": 1 for n in range(ITEMS)}
