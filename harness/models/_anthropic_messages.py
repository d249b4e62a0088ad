"""Speak Anthropic's messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from harness.models._dialect import (
    IMAGES,
    NO_SETTINGS,
    PDF,
    CallSettings,
    EventReader,
    ReportedError,
    UnreadableReply,
    base64_of,
    count,
    entries,
    finish_of,
    inner,
    mapping,
    name_to_send,
    refusal_of,
    text,
    tool_call,
)
from harness.models._file import Content, File
from harness.models._messages import Message, ModelRequest, ModelResponse, ToolCall, Usage
from harness.models._schemas import enforceable, root_object

MAX_OUTPUT_TOKENS = 4_096
"""The largest output of a call if nobody sets one; Anthropic requires a number."""

_STATE = "anthropic"
_THOUGHTS = ("thinking", "redacted_thinking")
# For each kind of piece: the field of the block that it continues.
_DELTAS = {
    "text_delta": "text",
    "input_json_delta": "partial_json",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}

STATUS_OF_ERRORS = {
    "api_error": 500,
    "authentication_error": 401,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "overloaded_error": 529,
    "permission_error": 403,
    "rate_limit_error": 429,
    "request_too_large": 413,
    "timeout_error": 504,
}
"""The status that an error within a stream or a batch would have had alone."""


class AnthropicMessages:
    """The dialect of ``/v1/messages``."""

    streaming: Mapping[str, Any] = {"stream": True}

    def body(self, request: ModelRequest, settings: CallSettings) -> dict[str, Any]:
        """Return the arguments of ``messages.create``."""
        body: dict[str, Any] = {
            "model": settings.model,
            "max_tokens": settings.max_output_tokens or MAX_OUTPUT_TOKENS,
            "messages": _turns(request),
        }
        system = [message.text for message in request.messages if message.role == "system"]
        if any(system):
            body["system"] = "\n\n".join(system)
        if request.tools:
            body["tools"] = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "input_schema": dict(tool.parameters),
                }
                for tool in request.tools
            ]
        if settings.cache_prompts:
            _mark_for_cache(body)
        # Not known by name in some versions of the client.
        extra: dict[str, Any] = {}
        if settings.temperature is not None:
            extra["temperature"] = settings.temperature
        if request.output_schema is not None and settings.enforce_schema:
            root = root_object(request.output_schema)
            schema = None if root is None else enforceable(root, all_required=False)
            if schema is not None:
                extra["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        if extra:
            body["extra_body"] = extra
        return body

    # 32 MB for the request, as base64, with room for the text:
    # https://docs.anthropic.com/en/api/overview#request-size-limits
    files_bytes_at_most = 23_000_000

    def refusal(self, file: File) -> str | None:
        """Return what it takes instead of this file; None if it takes that."""
        return refusal_of(file, (*IMAGES, PDF), (*IMAGES, PDF))

    def resource(self, client: Any) -> Any:
        """Return the part of the client that has the method."""
        return client.messages

    def read(self, data: Any, settings: CallSettings = NO_SETTINGS) -> ModelResponse:
        """Return the answer that a whole reply holds."""
        reply = mapping(data, "the reply")
        if inner(reply, "type") == "error":
            raise _reported(reply)
        if not isinstance(inner(reply, "content"), list):
            raise UnreadableReply("gave a reply that can't be read: it has no content")
        return _response(
            entries(reply, "content"),
            _usage(inner(reply, "usage"), Usage()),
            inner(reply, "stop_reason"),
        )

    def reader(self, settings: CallSettings = NO_SETTINGS) -> EventReader:
        """Return a reader for the events of a stream."""
        return _MessageReader()


def _mark_for_cache(body: dict[str, Any]) -> None:
    """Mark two places: where what all requests share ends, and the end of the conversation."""
    mark = {"cache_control": {"type": "ephemeral"}}
    if "system" in body:  # The tools come before it, so one mark is for both.
        body["system"] = [{"type": "text", "text": body["system"], **mark}]
    elif "tools" in body:
        body["tools"][-1].update(mark)
    if body["messages"]:
        body["messages"][-1]["content"][-1].update(mark)


def _turns(request: ModelRequest) -> list[dict[str, Any]]:
    """Return the history as turns: consecutive messages to the model make one turn."""
    turns: list[dict[str, Any]] = []
    for message in request.messages:
        blocks = _blocks(message)
        if not blocks:  # A block with empty text is refused.
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(message: Message) -> list[dict[str, Any]]:
    content = message.content
    if message.role == "system":
        return []
    if message.role == "tool":
        result: dict[str, Any] = {
            "type": "tool_result",
            "tool_use_id": message.tool_call_id or "",
            "content": content if isinstance(content, str) else _parts(content),
        }
        return [result]
    blocks = _parts(content)
    for place, call in enumerate(message.tool_calls):
        thoughts = entries(inner(call.provider_state, _STATE), "thoughts")
        before = len(blocks) if place else 0  # Those of the first call come before the text, too.
        blocks[before:before] = thoughts
        blocks.append(
            {
                "type": "tool_use",
                "id": call.id,
                "name": name_to_send(call),
                "input": dict(call.arguments),
            }
        )
    return blocks


def _parts(content: Content) -> list[dict[str, Any]]:
    """Return the blocks of a content, of which none may have an empty text."""
    blocks: list[dict[str, Any]] = []
    for part in (content,) if isinstance(content, str) else content:
        if isinstance(part, File):
            blocks.append(_file(part))
        elif part.strip():
            blocks.append({"type": "text", "text": part})
    return blocks


def _file(file: File) -> dict[str, Any]:
    source: dict[str, Any]
    if file.is_text and file.data is not None:
        source = {"type": "text", "media_type": "text/plain", "data": file.data.decode()}
    elif file.url is not None:
        source = {"type": "url", "url": file.url}
    else:
        source = {"type": "base64", "media_type": file.media_type, "data": base64_of(file)}
    if file.media_type in IMAGES:
        return {"type": "image", "source": source}
    title = {"title": file.name} if file.name else {}
    return {"type": "document", "source": source, **title}


def _state(thoughts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return what is kept for a call: the thoughts before it, to be sent back unchanged.

    Without them Anthropic refuses the results of a call that the model thought about. Thoughts
    before a text that ends a turn are no longer needed.
    """
    return {_STATE: {"thoughts": thoughts}} if thoughts else None


def _usage(usage: object, before: Usage) -> Usage:
    cached = count(usage, "cache_read_input_tokens")
    written = count(usage, "cache_creation_input_tokens")
    read = count(usage, "input_tokens") + written + cached
    # Later events repeat what they know, and leave out what they don't.
    return Usage(
        read or before.input_tokens,
        count(usage, "output_tokens") or before.output_tokens,
        cached_input_tokens=cached or before.cached_input_tokens,
        cache_write_input_tokens=written or before.cache_write_input_tokens,
    )


def _reported(reply: Mapping[str, Any]) -> ReportedError:
    name = text(inner(reply, "error"), "type")
    return ReportedError(dict(reply), STATUS_OF_ERRORS.get(name))


def _response(blocks: list[Any], usage: Usage, stop_reason: object) -> ModelResponse:
    pieces: list[str] = []
    calls: list[ToolCall] = []
    thoughts: list[dict[str, Any]] = []
    reasoning: list[str] = []
    for block in blocks:
        if inner(block, "type") == "text":
            pieces.append(text(block, "text"))
        elif inner(block, "type") in _THOUGHTS:
            thoughts.append(dict(block))
            reasoning.append(text(block, "thinking"))
        elif inner(block, "type") == "tool_use":
            arguments = text(block, "partial_json") or inner(block, "input")
            calls.append(
                tool_call(
                    text(block, "id"),
                    text(block, "name"),
                    arguments,
                    len(calls),
                    state=_state(thoughts),
                )
            )
            thoughts = []
    return ModelResponse(
        "".join(pieces),
        tool_calls=calls,
        usage=usage,
        finish=finish_of(stop_reason, calls),
        reasoning="\n\n".join(filter(None, reasoning)),
    )


@attrs.define
class _Block:
    """A block of content that arrives in pieces."""

    began: Mapping[str, Any]
    """As it began, with what comes in pieces still empty."""

    pieces: dict[str, list[str]] = attrs.field(factory=dict[str, list[str]])
    """By the field they belong to."""

    def take(self, name: str, piece: str) -> None:
        self.pieces.setdefault(name, []).append(piece)

    def whole(self) -> dict[str, Any]:
        """Return it as it would have come in one piece: what it began with plus what came since."""
        came = {name: text(self.began, name) + "".join(came) for name, came in self.pieces.items()}
        return {**self.began, **came}


class _MessageReader(EventReader):
    """Reads the events of one stream."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, _Block] = {}
        self._stop_reason: object = None

    def take(self, event: Any) -> str:
        kind = inner(mapping(event, "an event of the stream"), "type")
        if kind == "content_block_delta":
            return self._take_delta(event)
        if kind == "content_block_start":
            return self._take_block(event)
        if kind == "message_start":
            self.usage = _usage(inner(inner(event, "message"), "usage"), self.usage)
        elif kind == "message_delta":
            self.usage = _usage(inner(event, "usage"), self.usage)
            self._stop_reason = inner(inner(event, "delta"), "stop_reason") or self._stop_reason
        elif kind == "message_stop":
            self.done = True
        elif kind == "error":
            raise _reported(event)
        return ""

    def _take_block(self, event: object) -> str:
        began = inner(event, "content_block")
        self._blocks[count(event, "index")] = _Block(began if isinstance(began, Mapping) else {})
        return text(began, "text") if text(began, "type") == "text" else ""

    def _take_delta(self, event: object) -> str:
        block = self._blocks.get(count(event, "index"))
        delta = inner(event, "delta")
        kind = inner(delta, "type")
        name = _DELTAS.get(kind) if isinstance(kind, str) else None
        if block is None or name is None:
            return ""  # For kinds that don't exist yet.
        piece = text(delta, name)
        block.take(name, piece)
        return piece if name == "text" else ""

    def whole(self) -> ModelResponse:
        blocks = [block.whole() for block in self._blocks.values()]
        return _response(blocks, self.usage, self._stop_reason)
