"""Define what the simulated provider needs from each API that it speaks.

A dialect turns a JSON body into an `Ask` and a `Completion` into the bytes and
headers that the API's real clients expect. It decides nothing about limits,
faults or time.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TypeAlias

import attrs

from harness.models import File, Finish
from harness.models._file_sizes import file_tokens
from harness.testing.provider._answers import AnswerToolCall
from harness.testing.provider._limits import LimitState, Refused
from harness.testing.provider._tokens import count_characters, count_tokens

JSONObject: TypeAlias = dict[str, Any]
Headers: TypeAlias = list[tuple[str, str]]

# A stream of one huge text shouldn't become a hundred thousand events.
MAX_TEXT_EVENTS = 64

_WORD = re.compile(r"\S+\s*|\s+")


class UnreadableRequest(Exception):
    """A request that the API would answer with status 400, or another for bad requests."""

    def __init__(self, message: str, *, parameter: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.parameter = parameter
        self.status = status


@attrs.frozen(kw_only=True)
class Ask:
    """What a request asks for."""

    body: JSONObject
    model: str
    prompt: str
    input_tokens: int
    maximum_output_tokens: int | None
    """The largest of the maxima that the request names."""
    streaming: bool
    files: tuple[File, ...] = ()


@attrs.frozen(kw_only=True)
class Completion:
    """An answer with everything that dialects say about it."""

    number: int
    created: int
    """Epoch seconds."""
    ask: Ask
    text: str
    tool_calls: Sequence[AnswerToolCall]
    input_tokens: int
    output_tokens: int
    finish: Finish


@attrs.frozen(kw_only=True)
class Failure:
    """An error with everything that dialects say about it."""

    status: int
    message: str
    number: int
    refused: Refused | None = None
    parameter: str | None = None
    retry_after_seconds: float | None = None


class Dialect(ABC):
    """One API."""

    name: ClassVar[str]
    """The dialect's name, as a test sees it."""
    counts_maximum: ClassVar[bool]
    """Whether the requested maximum is charged in place of a shorter answer."""
    provider: ClassVar[str]
    """Whose rule counts the tokens of files."""
    tool_call_prefix: ClassVar[str]
    """How the ids of tool calls begin."""
    messages: ClassVar[str] = "messages"
    """Where in a body the messages are."""
    maxima: ClassVar[tuple[str, ...]]
    """Where in a body the requested maximum may be."""
    instructions: ClassVar[str | None] = None
    """Where in a body instructions are, if that is outside its messages."""

    def read(self, body: JSONObject) -> Ask:
        """Return what ``body`` asks for, or raise `UnreadableRequest`."""
        prompt = self.read_prompt(body)
        files = self.read_files(body)
        instructions = self.instructions and body.get(self.instructions)
        characters = count_characters(body[self.messages], instructions, body.get("tools"))
        return Ask(
            body=body,
            model=_read_model(body),
            prompt=prompt,
            input_tokens=count_tokens(characters)
            + sum(file_tokens(file, self.provider) for file in files),
            maximum_output_tokens=_read_maximum(body, self.maxima),
            streaming=_read_flag(body, "stream"),
            files=tuple(files),
        )

    def read_prompt(self, body: JSONObject) -> str:
        """Return the text of the last message that isn't the assistant's."""
        return _last_prompt(_read_messages(body, self.messages))

    @abstractmethod
    def read_files(self, body: JSONObject) -> Sequence[File]:
        """Return the files in ``body``, or raise `UnreadableRequest`."""

    @abstractmethod
    def whole(self, completion: Completion) -> JSONObject:
        """Return the answer as one JSON object."""

    @abstractmethod
    def events(self, completion: Completion) -> list[bytes]:
        """Return the answer as server-sent events, framed."""

    @abstractmethod
    def failure(self, failure: Failure) -> JSONObject:
        """Return an error's body."""

    @abstractmethod
    def headers(
        self, states: Mapping[str, LimitState], *, number: int, epoch_seconds: float
    ) -> Headers:
        """Return the headers that every answer carries."""

    @abstractmethod
    def retry_headers(self, wait_seconds: float) -> Headers:
        """Return the headers that name a time to wait."""


def compact_json(value: object) -> bytes:
    """Return ``value`` as JSON without spaces, in UTF-8."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(
        # A lone surrogate can come in as an escape; it can't go out as UTF-8.
        "utf-8",
        "replace",
    )


def event_bytes(payload: object, *, name: str | None = None) -> bytes:
    """Return one server-sent event."""
    data = compact_json(payload)
    if name is None:
        return b"data: %b\n\n" % data
    return b"event: %b\ndata: %b\n\n" % (name.encode("ascii"), data)


def split_text(text: str) -> list[str]:
    """Return ``text`` in the pieces that a stream sends: words, or more at a time if many."""
    words = _WORD.findall(text)
    per_event = math.ceil(len(words) / MAX_TEXT_EVENTS) or 1
    return ["".join(words[start : start + per_event]) for start in range(0, len(words), per_event)]


def split_arguments(arguments: str) -> list[str]:
    """Return a tool call's JSON in two halves, which a client must join before parsing."""
    middle = len(arguments) // 2
    return [half for half in (arguments[:middle], arguments[middle:]) if half]


def _read_model(body: JSONObject) -> str:
    """Return the model's name, which may be left out so that a test's body can stay small."""
    model = body.get("model", "simulated")
    if not isinstance(model, str) or not model:
        unreadable("model", model, "the name of a model")
    return model


def _read_flag(body: JSONObject, name: str) -> bool:
    """Return a true or false of the body; absent and null are false."""
    flag = body.get(name)
    if flag is not None and not isinstance(flag, bool):
        unreadable(name, flag, "true or false")
    return bool(flag)


def _read_maximum(body: JSONObject, names: Sequence[str]) -> int | None:
    """Return the largest of the maxima that the body names, or ``None`` if it names none."""
    largest: int | None = None
    for name in names:
        maximum = body.get(name)
        if maximum is None:
            continue
        if isinstance(maximum, bool) or not isinstance(maximum, int) or maximum < 1:
            unreadable(name, maximum, "a whole number of tokens, at least 1")
        largest = maximum if largest is None else max(largest, maximum)
    return largest


def _read_messages(body: JSONObject, name: str) -> list[JSONObject]:
    """Return a list of the body that holds at least one object, and nothing else."""
    messages = body.get(name)
    if (
        not isinstance(messages, list)
        or not messages
        or not all(isinstance(message, dict) for message in messages)
    ):
        unreadable(name, messages, "a list of at least one message")
    return messages


def _last_prompt(messages: Sequence[JSONObject]) -> str:
    """Return the text of the last message that isn't the assistant's."""
    for message in reversed(messages):
        if message.get("role") != "assistant" and message.get("type") != "function_call":
            content = message.get("content", message.get("output", ""))
            if isinstance(content, str):
                return content
            if isinstance(content, list):
                texts = [part.get("text") for part in content if isinstance(part, dict)]
                return "".join(text for text in texts if isinstance(text, str))
            return ""
    return ""


def unreadable(name: str, value: object, allowed: str) -> NoReturn:
    """Raise the error for a part of the body that is missing or of the wrong kind."""
    shown = repr(value)
    if len(shown) > 80:
        shown = f"{shown[:77]}..."
    given = "missing" if value is None else shown
    raise UnreadableRequest(f"{name} is {given}; it must be {allowed}", parameter=name)
