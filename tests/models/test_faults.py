"""What goes wrong at a provider comes out as a typed error that names run, model and cause."""

from __future__ import annotations

import logging
import pickle
import re
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import (
    ModelAccessError,
    ModelConnectionError,
    ModelError,
    ModelQuotaExhaustedError,
    ModelRateLimitedError,
    ModelReplyError,
    ModelRequestError,
    ModelRequestTooLargeError,
    ModelStatusError,
    ModelUnreachableError,
    RunTimedOut,
)
from harness.limits import Limiter
from harness.models import FallbackModel, FunctionModel, ModelRequest, ModelResponse
from harness.models._answers import AnswerStream, ReadyStream
from harness.models._sending import heard_when_sent
from harness.testing.provider import ErrorAnswer, Faults, ProviderRequest, Storm
from tests.models.providers import WAYS, ProviderModel, ask, make_model, open_model, read
from tests.scale import scaled

KEY = "sk-a-very-secret-key"


@pytest.fixture
def autojump_clock() -> MockClock:
    """A virtual clock that leaves sockets the time to answer."""
    return MockClock(autojump_threshold=0.02)


def echo(request: ProviderRequest) -> str:
    return request.prompt


async def complete(model: ProviderModel, request: ModelRequest) -> object:
    return await model.complete(request)


ASKING: list[Callable[[ProviderModel, ModelRequest], Any]] = [complete, read]


async def failure_of(
    asking: Callable[[ProviderModel, ModelRequest], Any], model: ProviderModel, text: str = "hello"
) -> ModelError:
    """Ask, in a run of its own, and return the error; hold it to what every error promises."""
    with pytest.raises(ModelError) as caught:
        async with harness.open_run("triage"):
            await asking(model, ask(text))
    error = caught.value
    assert "model 'm'" in str(error)
    assert "run 'triage'" in str(error)
    assert error.model == "m"
    assert error.provider in ("openai", "anthropic")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.status_code, copy.model) == (str(error), error.status_code, "m")
    return error


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asking", ASKING)
async def test_a_status_is_told_with_the_words_of_the_provider(
    asking: Callable[..., Any], way: str
) -> None:
    def fail(request: ProviderRequest) -> ErrorAnswer:
        return ErrorAnswer(status=int(request.prompt), message="the reason", retry_after_seconds=7)

    async with open_model(way, answer=fail, options={"api_key": KEY}) as (model, provider):
        for status, kind in (
            (400, ModelRequestError),
            (401, ModelAccessError),
            (404, ModelRequestError),
            (500, ModelStatusError),
            (503, ModelStatusError),
        ):
            error = await failure_of(asking, model, str(status))
            assert type(error) is kind
            assert error.status_code == status
            assert error.retry_after == 7
            assert f"status {status}: the reason" in str(error)
            assert error.__cause__ is not None
        for status in (429, 529):
            error = await failure_of(asking, model, str(status))
            assert type(error) is ModelRateLimitedError
            assert (error.status_code, error.retry_after) == (status, 7)
        assert provider.statistics().requests == 7, "the library's own retries are off"


@pytest.mark.parametrize("way", WAYS)
async def test_a_used_up_quota_is_final(way: str) -> None:
    async with open_model(way, answer=echo, requests_per_day=1) as (model, _):
        await model.complete(ask("one"))
        error = await failure_of(complete, model, "two")
        assert type(error) is ModelQuotaExhaustedError
        assert not harness.Retry(3).applies_to(error)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asking", ASKING)
async def test_cut_and_malformed_replies_are_typed_errors(
    asking: Callable[..., Any], way: str
) -> None:
    """Wherever it is cut: before the head, in it, between events and in one."""
    for faults, kinds in [
        (Faults(cut=1.0), (ModelConnectionError,)),
        (Faults(malformed=1.0), (ModelReplyError,)),
    ]:
        async with open_model(way, answer=echo, faults=faults) as (model, provider):
            for number in range(scaled(5, full=60)):
                error = await failure_of(asking, model, f"some more words {number}")
                assert isinstance(error, (*kinds, ModelReplyError)), error
                assert not isinstance(error, ModelUnreachableError)
                assert error.__cause__ is not None
            assert provider.statistics().in_flight == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.slow
async def test_a_hang_ends_with_the_deadline(
    asking: Callable[..., Any], way: str, autojump_clock: MockClock
) -> None:
    async with open_model(way, answer=echo, faults=Faults(hang=1.0)) as (model, provider):
        for number in range(4):
            with pytest.raises(RunTimedOut):
                async with harness.open_run("waits", timeout=30):
                    await asking(model, ask(f"some words {number}"))
        assert model._clients is not None
        assert model._clients.in_flight == 0
        await trio.sleep(5)
        assert provider.statistics().in_flight == 0


async def test_without_a_deadline_silence_ends_after_ten_minutes(autojump_clock: MockClock) -> None:
    async with open_model("chat", answer=echo, faults=Faults(hang=1.0)) as (model, _):
        error = await failure_of(complete, model)
        assert type(error) is ModelConnectionError
        assert "hang" in str(error)
        assert trio.current_time() >= 600


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asking", ASKING)
async def test_a_host_that_is_not_there(asking: Callable[..., Any], way: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # Bound, and nobody listens.
        port = unused.getsockname()[1]
        limiter = Limiter("absent", concurrent=1)
        async with make_model(way, f"http://127.0.0.1:{port}", limiter=limiter) as model:
            error = await failure_of(asking, model)
    assert type(error) is ModelUnreachableError
    assert "could not be reached" in str(error)
    assert limiter._grants.rests_until > trio.current_time(), "a pool would use another one"


@pytest.mark.slow
async def test_a_storm_of_refusals_is_waited_out(autojump_clock: MockClock) -> None:
    """30 s in which everybody is refused; nobody fails, and there is no storm."""
    limiter = Limiter("provider", requests_per_minute=6_000)
    faults = Faults(storms=[Storm(status=529, duration_seconds=30.0)])
    async with open_model("messages", answer=echo, faults=faults, options={"limiter": limiter}) as (
        model,
        provider,
    ):
        requests = [ask(f"number {number}") for number in range(scaled(20, full=300))]
        results = await harness.fan_out(model.complete, requests)
        assert [response.content for response in results.values()] == [
            request.messages[0].content for request in requests
        ]
        assert provider.statistics().requests <= 2 * len(requests) + 10


async def test_no_message_and_no_log_holds_the_key(caplog: pytest.LogCaptureFixture) -> None:
    """Some servers quote it, whole."""
    caplog.set_level(logging.DEBUG)

    def quote(request: ProviderRequest) -> ErrorAnswer:
        return ErrorAnswer(status=401, message=f"there is no key {KEY}")

    for way in WAYS:
        async with open_model(way, answer=quote, options={"api_key": KEY}) as (model, _):
            for asking in ASKING:
                error = await failure_of(asking, model)
                seen: BaseException | None = error
                while seen is not None:
                    assert KEY not in f"{seen} {seen!r} {vars(seen)}"
                    seen = seen.__cause__
                assert "there is no key [key]" in str(error)
    assert "POST" in caplog.text, "the libraries do log"
    assert KEY not in caplog.text


# What neither a library nor the simulated provider sends ------------------------------------------


@asynccontextmanager
async def open_server(*pieces: bytes, keep_open: bool = False) -> AsyncGenerator[str]:
    """Serve HTTP that says ``pieces`` to every request and, normally, closes; yield where."""

    async def serve(stream: trio.SocketStream) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += await stream.receive_some()
        before, _, body = asked.partition(b"\r\n\r\n")
        (length,) = re.findall(rb"content-length: ([0-9]+)", before.lower())
        while len(body) < int(length):  # Closed with some of it unread, a socket says it broke.
            body += await stream.receive_some()
        for piece in pieces:
            await stream.send_all(piece)
        if keep_open:
            await trio.sleep_forever()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


def head(kind: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode()


JSON, EVENTS = head("application/json"), head("text/event-stream")

WHOLE = {
    "not JSON": (b"<html>gateway</html>", "malformed reply"),
    "no object": (b"[]", "the reply isn't an object"),
    "nothing in it": (b"{}", "no choices|no output|no content"),
    "not text": (b'{"a": "\xff"}', "malformed reply"),
    "nothing": (b"", "malformed reply"),
    "too deep": (b"[" * 100_000, "malformed reply"),
    "null": (b"null", "the reply isn't an object"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", WHOLE)
async def test_replies_that_make_no_sense(what: str, way: str) -> None:
    content, words = WHOLE[what]
    async with open_server(JSON, content) as url, make_model(way, url) as model:
        error = await failure_of(complete, model)
    assert isinstance(error, ModelReplyError)
    assert any(word in str(error) for word in words.split("|"))


EMPTY = {
    "chat": b'{"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}',
    "responses": b'{"status": "completed", "output": []}',
    "messages": b'{"content": [], "stop_reason": "end_turn"}',
}


@pytest.mark.parametrize("way", WAYS)
async def test_an_empty_reply_is_a_response_without_text(way: str) -> None:
    """An agent asks again; so it mustn't be an error of the model."""
    async with open_server(JSON, EMPTY[way]) as url, make_model(way, url) as model:
        assert await model.complete(ask("hello")) == ModelResponse()


@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize("way", WAYS)
async def test_a_request_is_sent_once_there_is_a_connection_and_not_before(
    way: str, asking: Callable[[ProviderModel, ModelRequest], Any]
) -> None:
    """Until then, what it was to say can be taken back."""
    sent: list[str] = []
    with heard_when_sent(lambda: sent.append("sent")):
        async with open_model(way, answer=echo) as (model, _):
            await asking(model, ask("hello"))
            assert sent == ["sent"]
        async with make_model(way, "http://127.0.0.1:1") as model:
            with pytest.raises(ModelUnreachableError):
                await asking(model, ask("hello"))
        assert sent == ["sent"]
    async with open_model(way, answer=echo) as (model, _):
        await asking(model, ask("hello"))
    assert sent == ["sent"], "nobody is listening"


STREAMS = {
    ("chat", "ends early"): b'data: {"choices": [{"index": 0, "delta": {"content": "on"}}]}\n\n',
    ("responses", "ends early"): b'data: {"type": "response.output_text.delta", "delta": "on"}\n\n',
    ("messages", "ends early"): b'data: {"type": "message_start", "message": {}}\n\n',
    ("chat", "no object"): b"data: 3\n\n",
    ("responses", "no object"): b"data: []\n\n",
    ("messages", "no object"): b'data: "x"\n\n',
    ("chat", "nothing"): b"",
    ("responses", "nothing"): b"",
    ("messages", "nothing"): b"",
    ("chat", "not JSON"): b"data: {\n\n",
}


@pytest.mark.parametrize(("way", "what"), STREAMS)
async def test_streams_that_make_no_sense(way: str, what: str) -> None:
    limiter = Limiter("odd", concurrent=1)
    async with (
        open_server(EVENTS, STREAMS[way, what]) as url,
        make_model(way, url, limiter=limiter) as model,
    ):
        error = await failure_of(read, model)
    assert isinstance(error, ModelReplyError)
    assert limiter._grants.rests_until > trio.current_time(), "a pool would use another one"


@pytest.mark.slow
async def test_a_server_that_keeps_the_connection_after_its_end_holds_nobody(
    autojump_clock: MockClock,
) -> None:
    """All was said, so the whole comes at once; the connection gets a second, then is closed."""
    said = b'data: {"choices": [{"delta": {"content": "on"}, "finish_reason": "stop"}]}\n\n'
    end = b"data: [DONE]\n\n"
    async with (
        open_server(EVENTS, said, end, keep_open=True) as url,
        make_model("chat", url) as model,
    ):
        text, whole = await read(model, ask("hello"))
    assert text == whole.content == "on"
    assert trio.current_time() <= 2


REPORTED = {
    "chat": b'data: {"error": {"message": "the reason", "code": "server_error"}}\n\n',
    "responses": (
        b'data: {"type": "response.failed", "response": {"status": "failed",'
        b' "error": {"code": "server_error", "message": "the reason"}}}\n\n'
    ),
    "messages": (
        b"event: error\n"
        b'data: {"type": "error", "error": {"type": "api_error", "message": "the reason"}}\n\n'
    ),
}


@pytest.mark.parametrize("way", WAYS)
async def test_an_error_within_a_stream_is_told(way: str) -> None:
    async with open_server(EVENTS, REPORTED[way]) as url, make_model(way, url) as model:
        error = await failure_of(read, model)
    assert type(error) is ModelStatusError
    assert "reported an error while it answered" in str(error)
    assert "the reason" in str(error)


IN_A_REPLY = {
    "chat": b'{"error": {"message": "the reason", "code": %d}}',
    "responses": b'{"status": "failed", "error": {"message": "the reason", "code": %d}}',
    "messages": b'{"type": "error", "error": {"type": "api_error", "message": "the reason"}}',
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("status", [500, 429])
async def test_an_error_in_a_reply_whose_status_says_that_all_is_well(
    way: str, status: int
) -> None:
    """From servers that pass on others' answers: it was "no choices", and the reason was lost."""
    if way == "messages" and status == 429:
        body = IN_A_REPLY[way].replace(b"api_error", b"rate_limit_error")
    else:
        body = IN_A_REPLY[way].replace(b"%d", str(status).encode())
    for asking, content in [(complete, JSON + body), (read, EVENTS + b"data: " + body + b"\n\n")]:
        async with open_server(content) as url, make_model(way, url) as model:
            error = await failure_of(asking, model)
        assert type(error) is (ModelRateLimitedError if status == 429 else ModelStatusError)
        assert error.status_code == status
        assert "the reason" in str(error)


async def test_overload_within_a_stream_is_a_refusal_for_rate() -> None:
    event = b'data: {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}\n\n'
    async with open_server(EVENTS, event) as url, make_model("messages", url) as model:
        error = await failure_of(read, model)
    assert type(error) is ModelRateLimitedError
    assert error.status_code == 529


async def test_overload_as_the_first_event_of_a_stream_is_waited_out(
    autojump_clock: MockClock,
) -> None:
    """The status of such an answer said that all was well, and the caller got the error."""
    calls = 0

    class Overload(AnswerStream):
        async def __anext__(self) -> str:
            raise ModelRateLimitedError("overloaded", status_code=529, retry_after=4)

    class Overloaded(FunctionModel):
        @asynccontextmanager
        async def _open(self, request: ModelRequest) -> AsyncGenerator[AnswerStream]:
            nonlocal calls
            calls += 1
            yield Overload() if calls <= 2 else ReadyStream(ModelResponse("fine"))

    limiter = Limiter("anthropic", requests_per_minute=60)
    model = Overloaded(lambda request: "", limiter=limiter)
    async with model.stream(ask("hello")) as stream:
        assert trio.current_time() >= 2
        assert [piece async for piece in stream][-1] == ModelResponse("fine")
    statistics = limiter.statistics()
    assert (statistics.pauses, statistics.rate_limited, statistics.in_flight) == (2, 2, 0)
    with pytest.raises(trio.ClosedResourceError):
        await anext(stream)


TOO_LARGE = (
    "Request too large for m on tokens per min (TPM): Limit 30000, Requested 45000. The input or "
    "output tokens must be reduced."
)


@pytest.mark.parametrize("status", [429, 413])
@pytest.mark.parametrize("asking", ASKING)
async def test_a_request_above_the_limit_is_an_error_at_once(
    asking: Callable[..., Any], status: int
) -> None:
    """It was asked for ten minutes, and paused everybody else's each time."""

    def refuse(request: ProviderRequest) -> ErrorAnswer:
        return ErrorAnswer(status=status, message=TOO_LARGE)

    limiter = Limiter("openai", requests_per_minute=600)
    async with open_model("chat", answer=refuse, options={"limiter": limiter}) as (model, _):
        error = await failure_of(asking, model)
    assert type(error) is ModelRequestTooLargeError
    assert limiter.statistics().granted == 1
    assert limiter.statistics().pauses == 0
    assert not harness.Retry(3).applies_to(error)


async def test_a_function_that_passes_such_a_refusal_on_is_asked_once(
    autojump_clock: MockClock,
) -> None:
    calls = 0

    def too_large(request: ModelRequest) -> str:
        nonlocal calls
        calls += 1
        raise ModelRateLimitedError("no", status_code=429, body={"error": {"message": TOO_LARGE}})

    limiter = Limiter("openai", requests_per_minute=600)
    model = FunctionModel(too_large, limiter=limiter)
    with pytest.raises(ModelRateLimitedError) as caught:
        await model.complete(ask("hello"))
    assert (calls, trio.current_time(), limiter.statistics().pauses) == (1, 0, 0)
    assert not harness.Retry(3).applies_to(caught.value)
    other = FunctionModel(lambda request: "fine", limiter=Limiter("b", requests_per_minute=60))
    assert (await FallbackModel([model, other]).complete(ask("hello"))).content == "fine"
    assert calls == 2
