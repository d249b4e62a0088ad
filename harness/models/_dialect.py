"""What it takes to speak with one kind of provider: words for a request, and reading an answer.

A dialect is plain code over plain JSON: it sends nothing and waits for nothing. What it can't make
sense of, it says with `UnreadableReply`; what it doesn't know, such as new kinds of content, it
passes over.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from harness.models._messages import ModelRequest, ModelResponse, ToolCall, Usage


class UnreadableReply(Exception):
    """A reply that makes no sense; says why, going on from "model 'x' ..."."""


class ReportedError(Exception):
    """An error that a provider reports in an answer, whose status had said that all is well."""

    def __init__(self, body: object, status: int | None) -> None:
        super().__init__(body)
        self.body: object = body
        self.status: int | None = status


@attrs.frozen(kw_only=True)
class CallSettings:
    """What every call of a model says beside the request."""

    model: str
    max_output_tokens: int | None = None
    temperature: float | None = None
    enforce_schema: bool = True
    is_compatible: bool = False
    """Whether it goes to somebody else's server that speaks the same dialect."""


class EventReader(ABC):
    """Reads one streamed answer, event by event."""

    def __init__(self) -> None:
        self.usage: Usage = Usage()
        """What has been said of the usage so far."""
        self.done: bool = False
        """Whether the provider has said that this was all."""

    @abstractmethod
    def take(self, event: Any) -> str:
        """Take over an event; return the text that it adds.

        Raises:
          UnreadableReply: if it makes no sense.
          ReportedError: if it reports an error.
        """

    def take_end(self) -> None:
        """Take over that the stream has ended; some dialects have no event for it."""
        # Others have, and then an end without it is a cut.
        return

    @abstractmethod
    def whole(self) -> ModelResponse:
        """Return all that came, once it is `done`.

        Raises:
          UnreadableReply: if that is nothing.
        """


class Dialect(Protocol):
    """One kind of provider."""

    def body(self, request: ModelRequest, settings: CallSettings) -> dict[str, Any]:
        """Return the arguments of the client's method."""
        ...

    def resource(self, client: Any) -> Any:
        """Return the part of a client that has the method ``create``."""
        ...

    def read(self, data: Any) -> ModelResponse:
        """Return the answer that a whole reply holds, or raise `UnreadableReply`."""
        ...

    def reader(self) -> EventReader:
        """Return who reads the events of a stream."""
        ...


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OUT_OF_NAMES = re.compile(r"[^a-zA-Z0-9_-]")

# Reading ------------------------------------------------------------------------------------------


def mapping(value: object, what: str) -> Mapping[str, Any]:
    """Return ``value`` if it is an object of JSON, or say that ``what`` is none."""
    if isinstance(value, Mapping):
        return value
    raise UnreadableReply(f"gave a reply that can't be read: {what} is no object")


def inner(value: object, name: str) -> Any:
    """Return a field of what should be an object; ``None`` if it isn't, or hasn't got it."""
    return value.get(name) if isinstance(value, Mapping) else None


def entries(value: object, name: str) -> list[Any]:
    """Return a field that should be a list; an empty one if it isn't."""
    found = inner(value, name)
    return found if isinstance(found, list) else []


def text(value: object, name: str) -> str:
    """Return a field that should be text; an empty one if it isn't."""
    found = inner(value, name)
    return found if isinstance(found, str) else ""


def text_of_parts(value: object, name: str) -> str:
    """Return a field that should be text, or a list of parts of which some have text."""
    return text(value, name) or "".join(
        text(part, "text") for part in entries(value, name) if inner(part, "type") == "text"
    )


def status_in(error: object) -> int | None:
    """Return the status that an error in an answer would have had; ``None`` if it doesn't say."""
    for name in ("code", "status"):
        found = inner(error, name)
        if isinstance(found, int) and 400 <= found < 600:
            return found
    return None


def count(value: object, name: str) -> int:
    """Return a field that should be a number of tokens; 0 if it isn't."""
    found = inner(value, name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return 0
    return int(found) if 0 <= found < 2**53 else 0


def tool_call(
    call_id: str,
    name: str,
    arguments: object,
    place: int,
    *,
    state: dict[str, Any] | None = None,
) -> ToolCall:
    """Return a call of a tool, whatever the model made of its arguments.

    Args:
      call_id: The provider's; one is made up if it has none.
      name: The tool's.
      arguments: An object, or JSON text that should be one.
      place: Which call of the answer it is.
      state: What the provider wants to have back with it.
    """
    call_id = call_id or f"call_{place}"
    state = state or None
    if isinstance(arguments, Mapping):
        return ToolCall(call_id, name, dict(arguments), provider_state=state)
    given = arguments if isinstance(arguments, str) else ""
    if not given.strip():  # How some providers write that there are none.
        return ToolCall(call_id, name, provider_state=state)
    try:
        read = json.loads(given)
    except (ValueError, RecursionError):
        read = None
    if isinstance(read, dict):
        return ToolCall(call_id, name, read, provider_state=state)
    return ToolCall(call_id, name, unreadable=given, provider_state=state)


def response(
    content: str, calls: list[ToolCall], usage: Usage, *, truncated: bool
) -> ModelResponse:
    """Return the answer, unless there is nothing in it."""
    if content or calls:
        return ModelResponse(content, tool_calls=calls, usage=usage, truncated=truncated)
    if truncated:
        raise UnreadableReply(
            "used all the output that it was allowed before it said anything; "
            "give it a larger max_output_tokens"
        )
    raise UnreadableReply("gave an empty reply: neither text nor a call of a tool")


def arguments_text(call: ToolCall) -> str:
    """Return a call's arguments as JSON."""
    return json.dumps(call.arguments, ensure_ascii=False)


def name_to_send(call: ToolCall) -> str:
    """Return a call's name as providers take it back.

    A model may call a tool that there isn't, by a name such as ``functions.look up``. No provider
    takes a history with that in it, though it was its own model that said so.
    """
    if _NAME.fullmatch(call.name):
        return call.name
    return _OUT_OF_NAMES.sub("_", call.name)[:64] or "_"


def message_of(body: object) -> str:
    """Return the message in the body of an error, however deep the provider put it."""
    inside = body
    for name in ("response", "error"):
        if isinstance(inside, Mapping) and isinstance(inside.get(name), Mapping):
            inside = inside[name]
    message = inside.get("message") if isinstance(inside, Mapping) else inside
    words = str(message if message else body)
    return words if len(words) <= 300 else f"{words[:300]}..."
