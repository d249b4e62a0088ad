"""Define what a test's answer function is given, and what it may return.

The function gets a `ProviderRequest` and returns a str, an `Answer` if there is more to say, or an
`ErrorAnswer`. It knows nothing of the three dialects.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from harness.models import File, Finish


@attrs.frozen(kw_only=True, eq=False)
class ProviderRequest(Mapping[str, Any]):
    """A request that the simulated provider accepted.

    It reads like its JSON body: ``request["messages"]``, ``request.get("model")``.
    """

    body: Mapping[str, Any]
    """The JSON body, as sent."""

    path: str
    """The path it was sent to."""

    headers: Mapping[str, str]
    """The request's headers, with lower-case names; empty for a request without sockets that gave
    none."""

    dialect: str
    """``"openai-chat"``, ``"openai-responses"`` or ``"anthropic-messages"``."""

    number: int
    """Its number among this provider's requests, counting from 1."""

    prompt: str
    """The text of the last message that isn't the assistant's."""

    files: tuple[File, ...] = ()
    """The images, recordings and documents in the messages, in order. Of one elsewhere only the
    address is known, so its media type may be another."""

    def __getitem__(self, key: str) -> Any:
        return self.body[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.body)

    def __len__(self) -> int:
        return len(self.body)


@attrs.frozen
class AnswerToolCall:
    """One tool call in the answer."""

    name: str
    """The tool's name."""

    arguments: Mapping[str, Any] | str = attrs.field(factory=dict[str, Any])
    """Its arguments. A string is sent as it is, to see what a client does with
    arguments that aren't JSON; Anthropic's dialect can't express that."""

    id: str | None = attrs.field(default=None, kw_only=True)
    """The call's id; ``None`` for one made up from the request's number."""

    @property
    def arguments_json(self) -> str:
        """The arguments as JSON text."""
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(self.arguments, separators=(",", ":"), ensure_ascii=False)


def _calls(calls: Iterable[AnswerToolCall]) -> tuple[AnswerToolCall, ...]:
    given = tuple(calls)
    for call in given:
        if not isinstance(call, AnswerToolCall):
            raise TypeError(
                "Answer(tool_calls=...) takes AnswerToolCalls of harness.testing.provider, not "
                f"{call!r}; write AnswerToolCall(name, arguments)"
            )
    return given


@attrs.frozen
class Answer:
    """An answer with more than text."""

    text: str = ""
    """The text, before any tool calls; may be empty."""

    tool_calls: tuple[AnswerToolCall, ...] = attrs.field(default=(), converter=_calls)
    """The tools it calls, in order."""

    input_tokens: int | None = attrs.field(default=None, kw_only=True)
    """The usage to report for the question; ``None`` to count."""

    output_tokens: int | None = attrs.field(default=None, kw_only=True)
    """The usage to report for the answer; ``None`` to count."""

    finish: Finish | None = attrs.field(default=None, kw_only=True)
    """How it says it ended, such as ``"length"`` for the requested maximum; ``None`` for an answer
    that nobody cut short."""


@attrs.frozen(kw_only=True)
class ErrorAnswer:
    """An error instead of an answer. The request was accepted and stays charged."""

    status: int = attrs.field(
        validator=[
            attrs.validators.instance_of(int),
            attrs.validators.ge(400),
            attrs.validators.le(599),
        ]
    )
    """The error's status."""

    message: str = "the test's answer function asked for this error"
    """The error's message."""

    retry_after_seconds: float | None = None
    """The time to wait that it names; ``None`` for none."""


AnswerResult: TypeAlias = str | Answer | ErrorAnswer
"""What an answer function finally gives."""

AnswerFunction: TypeAlias = Callable[[ProviderRequest], AnswerResult | Awaitable[AnswerResult]]
"""A function from request to answer, plain or async."""


def as_answer(result: object) -> Answer | ErrorAnswer:
    """Return an answer function's result as one of the two value classes.

    Raises:
      TypeError: if it is none of the three kinds.
    """
    if isinstance(result, str):
        return Answer(result)
    if isinstance(result, (Answer, ErrorAnswer)):
        return result
    raise TypeError(
        f"the answer function returned {result!r}; "
        "it must return a str, an Answer or an ErrorAnswer"
    )
