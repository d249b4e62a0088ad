"""The real clients of OpenAI and Anthropic, over a socket, on trio."""

from __future__ import annotations

import json
import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import attrs
import pytest
import trio

from harness.testing.provider import (
    Answer,
    AnswerToolCall,
    ErrorAnswer,
    Faults,
    Provider,
    ProviderRequest,
    open_provider,
)
from tests.scale import PATIENCE_SECONDS
from tests.testing.provider.waiting import until

# As Any: both are asked in the same ways here, and their types take minutes to check.
openai: Any = import_module("openai")
anthropic: Any = import_module("anthropic")

# Both break out of a stream at its end marker, and leave the generators beneath it, which no user
# can reach, to the garbage collector. The streams themselves are closed by these tests.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Async generator '(openai|anthropic|httpx2?|httpcore2?)\.:ResourceWarning"
)

TEXT = "It is sunny — 21 °C in Zürich,\n  and dry."  # 41 characters, 11 tokens.
CALLS = (
    AnswerToolCall("weather", {"city": "Zürich", "days": [1, 2]}),
    AnswerToolCall("clock", {}),
)


def answer(request: ProviderRequest) -> Answer | ErrorAnswer | str:
    """Answer by what the prompt asks for."""
    if request.prompt == "tools":
        return Answer(TEXT, CALLS)
    if request.prompt == "only tools":
        return Answer("", CALLS)
    if request.prompt == "cut short":
        return Answer(TEXT, finish="length")
    if request.prompt.startswith("error "):
        return ErrorAnswer(status=int(request.prompt[6:]))
    return TEXT if request.prompt == "weather" else request.prompt


@attrs.frozen
class Said:
    """What a client made of an answer, in no client's types."""

    text: str
    calls: list[tuple[str, Any]]
    input_tokens: int
    output_tokens: int
    reason: str


@attrs.frozen
class Clients:
    """Both clients, and each of their ways to ask."""

    openai: Any
    anthropic: Any

    async def chat(self, prompt: str) -> Said:
        reply = await self.openai.chat.completions.create(model="m", messages=_messages(prompt))
        choice = reply.choices[0]
        return Said(
            choice.message.content or "",
            [
                (call.function.name, json.loads(call.function.arguments))
                for call in choice.message.tool_calls or ()
            ],
            reply.usage.prompt_tokens,
            reply.usage.completion_tokens,
            choice.finish_reason,
        )

    async def chat_stream(self, prompt: str) -> Said:
        async with self.openai.chat.completions.stream(
            model="m", messages=_messages(prompt), stream_options={"include_usage": True}
        ) as stream:
            async for _ in stream:
                pass
            reply = await stream.get_final_completion()
        choice = reply.choices[0]
        return Said(
            choice.message.content or "",
            [
                (call.function.name, json.loads(call.function.arguments))
                for call in choice.message.tool_calls or ()
            ],
            reply.usage.prompt_tokens,
            reply.usage.completion_tokens,
            choice.finish_reason,
        )

    async def responses(self, prompt: str) -> Said:
        return _said(await self.openai.responses.create(model="m", input=prompt))

    async def responses_stream(self, prompt: str) -> Said:
        text, said = "", None
        async with self.openai.responses.stream(model="m", input=_messages(prompt)) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    text += event.delta
                if event.type in ("response.completed", "response.incomplete"):
                    said = _said(event.response)
        assert said is not None
        assert text == said.text
        return said

    async def messages(self, prompt: str) -> Said:
        return _read(
            await self.anthropic.messages.create(
                model="m", max_tokens=100, messages=_messages(prompt)
            )
        )

    async def messages_stream(self, prompt: str) -> Said:
        async with self.anthropic.messages.stream(
            model="m", max_tokens=100, messages=_messages(prompt)
        ) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            said = _read(await stream.get_final_message())
        assert text == said.text
        return said


WAYS = ("chat", "chat_stream", "responses", "responses_stream", "messages", "messages_stream")


@asynccontextmanager
async def open_clients(provider: Provider, **options: Any) -> AsyncGenerator[Clients]:
    """Open both clients on a provider, with their own retries off."""
    options = {"base_url": provider.base_url, "api_key": "any", "max_retries": 0, **options}
    async with (
        openai.AsyncOpenAI(**options) as for_openai,
        anthropic.AsyncAnthropic(**options) as for_anthropic,
    ):
        yield Clients(for_openai, for_anthropic)


def _messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def _said(response: Any) -> Said:
    calls = [item for item in response.output if item.type == "function_call"]
    return Said(
        response.output_text,
        [(call.name, json.loads(call.arguments)) for call in calls],
        response.usage.input_tokens,
        response.usage.output_tokens,
        "length" if response.status == "incomplete" else "tool_calls" if calls else "stop",
    )


def _read(message: Any) -> Said:
    return Said(
        "".join(block.text for block in message.content if block.type == "text"),
        [(block.name, block.input) for block in message.content if block.type == "tool_use"],
        message.usage.input_tokens,
        message.usage.output_tokens,
        {"max_tokens": "length", "tool_use": "tool_calls", "end_turn": "stop"}[message.stop_reason],
    )


def caller(clients: Clients, way: str) -> Callable[[str], Awaitable[Said]]:
    """Return the method of that name."""
    method: Callable[[str], Awaitable[Said]] = getattr(clients, way)
    return method


@pytest.mark.slow
async def test_every_way_to_ask_gives_the_same_answer() -> None:
    async with (
        open_provider(answer=answer) as provider,
        open_clients(provider) as clients,
    ):
        calls = [(call.name, call.arguments) for call in CALLS]
        size = sum(len(call.name + call.arguments_json) for call in CALLS)
        for way in WAYS:
            ask = caller(clients, way)
            assert await ask("weather") == Said(TEXT, [], 2, 11, "stop"), way
            assert await ask("tools") == Said(
                TEXT, calls, 2, -(-(len(TEXT) + size) // 4), "tool_calls"
            ), way
            assert await ask("only tools") == Said("", calls, 3, -(-size // 4), "tool_calls"), way
        for way in ("chat", "responses", "responses_stream", "messages", "messages_stream"):
            assert await caller(clients, way)("cut short") == Said(TEXT, [], 3, 11, "length"), way
        statistics = provider.statistics()
    assert statistics.requests == statistics.answered == 23
    assert provider.statistics().connections == 0


@pytest.mark.slow
@pytest.mark.parametrize("version", ["", "/v1"])
async def test_base_urls_work_with_and_without_the_version(version: str) -> None:
    async with open_provider(answer=answer) as provider:
        options = {"base_url": provider.base_url + version}
        async with open_clients(provider, **options) as clients:
            for way in WAYS:
                assert (await caller(clients, way)("weather")).text == TEXT


async def test_azure_clients_find_their_deployments() -> None:
    async with (
        open_provider(answer=answer) as provider,
        openai.AsyncAzureOpenAI(
            azure_endpoint=provider.base_url, api_key="any", api_version="2024-10-21"
        ) as client,
    ):
        reply = await client.chat.completions.create(model="m", messages=_messages("weather"))
    assert reply.choices[0].message.content == TEXT


async def test_usage_comes_in_a_chat_stream_only_if_asked_for() -> None:
    async with open_provider(answer=answer) as provider, open_clients(provider) as clients:
        create = clients.openai.chat.completions.create
        for options, last_usage in ((None, None), ({"include_usage": True}, 13)):
            more = {} if options is None else {"stream_options": options}
            ask = create(model="m", messages=_messages("weather"), stream=True, **more)
            async with await ask as stream:
                chunks = [chunk async for chunk in stream]
            usage = chunks[-1].usage
            assert (usage and usage.total_tokens) == last_usage
            assert len({chunk.id for chunk in chunks}) == 1
            assert all(chunk.usage is None for chunk in chunks[:-1])


ERRORS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "InternalServerError",
    529: "InternalServerError",
}


@pytest.mark.parametrize("way", WAYS)
async def test_errors_arrive_as_the_clients_own_types(way: str) -> None:
    """All with one pair of clients: making them takes longer than asking."""
    module = anthropic if way.startswith("messages") else openai
    async with open_provider(answer=answer) as provider, open_clients(provider) as clients:
        for status, name in ERRORS.items():
            with pytest.raises(getattr(module, name)) as caught:
                await caller(clients, way)(f"error {status}")
            assert caught.value.status_code == status
            assert "the test's answer function asked for this error" in str(caught.value)


@pytest.mark.parametrize("way", WAYS)
async def test_refusals_carry_the_time_to_wait(way: str) -> None:
    module = anthropic if way.startswith("messages") else openai
    async with (
        open_provider(answer=answer, requests_per_minute=1) as provider,
        open_clients(provider) as clients,
    ):
        began = trio.current_time()
        await caller(clients, way)("weather")
        with pytest.raises(module.RateLimitError) as caught:
            await caller(clients, way)("weather")
        left = 60 - (trio.current_time() - began)
        assert provider.statistics().violations == 1
    headers = caught.value.response.headers
    assert left - 1 <= int(headers["retry-after"]) <= 60
    if module is openai:
        assert left * 1_000 - 1 <= int(headers["retry-after-ms"]) <= 60_000
        assert headers["x-ratelimit-limit-requests"] == "1"
        assert caught.value.code == "rate_limit_exceeded"
    else:
        assert headers["anthropic-ratelimit-requests-remaining"] == "0"


# What the clients make of trouble. Inside a stream Anthropic's lets the errors of the
# HTTP library beneath it pass, and no client wraps those of the JSON decoder.
TROUBLE = {
    "cut": {"APIConnectionError", "RemoteProtocolError"},
    "malformed": {"JSONDecodeError"},
    "hang": {"APITimeoutError", "ReadTimeout"},
}


async def trouble(ask: Callable[[str], Awaitable[Said]], prompt: str) -> str:
    """Return the name of the error that asking ends with."""
    try:
        said = await ask(prompt)
    except Exception as error:
        return type(error).__name__
    return f"no error, but {said!r}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["cut", "malformed"])
@pytest.mark.slow
async def test_spoilt_answers_are_errors_in_every_way(way: str, kind: str) -> None:
    """Spoilt before the first byte, inside a body or inside a stream: never taken for whole."""
    async with (
        open_provider(answer=answer, faults=Faults(**{kind: 1})) as provider,  # type: ignore[arg-type]
        open_clients(provider) as clients,
    ):
        ask = caller(clients, way)
        seen = {await trouble(ask, f"question number {number}") for number in range(12)}
        assert seen <= TROUBLE[kind]
        assert getattr(provider.statistics(), kind) == 12
        assert provider.statistics().in_flight == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
async def test_a_hang_ends_with_the_clients_patience(way: str) -> None:
    """The provider must notice that the client has gone, too."""
    async with open_provider(answer=answer, faults=Faults(hang=1)) as provider:
        # Impatient for an answer only: on a busy machine it can take long to ask.
        to_connect = to_write = to_be_given_a_connection = PATIENCE_SECONDS
        timeout = (to_connect, 0.05, to_write, to_be_given_a_connection)
        async with open_clients(provider, timeout=timeout) as clients:
            ask = caller(clients, way)
            seen = {await trouble(ask, f"question number {number}") for number in range(4)}
        assert seen <= TROUBLE["hang"]
        await until(lambda: not provider.statistics().in_flight)
        assert provider.statistics().clients_gone == provider.statistics().hung == 4


@pytest.mark.slow
async def test_three_hundred_calls_at_once() -> None:
    said: list[Said] = []

    async def one(clients: Clients, number: int) -> None:
        said.append(await caller(clients, WAYS[number % len(WAYS)])(f"question {number}"))

    async with open_provider(
        answer=answer, requests_per_minute=300, faults=Faults(latency_seconds=0.3)
    ) as provider:
        async with (
            open_clients(provider, timeout=PATIENCE_SECONDS) as clients,
            trio.open_nursery() as nursery,
        ):
            for number in range(300):
                nursery.start_soon(one, clients, number)
        statistics = provider.statistics()
    assert sorted(reply.text for reply in said) == sorted(f"question {n}" for n in range(300))
    assert (statistics.answered, statistics.violations) == (300, 0)
    assert statistics.peak_in_flight > 100, "they were not at once"


@pytest.mark.slow
async def test_clients_cancelled_at_random_moments_leave_nothing_behind() -> None:
    """In the middle of a connect, a send, a wait or a stream: all of it is cleared away."""
    draw = random.Random(5)

    async def one(clients: Clients, number: int, patience_seconds: float) -> None:
        with trio.move_on_after(patience_seconds):
            await caller(clients, WAYS[number % len(WAYS)])("one two three four five six")

    async def some(clients: Clients) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(one, clients, number, draw.random() * 0.6)

    faults = Faults(latency_seconds=(0, 0.1), event_gap_seconds=0.01)
    async with open_provider(answer=answer, faults=faults) as provider:
        async with open_clients(provider) as clients:
            # What a client imports on its first call can take longer than anybody's patience.
            for number in range(len(WAYS)):
                await one(clients, number, math.inf)
            while not provider.statistics().clients_gone:
                await some(clients)
        await until(lambda: not provider.statistics().connections)
        statistics = provider.statistics()
        assert statistics.in_flight == 0
        assert statistics.answered + statistics.clients_gone == statistics.requests
