"""Speak OpenAI's responses, the newer of its two interfaces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.models._dialect import (
    IMAGES,
    NO_SETTINGS,
    PDF,
    CallSettings,
    EventReader,
    ReportedError,
    UnreadableReply,
    address_of,
    arguments_text,
    count,
    entries,
    finish_of,
    inner,
    mapping,
    name_to_send,
    refusal_of,
    status_in,
    text,
    text_in,
    tool_call,
)
from harness.models._file import Content, File
from harness.models._messages import Message, ModelRequest, ModelResponse, ToolCall, Usage
from harness.models._openai_chat import output_form, parts_of

_STATE = "openai_responses"
"""Where a call keeps what the model thought before it: the provider wants that back with the call,
for the answer to go on from it. Thoughts before a text that ends a turn are no longer needed."""

_KEPT = ("type", "id", "summary", "encrypted_content")

_REASONS = re.compile(r"(?:^|[/:])(?:o\d|gpt-[5-9](?!.*chat)|codex)")
"""The names of models that think before they answer."""


class OpenAIResponses:
    """The dialect of ``/v1/responses``. Nothing is stored there: a request has all its history."""

    streaming: Mapping[str, Any] = {"stream": True}

    def body(self, request: ModelRequest, settings: CallSettings) -> dict[str, Any]:
        """Return the arguments of ``responses.create``."""
        body: dict[str, Any] = {
            "model": settings.model,
            "input": [item for message in request.messages for item in _items(message)],
            "store": False,
        }
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                    "strict": False,
                }
                for tool in request.tools
            ]
        if settings.max_output_tokens is not None:
            body["max_output_tokens"] = settings.max_output_tokens
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if _REASONS.search(settings.model):
            # Nothing is stored at the provider, so what the model thought comes along, encrypted.
            # Models that don't think refuse to be asked for it.
            body["include"] = ["reasoning.encrypted_content"]
        form = output_form(request, settings)
        if form is not None:
            body["text"] = {"format": {"type": "json_schema", **form}}
        return body

    # https://platform.openai.com/docs/guides/pdf-files
    files_bytes_at_most = 50_000_000

    def refusal(self, file: File) -> str | None:
        """Return what it takes instead of this file; None if it takes that."""
        return refusal_of(file, (*IMAGES, PDF), (*IMAGES, PDF, "text/*"))

    def resource(self, client: Any) -> Any:
        """Return the part of the client that has the method."""
        return client.responses

    def read(self, data: Any, settings: CallSettings = NO_SETTINGS) -> ModelResponse:
        """Return the answer that a whole reply holds."""
        reply = mapping(data, "the reply")
        status = inner(reply, "status")
        if status == "failed" or (inner(reply, "error") and status != "completed"):
            raise ReportedError(dict(reply), status_in(inner(reply, "error")))
        if not isinstance(inner(reply, "output"), list):
            raise UnreadableReply("gave a reply that can't be read: it has no output")
        pieces: list[str] = []
        refusals: list[str] = []
        calls: list[ToolCall] = []
        thoughts: list[dict[str, Any]] = []
        reasoning: list[str] = []
        for item in entries(reply, "output"):
            if inner(item, "type") == "reasoning":
                if inner(item, "encrypted_content"):
                    thoughts.append({name: item[name] for name in _KEPT if name in item})
                for part in (*entries(item, "summary"), *entries(item, "content")):
                    reasoning.append(text(part, "text"))
            elif inner(item, "type") == "message":
                for part in entries(item, "content"):
                    pieces.append(text(part, "text"))
                    refusals.append(text(part, "refusal"))
            elif inner(item, "type") == "function_call":
                call_id = text(item, "call_id") or text(item, "id")
                state = {_STATE: {"thoughts": thoughts}} if thoughts else None
                thoughts = []
                name, arguments = text(item, "name"), inner(item, "arguments")
                calls.append(tool_call(call_id, name, arguments, len(calls), state=state))
        refusal = "".join(refusals)
        reason = inner(inner(reply, "incomplete_details"), "reason") or status
        return ModelResponse(
            "".join(pieces) or refusal,
            tool_calls=calls,
            usage=_usage(inner(reply, "usage")),
            finish="refusal" if refusal else finish_of(reason, calls),
            reasoning="\n\n".join(filter(None, reasoning)),
        )

    def reader(self, settings: CallSettings = NO_SETTINGS) -> EventReader:
        """Return a reader for the events of a stream."""
        return _ResponseReader()


def _items(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        call_id = message.tool_call_id or ""
        output = _parts(message.content)
        return [{"type": "function_call_output", "call_id": call_id, "output": output}]
    items: list[dict[str, Any]] = []
    if message.content or not message.tool_calls:
        items.append({"role": message.role, "content": _parts(message.content)})
    for place, call in enumerate(message.tool_calls):
        thoughts = entries(inner(call.provider_state, _STATE), "thoughts")
        before = len(items) if place else 0  # Those of the first call come before the text, too.
        items[before:before] = thoughts
        items.append(
            {
                "type": "function_call",
                "call_id": call.id,
                "name": name_to_send(call),
                "arguments": arguments_text(call),
            }
        )
    return items


def _parts(content: Content) -> str | list[dict[str, Any]]:
    return parts_of(content, text_type="input_text", form_of=_file)


def _file(file: File) -> dict[str, Any]:
    if file.is_text and file.url is None:
        return {"type": "input_text", "text": text_in(file)}
    if file.media_type in IMAGES:
        return {"type": "input_image", "image_url": address_of(file), "detail": "auto"}
    if file.url is not None:
        return {"type": "input_file", "file_url": file.url}
    name = file.name or "file.pdf"
    return {"type": "input_file", "filename": name, "file_data": address_of(file)}


def _usage(usage: object) -> Usage:
    return Usage(
        count(usage, "input_tokens"),
        count(usage, "output_tokens"),
        cached_input_tokens=count(inner(usage, "input_tokens_details"), "cached_tokens"),
    )


class _ResponseReader(EventReader):
    """Reads events; the last one holds the whole answer, so until then only text matters."""

    _reply: object = None

    def take(self, event: Any) -> str:
        if event == "[DONE]":
            return ""
        kind = inner(mapping(event, "an event of the stream"), "type")
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            return text(event, "delta")
        if kind in ("response.completed", "response.incomplete"):
            self._reply = inner(event, "response")
            self.usage = _usage(inner(self._reply, "usage"))
            self.done = True
        elif kind == "response.failed":
            reply = inner(event, "response")
            raise ReportedError(reply, status_in(inner(reply, "error")))
        elif kind == "error" or (kind is None and inner(event, "error")):
            raise ReportedError(dict(event), status_in(inner(event, "error")))
        return ""

    def whole(self) -> ModelResponse:
        return OpenAIResponses().read(self._reply)
