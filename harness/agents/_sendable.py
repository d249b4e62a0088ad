"""Make text fit for any request and any file, so that a history can be sent again.

What can't be written is half a surrogate pair. File names that aren't UTF-8 bring them into what
users and tools say, and a stream cut between two halves into what a model says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

from harness.models import Content, ToolCall


def sendable(text: str) -> str:
    """Return the text with halves that belong together joined, and other halves in words."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        return joined.encode(errors="backslashreplace").decode()
    return text


def sendable_content(content: Content) -> Content:
    """Return the content with text that can be sent."""
    if isinstance(content, str):
        return sendable(content)
    return tuple(sendable(part) if isinstance(part, str) else part for part in content)


def sendable_call(call: ToolCall) -> ToolCall:
    """Return the call with arguments whose text can be sent."""
    try:
        msgspec.json.encode(call.arguments)
    except UnicodeEncodeError:
        return attrs.evolve(call, arguments=_sendable_value(call.arguments))
    except Exception:
        return call  # From something that isn't JSON at all, which a function can give.
    return call


def _sendable_value(value: Any) -> Any:
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, Mapping):
        return {_sendable_value(key): _sendable_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_sendable_value(inner) for inner in value]
    return value
