"""Hold what is said to a model and what it says back, as plain frozen records.

A record is a value: it can be compared, printed, shared by a thousand runs and written as JSON.
None of them knows about providers; each model translates them for its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, get_args

import attrs

from harness.models._file import Content, File, files_of, text_of

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]

Finish: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter", "refusal", "other"]
"""How an answer ended: by itself, at the largest output allowed, with calls of tools, cut off by
the provider's filter, refused by the model, or in a way that harness doesn't know."""

EMPTY_REPLY = "Your last reply was empty. Give your answer, or call a tool."
"""What an agent says to its model in place of an empty reply, which no history may hold."""

FINISHES: frozenset[str] = frozenset(get_args(Finish))


@attrs.frozen
class ToolCall:
    """A model's request to call a tool."""

    id: str
    """What the answer is matched by; unique within its message."""

    name: str
    """The tool's name."""

    arguments: dict[str, Any] = attrs.field(factory=dict)
    """The arguments, as read from JSON. Don't change them: a history is shared."""

    unreadable: str | None = attrs.field(default=None, kw_only=True)
    """What the model gave as arguments, if not a JSON object; `arguments` is then empty."""

    provider_state: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    """What its provider wants to have back with the call, such as what the model thought before
    it. JSON, and of no meaning to anybody else."""


def _calls(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    return tuple(calls)


@attrs.frozen
class Message:
    """One entry of a history."""

    role: Role
    """Who speaks."""

    content: Content = ""
    """The text or, of a user or a tool, a tuple of texts and files. Empty if an assistant only
    calls tools."""

    tool_calls: tuple[ToolCall, ...] = attrs.field(default=(), converter=_calls)
    """The tools an assistant wants called. A later message of role ``tool`` answers each."""

    tool_call_id: str | None = None
    """For role ``tool``: which call this answers."""

    @property
    def text(self) -> str:
        """The text in it, without the files."""
        return text_of(self.content)

    @property
    def files(self) -> tuple[File, ...]:
        """The files in it."""
        return files_of(self.content)


@attrs.frozen
class Usage:
    """Tokens used. Can be added: ``usage + usage``."""

    input_tokens: int = 0
    """Tokens read."""

    output_tokens: int = 0
    """Tokens written."""

    cached_input_tokens: int = attrs.field(default=0, kw_only=True)
    """The part of the input that the provider had in its cache."""

    cache_write_input_tokens: int = attrs.field(default=0, kw_only=True)
    """The part of the input that the provider put in its cache for later calls."""

    @property
    def total(self) -> int:
        """Both together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            cache_write_input_tokens=self.cache_write_input_tokens + other.cache_write_input_tokens,
        )


@attrs.frozen
class ToolDescription:
    """What a model is told about a tool. Anything with these three attributes will do."""

    name: str
    """The name to call it by."""

    description: str
    """What it is for, in words for the model."""

    parameters: Mapping[str, Any]
    """A JSON schema of the arguments; it describes an object."""


def _messages(messages: Iterable[Message]) -> tuple[Message, ...]:
    return tuple(messages)


def _tools(tools: Iterable[ToolDescription]) -> tuple[ToolDescription, ...]:
    return tuple(tools)


@attrs.frozen
class ModelRequest:
    """Everything a model is asked with. Holds no run and no agent."""

    messages: tuple[Message, ...] = attrs.field(converter=_messages)
    """The history, oldest first; only the first may be a system message."""

    tools: tuple[ToolDescription, ...] = attrs.field(default=(), converter=_tools)
    """The tools that may be called."""

    output_schema: Mapping[str, Any] | None = None
    """A JSON schema that the answer's text should satisfy, for providers that can enforce one."""


def check_request(request: object, model: object) -> None:
    """Refuse anything a model can't be asked with.

    Raises:
      TypeError: if it isn't a `ModelRequest`.
    """
    if not isinstance(request, ModelRequest):
        raise TypeError(
            f"{model!r} takes a ModelRequest, not {request!r}; write "
            'ModelRequest([Message("user", "...")])'
        )


def _finish_of_a_whole_answer(response: ModelResponse) -> Finish:
    return "tool_calls" if response.tool_calls else "stop"


@attrs.frozen
class ModelResponse:
    """What a model says: text, tool calls, or both."""

    content: str = ""
    """The text."""

    tool_calls: tuple[ToolCall, ...] = attrs.field(default=(), converter=_calls, kw_only=True)
    """The tools it wants called."""

    usage: Usage = attrs.field(default=Usage(), kw_only=True)
    """What this request used; zeros if unknown."""

    finish: Finish = attrs.field(
        default=attrs.Factory(_finish_of_a_whole_answer, takes_self=True), kw_only=True
    )
    """How it ended. By default as an answer that nobody cut short: ``"tool_calls"`` if it has any,
    else ``"stop"``."""

    reasoning: str = attrs.field(default="", kw_only=True)
    """What the model says it thought first, if its provider tells; no part of the answer."""


def misfit_in(response: ModelResponse) -> tuple[object, str] | None:
    """Return what is wrong in a response, and what should be there; None if nothing is wrong.

    The records check nothing when made, because so many are; answers are checked once.
    """
    usage = response.usage
    if not isinstance(response.content, str):
        return response.content, "text for its content"
    if not isinstance(usage, Usage):
        return usage, "a Usage for its usage"
    if response.finish not in FINISHES:
        return response.finish, f"one of {', '.join(sorted(FINISHES))} for its finish"
    if not isinstance(response.reasoning, str):
        return response.reasoning, "text for its reasoning"
    for tokens in (
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_input_tokens,
        usage.cache_write_input_tokens,
    ):
        if type(tokens) is not int or tokens < 0:
            return usage, "a Usage of whole numbers from 0 upwards"
    for call in response.tool_calls:
        if not isinstance(call, ToolCall):
            return call, "a ToolCall among its tool calls"
        if not isinstance(call.name, str):
            return call.name, "text for the name of a tool"
        if call.id is not None and not isinstance(call.id, str):
            return call.id, "text for the id of a tool call"
    return None
