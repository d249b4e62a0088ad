"""Speak Anthropic's messages API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from harness.models import File
from harness.testing.provider._answers import AnswerToolCall
from harness.testing.provider._dialect import (
    Completion,
    Dialect,
    Failure,
    Headers,
    JSONObject,
    event_bytes,
    split_arguments,
    split_text,
)
from harness.testing.provider._files import document, files_in, image
from harness.testing.provider._limits import LimitState
from harness.testing.provider._rounding import whole_seconds, whole_units

_ERROR_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

_PERIODS = {
    "requests": "requests per minute",
    "tokens": "tokens per minute",
    "input_tokens": "input tokens per minute",
    "output_tokens": "output tokens per minute",
    "requests_day": "requests per day",
}

_LAST_MOMENT = 253_402_300_799

_HEADER_NAMES = {
    "requests": "requests",
    "tokens": "tokens",
    "input_tokens": "input-tokens",
    "output_tokens": "output-tokens",
}


class AnthropicMessages(Dialect):
    """The dialect of ``/v1/messages``."""

    name = "anthropic-messages"
    counts_maximum = False
    provider = "anthropic"
    tool_call_prefix = "toolu"
    maxima = ("max_tokens",)
    instructions = "system"

    def read_files(self, body: JSONObject) -> list[File]:
        """Return the files in ``body``, or raise `UnreadableRequest`."""
        return files_in(body["messages"], {"image": image, "document": document})

    def whole(self, completion: Completion) -> JSONObject:
        """Return the answer as one JSON object."""
        content: list[JSONObject] = []
        if completion.text or not completion.tool_calls:
            content.append({"type": "text", "text": completion.text})
        content.extend(
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _arguments(call)}
            for call in completion.tool_calls
        )
        message = _message(completion)
        return {**message, "content": content, "stop_reason": _stop_reason(completion)}

    def events(self, completion: Completion) -> list[bytes]:
        """Return the answer as framed server-sent events."""
        events: list[bytes] = []

        def add(kind: str, **fields: Any) -> None:
            events.append(event_bytes({"type": kind, **fields}, name=kind))

        def add_block(index: int, block: JSONObject, deltas: list[JSONObject]) -> None:
            add("content_block_start", index=index, content_block=block)
            for delta in deltas:
                add("content_block_delta", index=index, delta=delta)
            add("content_block_stop", index=index)

        add("message_start", message=_message(attrs.evolve(completion, output_tokens=1)))
        add("ping")
        first_tool = 0
        if completion.text or not completion.tool_calls:
            first_tool = 1
            pieces = split_text(completion.text)
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
            add_block(0, {"type": "text", "text": ""}, deltas)
        for index, call in enumerate(completion.tool_calls, first_tool):
            block: JSONObject = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            pieces = split_arguments(json.dumps(_arguments(call), ensure_ascii=False))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            add_block(index, block, deltas)
        add(
            "message_delta",
            delta={"stop_reason": _stop_reason(completion), "stop_sequence": None},
            usage={"output_tokens": completion.output_tokens},
        )
        add("message_stop")
        return events

    def failure(self, failure: Failure) -> JSONObject:
        """Return an error's body."""
        default = "api_error" if failure.status >= 500 else "invalid_request_error"
        message = failure.message
        refused = failure.refused
        if refused is not None:
            message = (
                f"{message}: it would exceed {refused.limit:.0f} {_PERIODS[refused.name]} "
                f"(used {refused.used:.0f}, requested {refused.asked:.0f})"
            )
        return {
            "type": "error",
            "error": {"type": _ERROR_TYPES.get(failure.status, default), "message": message},
            "request_id": _request_id(failure.number),
        }

    def headers(
        self, states: Mapping[str, LimitState], *, number: int, epoch_seconds: float
    ) -> Headers:
        """Return the headers that every answer carries.

        Resets are moments, rounded up to the second. The daily limit has no headers of its own; a
        429 names it in its message.
        """
        headers = [("request-id", _request_id(number))]
        for name, in_header in _HEADER_NAMES.items():
            state = states.get(name)
            if state is not None:
                prefix = f"anthropic-ratelimit-{in_header}"
                reset = whole_seconds(epoch_seconds + state.reset_seconds)
                headers.append((f"{prefix}-limit", f"{state.limit:.0f}"))
                headers.append((f"{prefix}-remaining", str(whole_units(state.remaining))))
                headers.append((f"{prefix}-reset", _moment(reset)))
        return headers

    def retry_headers(self, wait_seconds: float) -> Headers:
        """Return the header that names a time to wait."""
        return [("retry-after", str(whole_seconds(wait_seconds)))]


def _message(completion: Completion) -> JSONObject:
    return {
        "id": f"msg_{completion.number:024d}",
        "type": "message",
        "role": "assistant",
        "model": completion.ask.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": completion.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": completion.output_tokens,
            "service_tier": "standard",
        },
    }


def _stop_reason(completion: Completion) -> str:
    return _STOP_REASONS.get(completion.finish, completion.finish)


def _arguments(call: AnswerToolCall) -> Mapping[str, Any]:
    if isinstance(call.arguments, str):
        raise TypeError(
            f"the arguments of {call.name!r} are the string {call.arguments!r}; Anthropic's "
            "dialect sends an object, so give a mapping"
        )
    return call.arguments


def _request_id(number: int) -> str:
    return f"req_{number:024d}"


def _moment(epoch_seconds: int) -> str:
    # A test may answer with any number of tokens; the calendar ends in the year 9999.
    return datetime.fromtimestamp(min(epoch_seconds, _LAST_MOMENT), UTC).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )
