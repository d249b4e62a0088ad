"""Bodies and events, checked against the types that the real clients publish.

The clients themselves take whatever comes and check nothing; pydantic does.
"""

from __future__ import annotations

import functools
import json
from importlib import import_module
from typing import Any

import pydantic
import pytest
from trio.testing import MockClock

from harness.testing.provider import Answer, AnswerToolCall, ProviderRequest, open_provider
from tests.testing.provider.asks import CHAT, MESSAGES, PATHS, RESPONSES, ask

# As Any: their unions take minutes to check.
openai_types: Any = import_module("openai.types")
anthropic_types: Any = import_module("anthropic.types")

ANSWERS = {
    "text": Answer("Some words, and\n more."),
    "nothing": Answer(""),
    "tools": Answer("Look:", (AnswerToolCall("look", {"at": ["this"]}), AnswerToolCall("go"))),
    "only tools": Answer("", (AnswerToolCall("look", {"at": ["this"]}, id="call_of_mine"),)),
    "cut short": Answer("Some words, and", finish="length"),
    "long": Answer("word " * 5000),
}


def answer(request: ProviderRequest) -> Answer:
    """Give the answer that the prompt names."""
    return ANSWERS[request.prompt]


@functools.cache  # Building one for so large a union takes a second.
def event_type(path: str) -> Any:
    """Return pydantic's view of the events of an API."""
    types = {
        CHAT: openai_types.chat.ChatCompletionChunk,
        RESPONSES: openai_types.responses.ResponseStreamEvent,
        MESSAGES: anthropic_types.RawMessageStreamEvent,
    }
    return pydantic.TypeAdapter(types[path])


def events_of(stream: str) -> list[tuple[str | None, Any]]:
    """Return the name and payload of each event of a stream."""
    events: list[tuple[str | None, Any]] = []
    for block in stream.split("\n\n")[:-1]:
        lines = block.split("\n")
        name = lines[0].removeprefix("event: ") if len(lines) == 2 else None
        assert lines[-1].startswith("data: ")
        payload = lines[-1].removeprefix("data: ")
        events.append((name, payload if payload == "[DONE]" else json.loads(payload)))
    assert stream.endswith("\n\n")
    return events


@pytest.mark.parametrize("prompt", ANSWERS)
async def test_whole_answers_have_the_published_shape(
    prompt: str, autojump_clock: MockClock
) -> None:
    types = {
        CHAT: openai_types.chat.ChatCompletion,
        RESPONSES: openai_types.responses.Response,
        MESSAGES: anthropic_types.Message,
    }
    async with open_provider(answer=answer, http=False) as provider:
        for path in PATHS:
            reply = await provider.request(path, ask(path, prompt))
            types[path].model_validate(reply.body)


@pytest.mark.parametrize("prompt", ANSWERS)
async def test_events_have_the_published_shape(prompt: str, autojump_clock: MockClock) -> None:
    async with open_provider(answer=answer, http=False) as provider:
        for path in PATHS:
            options = {"stream_options": {"include_usage": True}} if path == CHAT else {}
            reply = await provider.request(path, ask(path, prompt, stream=True, **options))
            assert reply.headers["content-type"].startswith("text/event-stream")
            events = events_of(reply.body)
            assert len(events) < 80, "a long answer is sent in larger pieces"
            if path == CHAT:
                assert events.pop() == (None, "[DONE]")
            for name, payload in events:
                if name == "ping":
                    continue  # Sent by the real API, and missing from the published types.
                assert name == (None if path == CHAT else payload["type"])
                event_type(path).validate_python(payload)


@pytest.mark.parametrize("prompt", ANSWERS)
async def test_a_stream_adds_up_to_the_whole_answer(prompt: str, autojump_clock: MockClock) -> None:
    async with open_provider(answer=answer, http=False) as provider:
        for path in (RESPONSES, MESSAGES):
            whole = (await provider.request(path, ask(path, prompt))).body
            stream = (await provider.request(path, ask(path, prompt, stream=True))).body
            payloads = [payload for _, payload in events_of(stream)]
            if path == RESPONSES:
                numbers = [payload["sequence_number"] for payload in payloads]
                assert numbers == list(range(len(payloads)))
                last = payloads[-1]["response"]
                assert [text_or_arguments(item) for item in last["output"]] == [
                    text_or_arguments(item) for item in whole["output"]
                ]
                assert last["usage"] == whole["usage"]
            else:
                assert payloads[0]["message"]["content"] == []
                blocks: list[dict[str, Any]] = []
                for payload in payloads:
                    if payload["type"] == "content_block_start":
                        block = payload["content_block"]
                        assert block.get("text", "") == ""
                        assert block.get("input", {}) == {}
                        blocks.append({**block, "json": ""})
                    elif payload["type"] == "content_block_delta":
                        delta = payload["delta"]
                        block = blocks[payload["index"]]
                        block["json"] += delta.get("partial_json", "")
                        if "text" in delta:
                            block["text"] += delta["text"]
                assert [block.get("text", block["json"]) for block in blocks] == [
                    block.get("text", json.dumps(block.get("input"))) for block in whole["content"]
                ]


def text_or_arguments(item: dict[str, Any]) -> str:
    """Return what an output item of the responses API says."""
    said: str = item["content"][0]["text"] if item["type"] == "message" else item["arguments"]
    return said
