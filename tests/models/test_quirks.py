"""Servers that are nearly OpenAI's are understood, streaming and not."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from harness.errors import ModelRateLimitedError, ModelStatusError
from harness.models import (
    Message,
    ModelRequest,
    ModelResponse,
    OpenAIModel,
    ToolCall,
    ToolDescription,
)
from harness.models._dialect import NO_SETTINGS
from harness.models._openai_chat import OpenAIChat
from harness.models._text_calls import HeldText, with_calls_of_text
from tests.models.providers import read
from tests.models.quirks import OSLO, QUIRKS, Quirk, call, message, piece

TOOLS = (
    ToolDescription(
        "weather",
        "Say the weather.",
        {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    ),
    ToolDescription("now", "Say the time.", {"type": "object", "properties": {}}),
)
REQUEST = ModelRequest([Message("user", "How is the weather?")], TOOLS)


@asynccontextmanager
async def open_server(
    body: bytes, content_type: str
) -> AsyncGenerator[tuple[OpenAIModel, list[dict[str, Any]]]]:
    """Open a server that gives one answer, a model that asks it, and the bodies it was sent."""
    asked: list[dict[str, Any]] = []

    async def serve(stream: trio.SocketStream) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            received += await stream.receive_some()
        head, _, content = received.partition(b"\r\n\r\n")
        (length,) = [
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        ]
        while len(content) < length:
            content += await stream.receive_some()
        asked.append(json.loads(content))
        await stream.send_all(
            f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        port = listener.socket.getsockname()[1]
        async with OpenAIModel("m", base_url=f"http://127.0.0.1:{port}/v1") as model:
            yield model, asked
        nursery.cancel_scope.cancel()


def events(stream: tuple[dict[str, Any] | str, ...]) -> bytes:
    return "".join(
        f"{event}\n\n"
        if isinstance(event, str) and event.startswith(":")
        else f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n"
        for event in stream
    ).encode()


def by_name(quirk: Quirk) -> str:
    return f"{quirk.server}: {quirk.what}"


def without_port(response: ModelResponse) -> ModelResponse:
    """Return the response with a name for the server that any run has."""

    def renamed(made: ToolCall) -> ToolCall:
        state = (made.provider_state or {}).get("openai", {})
        if "server" not in state:
            return made
        assert state["server"].startswith("127.0.0.1:")
        return attrs.evolve(made, provider_state={"openai": {**state, "server": "SERVER"}})

    return attrs.evolve(response, tool_calls=map(renamed, response.tool_calls))


@pytest.mark.parametrize("quirk", [one for one in QUIRKS if one.whole], ids=by_name)
async def test_an_answer_in_one_piece_is_understood(quirk: Quirk) -> None:
    body = json.dumps(quirk.whole).encode()
    async with open_server(body, "application/json") as (model, _):
        assert without_port(await model.complete(REQUEST)) == quirk.expected


@pytest.mark.parametrize("quirk", [one for one in QUIRKS if one.stream], ids=by_name)
async def test_a_stream_is_understood(quirk: Quirk) -> None:
    assert quirk.stream is not None
    async with open_server(events(quirk.stream), "text/event-stream") as (model, asked):
        text, whole = await read(model, REQUEST)
    assert asked[0]["stream"] is True
    assert without_port(whole) == quirk.expected
    assert text == (quirk.expected.content if quirk.text is None else quirk.text)


@pytest.mark.parametrize("quirk", [one for one in QUIRKS if one.whole], ids=by_name)
async def test_one_piece_for_who_asked_for_a_stream_is_understood(quirk: Quirk) -> None:
    """Some servers can't stream, or not with tools, and answer in one piece all the same."""
    body = json.dumps(quirk.whole).encode()
    async with open_server(body, "application/json; charset=utf-8") as (model, _):
        _, whole = await read(model, REQUEST)
    assert without_port(whole) == quirk.expected


def test_the_page_names_every_server_that_there_is_a_fixture_for() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/models.md").read_text(encoding="utf-8")
    servers = {quirk.server for quirk in QUIRKS}
    assert len(servers) >= 9
    for server in servers:
        assert f"| {server} |" in page


# Errors that come with status 200 -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"error": {"code": 502, "message": "no answer"}, **piece(finish="error")}, 502),
        ({"error": {"code": "503", "message": "no answer"}}, 503),
        ({"object": "error", "message": "no answer", "code": 400}, 400),
        (
            {"choices": [{"index": 0, "error": {"code": 500, "message": "no answer"}}]},
            500,
        ),
    ],
    ids=["OpenRouter", "a number as text", "vLLM", "inside the choice"],
)
@pytest.mark.parametrize("form", ["stream", "whole"])
async def test_an_error_in_an_answer_is_an_error(
    sent: dict[str, Any], status: int, form: str
) -> None:
    body = events((sent,)) if form == "stream" else json.dumps(sent).encode()
    kind = "text/event-stream" if form == "stream" else "application/json"
    async with open_server(body, kind) as (model, _):
        with pytest.raises(ModelStatusError, match="no answer") as caught:
            await (read(model, REQUEST) if form == "stream" else model.complete(REQUEST))
    assert caught.value.status_code == status


async def test_a_refusal_for_rate_in_a_body_of_json_is_one_for_who_streams() -> None:
    body = json.dumps({"error": {"code": 429, "message": "slow down"}}).encode()
    async with open_server(body, "application/json") as (model, _):
        with pytest.raises(ModelRateLimitedError):
            await read(model, REQUEST)


async def test_empty_events_are_passed_over() -> None:
    body = b"data: \n\n" + events((piece(content="Yes."), "", piece(finish="stop")))
    async with open_server(body, "text/event-stream") as (model, _):
        assert (await read(model, REQUEST))[0] == "Yes."


# Calls in the text --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        'Write {"name": "weather", "arguments": {}} to call it.',
        '{"name": "unknown", "arguments": {}}',
        '{"name": "weather", "population": 3}',
        '{"name": "weather", "arguments": {"city": "Os',
        '<tool_call>{"name": "weather", "arguments": {}}</tool_call> and then?',
        "<tool_call> is what Qwen writes",
        "[1, 2]",
        "<function=weather><parameter=city>Oslo",
        "weather",
        '{"name": "weather", "arguments": "Oslo"}',
    ],
)
def test_text_that_is_not_surely_a_call_stays_text(text: str) -> None:
    answer = ModelResponse(text)
    assert with_calls_of_text(answer, REQUEST) is answer


def test_json_is_the_answer_where_a_form_was_asked_for() -> None:
    answer = ModelResponse('{"name": "weather", "arguments": {}}')
    formed = attrs.evolve(REQUEST, output_schema={"type": "object"})
    assert with_calls_of_text(answer, formed) is answer
    assert with_calls_of_text(answer, REQUEST).tool_calls


async def test_calls_in_the_text_are_not_looked_for_where_no_tools_were_given() -> None:
    body = json.dumps(message(content='{"name": "now", "arguments": {}}', finish="stop")).encode()
    async with open_server(body, "application/json") as (model, _):
        answer = await model.complete(ModelRequest([Message("user", "hi")]))
    assert answer.content
    assert not answer.tool_calls


def test_text_of_a_stream_is_held_back_only_while_it_may_be_a_call() -> None:
    held = HeldText()
    assert held.take("a < b") == "a < b"
    assert held.take(" and <") == " and "
    assert held.take("b>") == "<b>"
    held = HeldText()
    assert held.take("{") == ""
    assert held.take('"na') == ""
    assert held.take('tion": 1') == '{"nation": 1'
    assert held.rest('{"nation": 1}') == "}"


# What goes back -----------------------------------------------------------------------------------


async def test_thoughts_go_back_with_their_call_to_the_server_that_sent_them() -> None:
    """DeepSeek refuses a history without them; Groq and Mistral one with them."""
    dialect = OpenAIChat()
    own = attrs.evolve(NO_SETTINGS, server="api.deepseek.com")
    whole = dialect.read(message(call("weather", OSLO, "a"), reasoning_content="Which city?"), own)
    history = [
        Message("user", "hi"),
        Message("assistant", whole.content, whole.tool_calls),
        Message("tool", "rain", tool_call_id="a"),
    ]
    sent = dialect.body(ModelRequest(history), own)["messages"][1]
    assert sent["reasoning_content"] == "Which city?"
    assert sent["tool_calls"][0].keys() == {"id", "type", "function"}
    other = attrs.evolve(NO_SETTINGS, server="api.groq.com")
    assert "reasoning_content" not in dialect.body(ModelRequest(history), other)["messages"][1]
