"""The HTTP shell: what it makes of whatever arrives, and how it ends."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import h11
import pytest
import trio
import trio.testing

from harness.models import ToolCall
from harness.testing.provider import Answer, Faults, Provider, ProviderRequest, open_provider
from harness.testing.provider._sockets import _connection, _server
from tests.testing.provider.asks import CHAT, MESSAGES, PATHS, ask, echo
from tests.testing.provider.waiting import until


class Raw:
    """A client without opinions: it sends bytes, and reads replies with h11."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.CLIENT)

    async def send(self, content: bytes) -> None:
        """Send bytes as they are."""
        await self.stream.send_all(content)

    async def post(self, path: str, body: object) -> tuple[int, dict[str, str], Any]:
        """Send a proper request and return status, headers and decoded body."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.send(request_bytes(path, content))
        return await self.reply(path)

    async def reply(self, path: str = CHAT) -> tuple[int, dict[str, str], Any]:
        """Read one reply."""
        request = h11.Request(method="POST", target=path, headers=[("host", "x")])
        self.http.send(request)
        self.http.send(h11.EndOfMessage())
        status, headers, content = 0, dict[str, str](), b""
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                self.http.receive_data(await self.stream.receive_some(65_536))
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                content += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
        if self.http.our_state is h11.DONE and self.http.their_state is h11.DONE:
            self.http.start_next_cycle()
        return status, headers, json.loads(content)


def request_bytes(path: str, content: bytes, *, method: str = "POST") -> bytes:
    """Return a proper request."""
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


@asynccontextmanager
async def open_raw(provider: Provider) -> AsyncGenerator[Raw]:
    """Open a raw connection to a provider."""
    async with await trio.open_tcp_stream(provider.host, provider.port) as stream:
        yield Raw(stream)


async def still_serves(provider: Provider) -> bool:
    """Return whether the provider answers a proper request."""
    async with open_raw(provider) as raw:
        status, _, body = await raw.post(CHAT, ask(CHAT))
    return status == 200 and body["choices"][0]["message"]["content"] == "hello"


async def test_a_connection_serves_many_requests() -> None:
    async with open_provider(answer=echo) as provider, open_raw(provider) as raw:
        for number in range(20):
            path = PATHS[number % 3]
            status, headers, _ = await raw.post(path, ask(path))
            assert (status, headers["content-type"]) == (200, "application/json")
        assert provider.statistics().connections_opened == 1


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    async with (
        open_provider(answer=echo, faults=Faults(latency_seconds=0.02)) as provider,
        open_raw(provider) as raw,
    ):
        bodies = [json.dumps(ask(CHAT, f"number {number}")).encode() for number in range(5)]
        await raw.send(b"".join(request_bytes(CHAT, body) for body in bodies))
        for number in range(5):
            _, _, body = await raw.reply()
            assert body["choices"][0]["message"]["content"] == f"number {number}"


@pytest.mark.slow
async def test_a_request_sent_during_an_answer_is_kept() -> None:
    """While it waits the server listens for the client leaving, and may hear more than that."""
    async with (
        open_provider(answer=echo, faults=Faults(latency_seconds=0.1)) as provider,
        open_raw(provider) as raw,
    ):
        for number in range(3):
            body = json.dumps(ask(CHAT, f"number {number}")).encode()
            await raw.send(request_bytes(CHAT, body))
            await trio.sleep(0.03)
        with trio.fail_after(5):
            for number in range(3):
                _, _, reply = await raw.reply()
                assert reply["choices"][0]["message"]["content"] == f"number {number}"


async def test_a_chunked_body_with_expect_is_read() -> None:
    content = json.dumps(ask(CHAT)).encode()
    async with open_provider(answer=echo) as provider, open_raw(provider) as raw:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
        await raw.send(head.encode() + b"expect: 100-continue\r\n\r\n")
        assert (await raw.stream.receive_some(100)).startswith(b"HTTP/1.1 100 ")
        for byte in content:
            await raw.send(b"1\r\n%c\r\n" % byte)
        await raw.send(b"0\r\n\r\n")
        assert (await raw.reply())[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (CHAT, b"", 400, "isn't JSON"),
        (CHAT, b"{", 400, "isn't JSON"),
        (CHAT, b"\xff\xfe", 400, "isn't JSON"),
        (CHAT, b'{"a": NaN}', 400, "NaN is not JSON"),
        (CHAT, b"9" * 5000, 400, "isn't JSON"),
        (CHAT, b"[]", 400, "of type list, not an object"),
        (CHAT, b"[" * 100_000, 400, "isn't JSON"),
        (CHAT, b'{"a":' * 300 + b"1" + b"}" * 300, 400, "nested deeper than 200"),
        (CHAT, {}, 400, "messages is missing"),
        (CHAT, {"messages": []}, 400, "a list of at least one message"),
        (CHAT, {"messages": ["hello"]}, 400, "a list of at least one message"),
        (CHAT, ask(CHAT, model=7), 400, "model is 7"),
        (CHAT, ask(CHAT, n=2), 400, "n is 2"),
        (CHAT, ask(CHAT, stream="yes"), 400, "stream is 'yes'; it must be true or false"),
        (CHAT, ask(CHAT, stream_options=[1]), 400, "stream_options"),
        (CHAT, ask(CHAT, max_tokens=0), 400, "at least 1"),
        (MESSAGES, ask(MESSAGES, max_tokens="many"), 400, "max_tokens is 'many'"),
        ("/v1/responses", {"input": 5}, 400, "input is 5"),
        ("/v1/models", {}, 404, "post to /v1/chat/completions"),
        ("/v2/messages", ask(MESSAGES), 404, "post to /v1/chat/completions"),
        ("/v1/v1/v1/messages", ask(MESSAGES), 404, "there is no"),
        ("/" + "x" * 20_000, {}, 404, "there is no"),
    ],
)
async def test_what_the_api_would_refuse_is_refused(
    path: str, body: object, status: int, message: str
) -> None:
    """With sockets and without, with the same status and body, and the connection lives on."""
    async with open_provider(answer=echo) as provider, open_raw(provider) as raw:
        got_status, _, got = await raw.post(path, body)
        assert got_status == status
        assert message in got["error"]["message"]
        assert ("type" in got) == ("messages" in path), "an error in the path's dialect"
        assert (await raw.post(CHAT, ask(CHAT)))[0] == 200
        direct = await provider.request(path, body)
        assert (direct.status, direct.body["error"]) == (status, got["error"])
        statistics = provider.statistics()
    assert (statistics.invalid, statistics.accepted, statistics.violations) == (2, 1, 0)


async def test_odd_bodies_that_are_fine() -> None:
    bodies: list[dict[str, Any]] = [
        ask(CHAT, model="\ud800 and \u2028", tools=[{"type": "function", "a": [[[1]]]}]),
        ask(CHAT, "\ud83d and \x00"),
        {"messages": [{"role": "user", "content": [{"type": "unheard_of"}, 5, None]}]},
        {"messages": [{"role": "assistant", "content": None}]},
        {"messages": [{"content": {"text": 5}}], "stream": None, "max_tokens": None},
    ]
    async with open_provider(answer=echo) as provider, open_raw(provider) as raw:
        for path in (CHAT, MESSAGES):
            for body in bodies:
                assert (await raw.post(path, body))[0] == 200
        responses = "/v1/responses"
        for asked in ("", "\ud800", [{"type": "function_call_output", "output": "5"}]):
            assert (await raw.post(responses, {"input": asked, "tools": [1, {}]}))[0] == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "BREW"])
@pytest.mark.slow
async def test_other_methods_are_refused(method: str) -> None:
    async with open_provider(answer=echo) as provider, open_raw(provider) as raw:
        await raw.send(request_bytes(CHAT, b"", method=method))
        assert (await raw.reply())[0] == 405
        assert await still_serves(provider)


async def test_head_and_connect_get_an_answer_too() -> None:
    async with open_provider(answer=echo) as provider:
        for method in ("HEAD", "CONNECT"):
            async with open_raw(provider) as raw:
                await raw.send(request_bytes(CHAT, b"", method=method))
                assert (await raw.stream.receive_some(1000)).startswith(b"HTTP/1.1 405 ")
        assert await still_serves(provider)


async def test_a_body_too_large_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_connection, "MAX_BODY_BYTES", 1000)
    async with open_provider(answer=echo) as provider:
        for head in (b"content-length: 1001", b"transfer-encoding: chunked"):
            async with open_raw(provider) as raw:
                await raw.send(b"POST %b HTTP/1.1\r\nhost: x\r\n%b\r\n\r\n" % (CHAT.encode(), head))
                await raw.send(b"3E9\r\n" + b"x" * 1001)
                status, headers, body = await raw.reply()
                assert (status, headers["connection"]) == (413, "close")
                assert "at most 1000 are read" in body["error"]["message"]
                assert await raw.stream.receive_some(100) == b""
        assert await still_serves(provider)


async def test_who_sends_a_huge_body_still_gets_to_read_why_not() -> None:
    """Closing a socket with bytes unread would throw away the refusal as well."""
    huge = _connection.MAX_BODY_BYTES + 1
    async with open_provider(answer=echo) as provider, open_raw(provider) as raw:
        await raw.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % huge)
        with trio.fail_after(5):
            await raw.send(b"x" * 4_000_000)
            assert (await raw.reply())[0] == 413


async def test_endless_headers_are_refused() -> None:
    async with open_provider(answer=echo) as provider:
        async with open_raw(provider) as raw:
            await raw.send(
                b"POST / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 2 * _connection.MAX_HEADER_BYTES
            )
            assert (await raw.reply())[0] == 431
        assert await still_serves(provider)


@pytest.mark.slow
async def test_garbage_never_brings_it_down() -> None:
    """Seeded noise, and proper requests with some bytes wrong: each gets an error or is closed."""
    draw = random.Random(11)
    proper = request_bytes(CHAT, json.dumps(ask(CHAT)).encode())

    def noise() -> bytes:
        if draw.random() < 0.3:
            return draw.randbytes(draw.randrange(1, 400))
        spoilt = bytearray(proper)
        for _ in range(draw.randrange(1, 6)):
            spoilt[draw.randrange(len(spoilt))] = draw.randrange(256)
        return bytes(spoilt[: draw.randrange(1, len(spoilt) + 1)])

    async def one(content: bytes) -> None:
        async with open_raw(provider) as raw:
            try:
                await raw.send(content)
                await raw.stream.send_eof()
                reply = await raw.stream.receive_some(1000)
            except trio.BrokenResourceError:
                return
            assert reply == b"" or reply[:10] in (b"HTTP/1.1 2", b"HTTP/1.1 4"), (content, reply)

    async with open_provider(answer=echo) as provider:
        with trio.fail_after(30):
            for _ in range(20):
                async with trio.open_nursery() as nursery:
                    for _ in range(20):
                        nursery.start_soon(one, noise())
        assert await still_serves(provider)
        await until(lambda: not provider.statistics().connections)
        statistics = provider.statistics()
        assert statistics.in_flight == 0
        assert statistics.requests == statistics.accepted + statistics.invalid


@pytest.mark.slow
async def test_an_idle_connection_is_closed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connection, "IDLE_SECONDS", 0.05)
    slow = open_provider(answer=echo, faults=Faults(latency_seconds=0.15))
    async with slow as provider, open_raw(provider) as raw:
        # An answer that takes longer than that is not idleness.
        assert (await raw.post(CHAT, ask(CHAT)))[0] == 200
        with trio.fail_after(5):
            assert await raw.stream.receive_some(100) == b""
        assert provider.statistics().connections == 0


async def test_a_client_that_leaves_an_async_answer_is_noticed() -> None:
    cancelled = trio.Event()

    async def answer(request: ProviderRequest) -> str:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError

    async with open_provider(answer=answer) as provider:
        async with open_raw(provider) as raw:
            await raw.send(request_bytes(CHAT, json.dumps(ask(CHAT)).encode()))
            await until(lambda: provider.statistics().in_flight)
        with trio.fail_after(5):
            await cancelled.wait()
        await until(lambda: not provider.statistics().in_flight)
        assert provider.statistics().clients_gone == 1


async def test_async_answers_serve_and_fail_like_plain_ones() -> None:
    async def answer(request: ProviderRequest) -> str:
        await trio.lowlevel.checkpoint()
        if request.prompt == "fail":
            raise LookupError("a mistake in the test")
        return request.prompt

    async def block() -> None:
        async with open_provider(answer=answer) as provider:
            assert await still_serves(provider)
            async with open_raw(provider) as raw:
                await raw.post(CHAT, ask(CHAT, "fail"))

    with pytest.raises(LookupError, match="a mistake in the test"):
        await block()


async def test_a_mistake_in_the_answer_function_ends_the_block_as_itself() -> None:
    """The client, whose connection breaks over it, must not add a complaint of its own."""

    async def block() -> None:
        mistake = open_provider(answer=lambda request: request["nothing"])
        async with mistake as provider, open_raw(provider) as raw:
            await raw.post(CHAT, ask(CHAT))

    with pytest.raises(KeyError, match="nothing"):
        await block()


def test_a_models_tool_calls_are_refused_as_an_answers() -> None:
    """Two classes describe calls; the wrong one broke far away from where it was given."""
    calls: Any = [ToolCall("c1", "look", {})]
    with pytest.raises(TypeError, match=r"write AnswerToolCall\(name, arguments\)"):
        Answer(tool_calls=calls)


async def test_an_exception_of_the_block_comes_out_as_itself() -> None:
    error = LookupError("mine")
    with pytest.raises(LookupError) as caught:
        async with open_provider(answer=echo) as provider, open_raw(provider):
            raise error
    assert caught.value is error
    assert error.__context__ is error.__cause__ is None


async def test_closing_doesnt_wait_for_hangs_and_idle_connections() -> None:
    async with open_provider(answer=echo, faults=Faults(hang=1)) as provider:
        streams = [await trio.open_tcp_stream("127.0.0.1", provider.port) for _ in range(20)]
        for stream in streams[:10]:
            await stream.send_all(request_bytes(CHAT, json.dumps(ask(CHAT)).encode()))
        await until(lambda: provider.statistics().hung >= 10)
        began = trio.current_time()
    assert trio.current_time() - began < 0.5
    assert provider.statistics().connections == provider.statistics().in_flight == 0
    for stream in streams:
        await trio.aclose_forcefully(stream)


@pytest.mark.slow
async def test_closing_gives_an_answer_under_way_a_moment() -> None:
    replies: list[int] = []

    async def one(port: int) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            replies.append((await Raw(stream).post(CHAT, ask(CHAT)))[0])

    async with trio.open_nursery() as nursery:
        faults = Faults(latency_seconds=0.2)
        async with open_provider(answer=echo, faults=faults) as provider:
            for _ in range(5):
                nursery.start_soon(one, provider.port)
            await until(lambda: provider.statistics().in_flight >= 5)
    assert replies == [200] * 5


async def test_closing_doesnt_wait_for_an_answer_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_server, "CLOSE_SECONDS", 0.05)
    async with open_provider(answer=echo, faults=Faults(latency_seconds=60)) as provider:
        stream = await trio.open_tcp_stream("127.0.0.1", provider.port)
        await stream.send_all(request_bytes(CHAT, json.dumps(ask(CHAT)).encode()))
        await until(lambda: provider.statistics().in_flight)
        began = trio.current_time()
    assert trio.current_time() - began < 1
    assert await stream.receive_some(10) == b""
    await stream.aclose()


async def test_cancelling_the_block_closes_everything_at_once() -> None:
    opened: list[Provider] = []

    async def block() -> None:
        async with (
            open_provider(answer=echo, faults=Faults(latency_seconds=60)) as provider,
            open_raw(provider) as raw,
        ):
            await raw.send(request_bytes(CHAT, json.dumps(ask(CHAT)).encode()))
            await until(lambda: provider.statistics().in_flight)
            opened.append(provider)
            await trio.sleep_forever()

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(block)
            await until(lambda: opened)
            began = trio.current_time()
            nursery.cancel_scope.cancel()
    assert trio.current_time() - began < 0.5
    (provider,) = opened
    assert provider.statistics().in_flight == provider.statistics().connections == 0
    with pytest.raises(OSError, match="connect"):
        await trio.open_tcp_stream("127.0.0.1", provider.port)


async def test_no_task_is_left() -> None:
    task = trio.lowlevel.current_task()
    assert task.parent_nursery is not None
    before = set(task.parent_nursery.child_tasks), list(task.child_nurseries)
    async with open_provider(answer=echo) as provider, open_raw(provider) as raw:
        await raw.post(CHAT, ask(CHAT))
    assert (set(task.parent_nursery.child_tasks), list(task.child_nurseries)) == before


async def test_a_port_that_is_taken_is_an_error() -> None:
    async with open_provider(answer=echo) as provider:
        with pytest.raises(OSError, match=r"."):
            async with open_provider(answer=echo, port=provider.port):
                pass
        assert await still_serves(provider)


async def test_requests_without_sockets_are_broken_off_when_it_closes() -> None:
    broken: list[str] = []

    async def one() -> None:
        try:
            await provider.request(CHAT, ask(CHAT))
        except trio.BrokenResourceError as error:
            broken.append(str(error))

    async with trio.open_nursery() as nursery:
        async with open_provider(answer=echo, faults=Faults(hang=1), http=False) as provider:
            for _ in range(3):
                nursery.start_soon(one)
            await trio.testing.wait_all_tasks_blocked()
    assert broken == ["the simulated provider was closed during this request"] * 3
    assert provider.statistics().in_flight == 0
