"""Make text such that any request and any file can hold it, so that a history can be sent again.

What can't be written is half of a surrogate pair. Names of files that are no UTF-8 bring them into
what users and tools say, and a stream that was cut between two halves into what a model says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

from harness.models import ToolCall


def sendable(text: str) -> str:
    """Return the text as it is; with halves that belong together joined, and others in words."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        return joined.encode(errors="backslashreplace").decode()
    return text


def sendable_call(call: ToolCall) -> ToolCall:
    """Return the call as it is; with text in its arguments that can be sent."""
    try:
        msgspec.json.encode(call.arguments)
    except UnicodeEncodeError:
        return attrs.evolve(call, arguments=_sendable_value(call.arguments))
    except Exception:
        return call  # Of something that is no JSON at all, which a function can give.
    return call


def _sendable_value(value: Any) -> Any:
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, Mapping):
        return {_sendable_value(key): _sendable_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_sendable_value(inner) for inner in value]
    return value
