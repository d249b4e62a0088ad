"""Speak OpenAI's chat completions, as many other servers do too."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
    address_of,
    arguments_text,
    base64_of,
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
    text_of_parts,
    tool_call,
    with_own_ids,
)
from harness.models._file import Content, File, files_of, text_of
from harness.models._messages import Message, ModelRequest, ModelResponse, Usage
from harness.models._schemas import enforceable, root_object

_STATE = "openai"
_AUDIO = {"audio/wav": "wav", "audio/mpeg": "mp3"}


class OpenAIChat:
    """The dialect of ``/v1/chat/completions``."""

    streaming: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

    def body(self, request: ModelRequest, settings: CallSettings) -> dict[str, Any]:
        """Return the arguments of ``chat.completions.create``."""
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": _messages(request, settings.server),
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

    # https://platform.openai.com/docs/guides/pdf-files
    files_bytes_at_most = 50_000_000

    def refusal(self, file: File) -> str | None:
        """Return what it takes instead of this file; None if it takes that."""
        return refusal_of(file, (*IMAGES, *_AUDIO, PDF), IMAGES)

    def resource(self, client: Any) -> Any:
        """Return the part of the client that has the method."""
        return client.chat.completions

    def read(self, data: Any, settings: CallSettings = NO_SETTINGS) -> ModelResponse:
        """Return the answer that a whole reply holds."""
        reply = mapping(data, "the reply")
        _raise_reported(reply)
        choices = entries(reply, "choices")
        if not choices:
            raise UnreadableReply("gave a reply that can't be read: it has no choices")
        choice = choices[0]  # If an option asked for several, the first counts.
        _raise_reported(choice)
        message = mapping(inner(choice, "message"), "its message")
        reader = _ChatReader(settings)
        reader.take_message(message, whole=True)
        reader.usage = _usage(reply)
        return reader.answer(inner(choice, "finish_reason"))

    def reader(self, settings: CallSettings = NO_SETTINGS) -> EventReader:
        """Return a reader for the events of a stream."""
        return _ChatReader(settings)


def _raise_reported(reply: object) -> None:
    """Raise the error that a server passes on in an answer whose status said all was well."""
    error = inner(reply, "error")
    if not error and inner(reply, "object") == "error":  # As vLLM wrote it.
        error = reply
    if error:
        raise ReportedError(dict(mapping(reply, "the reply")), status_in(error))


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


def _messages(request: ModelRequest, server: str) -> list[dict[str, Any]]:
    """Return the history; files among the results of tools come after them, as the user's.

    The API takes only text as the result of a tool, and nothing between the results of a turn.
    """
    messages: list[dict[str, Any]] = []
    from_tools: list[str | File] = []
    for message in request.messages:
        if from_tools and message.role != "tool":
            messages.append({"role": "user", "content": _parts(tuple(from_tools))})
            from_tools = []
        messages.append(_message(message, server))
        if message.role == "tool" and files_of(message.content):
            from_tools += (f"Files from the call {message.tool_call_id}:", *message.files)
    if from_tools:
        messages.append({"role": "user", "content": _parts(tuple(from_tools))})
    return messages


def parts_of(
    content: Content, *, text_type: str, form_of: Callable[[File], dict[str, Any]]
) -> str | list[dict[str, Any]]:
    """Return text as it is, and a content with files as parts: OpenAI's APIs differ in their forms.

    Args:
      content: What a message says.
      text_type: The ``type`` of a part that is text.
      form_of: Returns a file as a part.
    """
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for part in content:
        if isinstance(part, File):
            parts.append(form_of(part))
        elif part:
            parts.append({"type": text_type, "text": part})
    return parts


def _parts(content: Content) -> str | list[dict[str, Any]]:
    return parts_of(content, text_type="text", form_of=_file)


def _file(file: File) -> dict[str, Any]:
    if file.is_text:
        return {"type": "text", "text": text_in(file)}
    if file.media_type in _AUDIO:
        audio = {"data": base64_of(file), "format": _AUDIO[file.media_type]}
        return {"type": "input_audio", "input_audio": audio}
    if file.media_type == PDF:
        name = file.name or "file.pdf"
        return {"type": "file", "file": {"filename": name, "file_data": address_of(file)}}
    return {"type": "image_url", "image_url": {"url": address_of(file)}}


def _message(message: Message, server: str) -> dict[str, Any]:
    if message.role == "tool":
        said = text_of(message.content)
        if not said and message.content:
            said = "The result is in the next message."
        return {
            "role": "tool",
            "tool_call_id": message.tool_call_id or "",
            "content": said,
        }
    if not message.tool_calls:
        return {"role": message.role, "content": _parts(message.content)}
    first = inner(message.tool_calls[0].provider_state, _STATE)
    return {
        "role": message.role,
        "content": text_of(message.content) or None,
        **(inner(first, "thoughts") or {} if inner(first, "server") == server else {}),
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": name_to_send(call), "arguments": arguments_text(call)},
                **(inner(inner(call.provider_state, _STATE), "call") or {}),
            }
            for call in message.tool_calls
        ],
    }


def _usage(reply: object) -> Usage:
    """Return the usage, wherever the server puts it."""
    usage = inner(reply, "usage") or inner(inner(reply, "x_groq"), "usage")
    if not usage:
        for choice in entries(reply, "choices"):
            usage = usage or inner(choice, "usage")
    timings = inner(reply, "timings")
    if not usage and timings:  # llama.cpp's, which counts only what wasn't in its cache.
        cached = count(timings, "cache_n")
        return Usage(
            count(timings, "prompt_n") + cached,
            count(timings, "predicted_n"),
            cached_input_tokens=cached,
        )
    details = inner(usage, "prompt_tokens_details")
    return Usage(
        count(usage, "prompt_tokens"),
        count(usage, "completion_tokens"),
        cached_input_tokens=count(details, "cached_tokens")
        or count(usage, "prompt_cache_hit_tokens"),
        cache_write_input_tokens=count(details, "cache_write_tokens"),
    )


def _is_whole(arguments: str) -> bool:
    """Return whether the arguments of a call are complete, so that no piece can follow."""
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return True


@attrs.define
class _Call:
    """A tool call that arrives in pieces."""

    id: str = ""
    name: str = ""
    arguments: str = ""
    state: dict[str, Any] = attrs.field(factory=dict[str, Any])

    def is_followed_by(self, call_id: str, name: str, arguments: str) -> bool:
        """Return whether a piece with its number begins another call.

        Several servers number all their calls 0. Others repeat a call's id or name with every
        piece, or send a new id with every piece.
        """
        if not name:
            return False
        if call_id and self.id and call_id != self.id:
            return not self.arguments or _is_whole(self.arguments)
        return _is_whole(self.arguments) and bool(arguments or name != self.name)

    def take(self, call_id: str, name: str, arguments: str) -> None:
        self.id = self.id or call_id
        if name and not self.arguments:  # It may come in pieces, too, or whole with every piece.
            self.name = name if name.startswith(self.name) else self.name + name
        self.arguments += arguments


class _ChatReader(EventReader):
    """Reads the chunks of one stream."""

    def __init__(self, settings: CallSettings) -> None:
        super().__init__()
        self._server = settings.server
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_Call] = []
        self._by_number: dict[object, _Call] = {}
        self._thoughts: dict[str, str] = {}
        self._reasoning = ""
        self._details: list[dict[str, Any]] = []
        self._finish_reason: object = None

    def take(self, event: Any) -> str:
        if event == "[DONE]":
            self.done = True  # Some servers give no reason for the end.
            return ""
        chunk = mapping(event, "a chunk of the stream")
        _raise_reported(chunk)
        used = _usage(chunk)
        self.usage = used if used.total else self.usage
        pieces: list[str] = []
        for choice in entries(chunk, "choices"):
            if inner(choice, "index") not in (0, None):
                continue
            _raise_reported(choice)
            self._finish_reason = inner(choice, "finish_reason") or self._finish_reason
            pieces.append(self.take_message(inner(choice, "delta")))
        return "".join(pieces)

    def take_end(self) -> None:
        self.done = self.done or self._finish_reason is not None

    def take_message(self, message: object, *, whole: bool = False) -> str:
        """Take a message, or a part of one; return its text."""
        calls = entries(message, "tool_calls")
        old_call = inner(message, "function_call")  # From before there could be several.
        if old_call and not calls:
            calls = [{"index": 0, "function": old_call}]
        for call in calls:
            self._take_call(call, whole)
        for name in ("reasoning_content", "reasoning"):
            if piece := text(message, name):
                self._thoughts[name] = self._thoughts.get(name, "") + piece
        for part in entries(message, "content"):  # Mistral's, which needn't go back.
            self._reasoning += text_of_parts(part, "thinking")
        for detail in entries(message, "reasoning_details"):
            self._take_detail(detail)
        self._refusal.append(text(message, "refusal"))
        self._text.append(text_of_parts(message, "content"))
        return self._text[-1]

    def _take_call(self, piece: object, whole: bool) -> None:
        function = inner(piece, "function")
        if not isinstance(function, Mapping):
            return
        call_id = text(piece, "id")
        call_id = "" if call_id == "null" else call_id  # Mistral's, with pieces after the first.
        name = text(function, "name")
        given = inner(function, "arguments")
        if given is not None and not isinstance(given, str):
            given = json.dumps(given)
        given = given or ""
        number = inner(piece, "index")
        known = self._by_number.get(number) if isinstance(number, int) else self._last_call()
        if whole or known is None or known.is_followed_by(call_id, name, given):
            known = _Call()
            self._calls.append(known)
            if isinstance(number, int):
                self._by_number[number] = known
        known.take(call_id, name, given)
        # Google's server puts its signature of the model's thoughts there, and refuses a history
        # without it.
        extra = inner(piece, "extra_content")
        if isinstance(extra, Mapping):
            known.state = {"call": {"extra_content": dict(extra)}}

    def _last_call(self) -> _Call | None:
        """Return the call that a piece without a number goes on with."""
        return self._calls[-1] if self._calls else None

    def _take_detail(self, detail: object) -> None:
        """Take a part of OpenRouter's record of what the model thought."""
        if not isinstance(detail, Mapping):
            return
        last = self._details[-1] if self._details else None
        place = (inner(detail, "type"), inner(detail, "index"))
        if last is None or inner(detail, "index") is None or place != (last["type"], last["index"]):
            self._details.append({"type": None, "index": None, **detail})
            return
        for name, value in detail.items():
            before = last.get(name)
            grows = name in ("text", "summary", "data") and isinstance(before, str)
            if value is not None:
                last[name] = f"{before}{value}" if grows else value

    def whole(self) -> ModelResponse:
        return self.answer(self._finish_reason)

    def answer(self, finish_reason: object) -> ModelResponse:
        """Return the whole answer, given why it ended."""
        thoughts: dict[str, Any] = dict(self._thoughts)
        if self._details:
            thoughts = {"reasoning_details": self._details}
        if thoughts and self._calls:
            # DeepSeek and others refuse the results of a call that the model thought about,
            # without the thoughts; a server that doesn't know them refuses the thoughts.
            self._calls[0].state.update(thoughts=thoughts, server=self._server)
        calls = [
            tool_call(
                call.id,
                call.name,
                call.arguments,
                place,
                state={_STATE: call.state} if call.state else None,
            )
            for place, call in enumerate(self._calls)
        ]
        content, refusal = "".join(self._text), "".join(self._refusal)
        return ModelResponse(
            content or refusal,
            tool_calls=with_own_ids(calls),
            usage=self.usage,
            finish="refusal" if refusal else finish_of(finish_reason, calls),
            reasoning=next(iter(self._thoughts.values()), self._reasoning),
        )
