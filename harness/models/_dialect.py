"""Define what it takes to talk to one kind of provider: write a request and read an answer.

A dialect is plain code over plain JSON: it sends nothing and waits for nothing. It raises
`UnreadableReply` for what makes no sense, and skips what it doesn't know, such as new kinds of
content.
"""

from __future__ import annotations

import base64
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from harness.models._file import File
from harness.models._file_refusals import fits
from harness.models._messages import Finish, ModelRequest, ModelResponse, ToolCall, Usage

_NOTHING: tuple[object, ...] = (None, [], {})


class UnreadableReply(Exception):
    """A reply that makes no sense; says why, in words that follow "model 'x' ..."."""


class ReportedError(Exception):
    """An error that a provider reports in an answer whose status said all was well."""

    def __init__(self, body: object, status: int | None) -> None:
        super().__init__(body)
        self.body: object = body
        self.status: int | None = status


@attrs.frozen(kw_only=True)
class CallSettings:
    """What every call of a model says besides the request."""

    model: str
    max_output_tokens: int | None = None
    temperature: float | None = None
    enforce_schema: bool = True
    cache_prompts: bool = False
    is_compatible: bool = False
    """Whether it goes to another server that speaks the same dialect."""
    server: str = ""
    """The server's host. What a model thought goes back only to the server that sent it."""


NO_SETTINGS = CallSettings(model="")
"""For reading what came from nowhere in particular."""


class EventReader(ABC):
    """Reads one streamed answer, event by event."""

    def __init__(self) -> None:
        self.usage: Usage = Usage()
        """What has been said about the usage so far."""
        self.done: bool = False
        """Whether the provider has said that the answer is complete."""

    @abstractmethod
    def take(self, event: Any) -> str:
        """Process an event; return the text it adds.

        Raises:
          UnreadableReply: if it makes no sense.
          ReportedError: if it reports an error.
        """

    def take_end(self) -> None:
        """Note that the stream has ended; some dialects have no event for that."""
        # Others do, and then an end without it means the stream was cut.
        return

    @abstractmethod
    def whole(self) -> ModelResponse:
        """Return the whole answer, once it is `done`.

        Raises:
          UnreadableReply: if there is none.
        """


class Dialect(Protocol):
    """One kind of provider."""

    streaming: Mapping[str, Any]
    """The arguments that ask for a stream."""

    def body(self, request: ModelRequest, settings: CallSettings) -> dict[str, Any]:
        """Return the arguments of the client's method."""
        ...

    files_bytes_at_most: int
    """How many bytes the files of a request may have together."""

    def refusal(self, file: File) -> str | None:
        """Return what it takes instead of this file; None if it takes that."""
        ...

    def resource(self, client: Any) -> Any:
        """Return the part of a client that has the method ``create``."""
        ...

    def read(self, data: Any, settings: CallSettings = NO_SETTINGS) -> ModelResponse:
        """Return the answer that a whole reply holds, or raise `UnreadableReply`."""
        ...

    def reader(self, settings: CallSettings = NO_SETTINGS) -> EventReader:
        """Return a reader for the events of a stream."""
        ...


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OUT_OF_NAMES = re.compile(r"[^a-zA-Z0-9_-]")

# The words of all dialects; no word means two things.
_FINISH: Mapping[str, Finish] = {
    "": "stop",
    "completed": "stop",
    "end_turn": "stop",
    "eos": "stop",
    "stop": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_output_tokens": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "model_length": "length",
    "function_call": "tool_calls",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
    "refusal": "refusal",
}

# Files --------------------------------------------------------------------------------------------

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""What every provider with eyes takes."""

PDF = "application/pdf"


def refusal_of(file: File, by_bytes: Sequence[str], by_url: Sequence[str]) -> str | None:
    """Return what a provider takes instead of a file; None if it takes that.

    Args:
      file: The file. Text goes as text, if its bytes are here.
      by_bytes: The media types that it takes by their bytes.
      by_url: Those that it fetches itself.
    """
    if file.data is not None and file.is_text:
        try:
            file.data.decode()
        except UnicodeDecodeError:
            return "text in UTF-8"
        return None
    taken = by_bytes if file.url is None else by_url
    if fits(file.media_type, taken):
        return None
    how = "by their bytes, as text, or as" if file.url is None else "by URL only"
    other = f", and by their bytes {', '.join(by_bytes)}" if file.url is not None else ""
    return f"{how} {', '.join(taken)}{other}"


def base64_of(file: File) -> str:
    """Return the bytes of a file as providers take them."""
    assert file.data is not None
    return base64.b64encode(file.data).decode()


def address_of(file: File) -> str:
    """Return where a provider finds a file: its address, or one that holds its bytes."""
    return file.url or f"data:{file.media_type};base64,{base64_of(file)}"


def text_in(file: File) -> str:
    """Return a file of text as text, with its name if it has one."""
    assert file.data is not None
    words = file.data.decode()
    return f"File {file.name!r}:\n{words}" if file.name else words


# Reading ------------------------------------------------------------------------------------------


def mapping(value: object, what: str) -> Mapping[str, Any]:
    """Return ``value`` if it is a JSON object; raise if not, calling it ``what``."""
    if isinstance(value, Mapping):
        return value
    raise UnreadableReply(f"gave a reply that can't be read: {what} isn't an object")


def inner(value: object, name: str) -> Any:
    """Return a field of what should be an object; ``None`` if it isn't, or has no such field."""
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
    """Return a field that should be text, or a list of parts, some of them with text."""
    return text(value, name) or "".join(
        text(part, "text") for part in entries(value, name) if inner(part, "type") == "text"
    )


def status_in(error: object) -> int | None:
    """Return the status that an error in an answer stands for; ``None`` if it doesn't say."""
    for name in ("code", "status"):
        found = inner(error, name)
        if isinstance(found, str) and found.isdecimal():
            found = int(found[:9])
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
    """Return a tool call, whatever the model gave as arguments.

    Args:
      call_id: The provider's; if there is none, one is made up.
      name: The tool's.
      arguments: An object, or JSON text that should be one.
      place: Which call in the answer it is.
      state: What the provider wants sent back with it.
    """
    call_id = call_id or f"call_{place}"
    state = state or None
    if isinstance(arguments, Mapping):
        return ToolCall(call_id, name, dict(arguments), provider_state=state)
    given = arguments if isinstance(arguments, str) else ""
    read: Any = given
    for _ in range(2):  # Some models quote the object once more.
        # Without arguments, some providers leave them out or write null or an empty list.
        if read in _NOTHING or (isinstance(read, str) and not read.strip()):
            return ToolCall(call_id, name, provider_state=state)
        if not isinstance(read, str):
            break
        try:
            read = json.loads(read)
        except (ValueError, RecursionError):
            break
    if read in _NOTHING:
        return ToolCall(call_id, name, provider_state=state)
    if isinstance(read, dict):
        return ToolCall(call_id, name, read, provider_state=state)
    return ToolCall(call_id, name, unreadable=given, provider_state=state)


def finish_of(reason: object, calls: Sequence[ToolCall]) -> Finish:
    """Return how an answer ended.

    Args:
      reason: The provider's word for it, if any.
      calls: The calls in the answer. Some servers say that they stopped when they call tools.
    """
    known = _FINISH.get(reason.lower(), "other") if isinstance(reason, str) else "stop"
    if known == "stop" and calls:
        return "tool_calls"
    return "other" if known == "tool_calls" and not calls else known


def with_own_ids(calls: Iterable[ToolCall]) -> list[ToolCall]:
    """Return the calls, each with an id of its own: some servers give several the same."""
    taken: set[str] = set()
    own: list[ToolCall] = []
    for call in calls:
        call_id, copy = call.id, 1
        while call_id in taken:
            copy += 1
            call_id = f"{call.id}_{copy}"
        taken.add(call_id)
        own.append(call if call_id == call.id else attrs.evolve(call, id=call_id))
    return own


def arguments_text(call: ToolCall) -> str:
    """Return a call's arguments as JSON."""
    return json.dumps(call.arguments, ensure_ascii=False)


def name_to_send(call: ToolCall) -> str:
    """Return a call's name in a form that providers accept back.

    A model may call a tool that doesn't exist, by a name such as ``functions.look up``. No provider
    accepts a history with that in it, though its own model said it.
    """
    if _NAME.fullmatch(call.name):
        return call.name
    return _OUT_OF_NAMES.sub("_", call.name)[:64] or "_"


def message_of(body: object) -> str:
    """Return the message in the body of an error, however deeply the provider nested it."""
    inside = body
    for name in ("response", "error"):
        if isinstance(inside, Mapping) and isinstance(inside.get(name), Mapping):
            inside = inside[name]
    message = inside.get("message") if isinstance(inside, Mapping) else inside
    words = str(message if message else body)
    return words if len(words) <= 300 else f"{words[:300]}..."
