"""Speak OpenAI's chat completions, as many other servers do too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from harness.models._dialect import (
    CallSettings,
    EventReader,
    ReportedError,
    UnreadableReply,
    arguments_text,
    count,
    entries,
    finish_of,
    inner,
    mapping,
    name_to_send,
    status_in,
    text,
    text_of_parts,
    tool_call,
)
from harness.models._messages import Message, ModelRequest, ModelResponse, ToolCall, Usage
from harness.models._schemas import enforceable, root_object

_STATE = "openai"


class OpenAIChat:
    """The dialect of ``/v1/chat/completions``."""

    streaming: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

    def body(self, request: ModelRequest, settings: CallSettings) -> dict[str, Any]:
        """Return the arguments of ``chat.completions.create``."""
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": [_message(message) for message in request.messages],
        }
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": dict(tool.parameters),
                    },
                }
                for tool in request.tools
            ]
        if settings.max_output_tokens is not None:
            # OpenAI's newer models refuse the old name; many other servers don't know the new one.
            name = "max_tokens" if settings.is_compatible else "max_completion_tokens"
            body[name] = settings.max_output_tokens
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        form = output_form(request, settings)
        if form is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        return body

    def resource(self, client: Any) -> Any:
        """Return the part of the client that has the method."""
        return client.chat.completions

    def read(self, data: Any) -> ModelResponse:
        """Return the answer that a whole reply holds."""
        reply = mapping(data, "the reply")
        choices = entries(reply, "choices")
        if not choices and reply.get("error"):  # From servers that pass on what others answer.
            raise ReportedError(dict(reply), status_in(reply["error"]))
        if not choices:
            raise UnreadableReply("gave a reply that can't be read: it has no choices")
        choice = choices[0]  # If an option asked for several, the first counts.
        message = mapping(inner(choice, "message"), "its message")
        calls = [
            tool_call(
                text(call, "id"),
                text(inner(call, "function"), "name"),
                inner(inner(call, "function"), "arguments"),
                place,
                state=_state(call),
            )
            for place, call in enumerate(entries(message, "tool_calls"))
            if inner(call, "function") is not None
        ]
        return _response(
            text_of_parts(message, "content"),
            text(message, "refusal"),
            calls,
            _usage(inner(reply, "usage")),
            inner(choice, "finish_reason"),
        )

    def reader(self) -> EventReader:
        """Return a reader for the events of a stream."""
        return _ChatReader()


def output_form(request: ModelRequest, settings: CallSettings) -> dict[str, Any] | None:
    """Return OpenAI's description of what the answer's text should be; ``None`` for anything."""
    if request.output_schema is None or not settings.enforce_schema:
        return None
    schema = root_object(request.output_schema)
    if schema is None:  # OpenAI enforces only objects.
        return None
    strict = enforceable(schema, all_required=True)
    return {
        "name": "output",
        "schema": schema if strict is None else strict,
        "strict": strict is not None,
    }


def _response(
    content: str, refusal: str, calls: list[ToolCall], usage: Usage, reason: object
) -> ModelResponse:
    finish = "refusal" if refusal else finish_of(reason, calls)
    return ModelResponse(content or refusal, tool_calls=calls, usage=usage, finish=finish)


def _message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {
            "role": "tool",
            "tool_call_id": message.tool_call_id or "",
            "content": message.content,
        }
    if not message.tool_calls:
        return {"role": message.role, "content": message.content}
    return {
        "role": message.role,
        "content": message.content or None,
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": name_to_send(call), "arguments": arguments_text(call)},
                **(inner(call.provider_state, _STATE) or {}),
            }
            for call in message.tool_calls
        ],
    }


def _state(call: object) -> dict[str, Any] | None:
    """Return what is kept for a call: what it has besides OpenAI's own fields.

    Google's server puts its signature of the model's thoughts there, and refuses a history without
    it.
    """
    extra = inner(call, "extra_content")
    return {_STATE: {"extra_content": dict(extra)}} if isinstance(extra, Mapping) else None


def _usage(usage: object) -> Usage:
    return Usage(
        count(usage, "prompt_tokens"),
        count(usage, "completion_tokens"),
        cached_input_tokens=count(inner(usage, "prompt_tokens_details"), "cached_tokens"),
    )


@attrs.define
class _Call:
    """A tool call that arrives in pieces."""

    id: str = ""
    name: str = ""
    arguments: list[str] = attrs.field(factory=list[str])
    state: dict[str, Any] | None = None


class _ChatReader(EventReader):
    """Reads the chunks of one stream."""

    def __init__(self) -> None:
        super().__init__()
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[object, _Call] = {}
        self._finish_reason: object = None

    def take(self, event: Any) -> str:
        if event == "[DONE]":
            self.take_end()
            return ""
        chunk = mapping(event, "a chunk of the stream")
        if chunk.get("error"):
            raise ReportedError(dict(chunk), status_in(chunk["error"]))
        if chunk.get("usage"):
            self.usage = _usage(chunk["usage"])
        for choice in entries(chunk, "choices"):
            if inner(choice, "index") not in (0, None):
                continue
            delta = inner(choice, "delta")
            self._finish_reason = inner(choice, "finish_reason") or self._finish_reason
            for call in entries(delta, "tool_calls"):
                self._take_call(call)
            if refusal := text(delta, "refusal"):
                self._refusal.append(refusal)
            if piece := text_of_parts(delta, "content"):
                self._text.append(piece)
                return piece
        return ""

    def take_end(self) -> None:
        self.done = self._finish_reason is not None

    def _take_call(self, piece: object) -> None:
        place = inner(piece, "index")
        if not isinstance(place, int):
            # Some servers send whole calls without numbers; others mean the last one.
            begins = bool(text(piece, "id")) or not self._calls
            place = len(self._calls) if begins else next(reversed(self._calls))
        call = self._calls.setdefault(place, _Call())
        function = inner(piece, "function")
        call.id = call.id or text(piece, "id")
        call.name = call.name or text(function, "name")
        call.state = call.state or _state(piece)
        given = inner(function, "arguments")
        if isinstance(given, str):
            call.arguments.append(given)

    def whole(self) -> ModelResponse:
        calls = [
            tool_call(call.id, call.name, "".join(call.arguments), place, state=call.state)
            for place, call in enumerate(self._calls.values())
        ]
        return _response(
            "".join(self._text), "".join(self._refusal), calls, self.usage, self._finish_reason
        )
