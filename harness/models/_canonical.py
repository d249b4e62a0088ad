"""Write requests and responses as canonical JSON, and find where two requests differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from harness.models._file import Content, File
from harness.models._messages import Message, ModelRequest, ModelResponse, ToolCall, Usage

_EXCERPT = 60
"""How many characters of a text to show around the place where it differs."""


def request_json(request: ModelRequest) -> dict[str, Any]:
    """Return a request as JSON values, leaving out what is empty."""
    return _without_empty(
        {
            "messages": [_message_json(message) for message in request.messages],
            "tools": [_plain(attrs.asdict(tool, recurse=False)) for tool in request.tools],
            "output_schema": _plain(request.output_schema),
        }
    )


def request_key(request: Mapping[str, Any]) -> str:
    """Return a key that tells a request, given as JSON values, from all others."""
    text = json.dumps(request, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def response_json(response: ModelResponse) -> dict[str, Any]:
    """Return a response as JSON values."""
    return _without_empty(
        {
            "content": response.content,
            "tool_calls": [_call_json(call) for call in response.tool_calls],
            "usage": _without_empty(attrs.asdict(response.usage)),
            "finish": response.finish,
            "reasoning": response.reasoning,
        }
    )


def response_of_json(values: Mapping[str, Any]) -> ModelResponse:
    """Return the response that `response_json` turned into ``values``.

    Raises:
      KeyError, TypeError: if they don't come from a response.
    """
    finish = {"finish": values["finish"]} if "finish" in values else {}
    return ModelResponse(
        values.get("content", ""),
        tool_calls=[
            ToolCall(
                call["id"],
                call["name"],
                call.get("arguments", {}),
                unreadable=call.get("unreadable"),
                provider_state=call.get("provider_state"),
            )
            for call in values.get("tool_calls", ())
        ],
        usage=Usage(**values.get("usage", {})),
        reasoning=values.get("reasoning", ""),
        **finish,
    )


def nearest(
    asked: Mapping[str, Any], recorded: Iterable[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Return the request that shares the longest beginning with ``asked``."""
    return max(recorded, key=lambda other: _common(asked, other), default=None)


def difference(asked: object, recorded: object, path: str = "") -> str:
    """Say where two requests, as JSON values, first differ."""
    if isinstance(asked, Mapping) and isinstance(recorded, Mapping):
        for name in dict.fromkeys((*recorded, *asked)):
            inside = f"{path}.{name}" if path else str(name)
            if name not in asked:
                return f"{inside} is missing, and was {_short(recorded[name])}"
            if name not in recorded:
                return f"{inside} is {_short(asked[name])}, and was missing"
            if asked[name] != recorded[name]:
                return difference(asked[name], recorded[name], inside)
    if isinstance(asked, list) and isinstance(recorded, list):
        for place, (here, there) in enumerate(zip(asked, recorded, strict=False)):
            if here != there:
                return difference(here, there, f"{path}[{place}]")
        return f"{path} has {len(asked)} entries, and had {len(recorded)}"
    if isinstance(asked, str) and isinstance(recorded, str):
        same = _common_prefix(asked, recorded)
        return f"{path} is {_around(asked, same)}, and was {_around(recorded, same)}"
    return f"{path} is {_short(asked)}, and was {_short(recorded)}"


def _message_json(message: Message) -> dict[str, Any]:
    return _without_empty(
        {
            "role": message.role,
            "content": _content_json(message.content),
            "tool_calls": [_call_json(call) for call in message.tool_calls],
            "tool_call_id": message.tool_call_id,
        }
    )


def _content_json(content: Content) -> Any:
    """Return what tells a content from all others: of a file the digest, not its bytes."""
    if isinstance(content, str):
        return content
    return [_file_json(part) if isinstance(part, File) else part for part in content]


def _file_json(file: File) -> dict[str, Any]:
    values: dict[str, Any] = {"media_type": file.media_type, "name": file.name, "url": file.url}
    if file.data is not None:
        values.update(sha256=file.digest, size_bytes=len(file.data))
    return _without_empty(values)


def _call_json(call: ToolCall) -> dict[str, Any]:
    values = {"id": call.id, "name": call.name, "arguments": _plain(call.arguments)}
    if call.unreadable is not None:
        values["unreadable"] = call.unreadable
    if call.provider_state is not None:
        values["provider_state"] = _plain(call.provider_state)
    return values


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", [], {}, 0)}


def _plain(value: Any) -> Any:
    """Return JSON values stripped of their containers' types, so that equal ones compare equal."""
    return None if value is None else json.loads(json.dumps(value, default=_as_plain))


def _as_plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    raise TypeError(f"{value!r} can't be written as JSON, so the request can't be recorded")


def _common(asked: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[int, int, bool]:
    """Return how much two requests have in common; more is larger."""
    messages = list(zip(asked.get("messages", ()), other.get("messages", ()), strict=False))
    same = next((n for n, (here, there) in enumerate(messages) if here != there), len(messages))
    inside = 0
    if same < len(messages):
        here, there = messages[same]
        inside = _common_prefix(str(here.get("content", "")), str(there.get("content", "")))
    return same, inside, asked.get("tools") == other.get("tools")


def _common_prefix(one: str, other: str) -> int:
    length = min(len(one), len(other))
    return next((place for place in range(length) if one[place] != other[place]), length)


def _around(text: str, place: int) -> str:
    begin = max(0, place - _EXCERPT // 3)
    end = begin + _EXCERPT
    return f"{'...' if begin else ''}{text[begin:end]!r}{'...' if end < len(text) else ''}"


def _short(value: object) -> str:
    words = json.dumps(value, ensure_ascii=False)
    return words if len(words) <= _EXCERPT else f"{words[:_EXCERPT]}..."
