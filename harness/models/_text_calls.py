"""Find the tool calls that a server left in the text of an answer.

Models write their calls as text, and it is the server that takes them out. One that was started
without the right parser for its model, or a model that writes another form today, leaves them in.
What such a text asks for is plain, so it is read here, but only if nothing is left to guess: every
name must be that of a tool in the request, and nothing may follow the calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from harness.models._dialect import entries, inner, tool_call, with_own_ids
from harness.models._messages import ModelRequest, ModelResponse, ToolCall

_MARKS = ("<tool_call>", "<function=", "[TOOL_CALLS]", "<|python_tag|>")
"""What begins a call, also after other text: Qwen's and Hermes', Mistral's, and Llama's marks."""

_BARE = tuple(
    f"{fence}{bracket}{{{key}:"
    for fence in ("", "```json", "```")
    for bracket in ("", "[")
    for key in ('"name"', '"type"', '"function"', '"id"', '"arguments"', '"parameters"')
)
"""How a text that is nothing but calls begins, without its spaces."""

_BETWEEN = re.compile(
    r"(?:\s|;|</?tool_call>|\[TOOL_CALLS\]|<\|(?:python_tag|eom_id|eot_id|im_end)\|>|```(?:json)?)*"
)
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_NAMED = re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?(?=\{)")
_KEYS = frozenset({"arguments", "function", "id", "name", "parameters", "type"})
_decoder = json.JSONDecoder()


class _NoCall(Exception):
    """The text is something other than calls."""


class HeldText:
    """Text of a stream, handed on except for what may turn out to be a call."""

    __slots__ = ("_begun", "_handed", "_held")

    def __init__(self) -> None:
        self._held = ""
        self._begun = ""
        """The text so far without spaces, while it may still be a bare call."""
        self._handed = 0

    def take(self, piece: str) -> str:
        """Take a piece; return what can be handed on."""
        self._held += piece
        if not self._handed:
            self._begun += "".join(piece.split())
            if any(form.startswith(self._begun) or self._begun.startswith(form) for form in _BARE):
                return ""
        found = [at for mark in _MARKS if (at := self._held.find(mark)) >= 0]
        end = min(found, default=len(self._held) - self._part_of_mark())
        ready, self._held = self._held[:end], self._held[end:]
        self._handed += len(ready)
        return ready

    def _part_of_mark(self) -> int:
        """Return how many letters at the end may be the beginning of a mark."""
        longest = max(map(len, _MARKS)) - 1
        tails = range(min(longest, len(self._held)), 0, -1)
        return next(
            (n for n in tails if any(mark.startswith(self._held[-n:]) for mark in _MARKS)), 0
        )

    def rest(self, content: str) -> str:
        """Return what is still to be handed on of the whole answer's text."""
        return content[self._handed :]


def with_calls_of_text(response: ModelResponse, request: ModelRequest) -> ModelResponse:
    """Return the answer with the calls that are in its text; as it is if there are none.

    Args:
      response: The answer.
      request: What was asked.
    """
    if response.tool_calls or not response.content:
        return response
    content = response.content
    found = [at for mark in _MARKS if (at := content.find(mark)) >= 0]
    if not found and request.output_schema is not None:
        return response  # Bare JSON is the answer.
    begin = min(found, default=0)
    schemas = {tool.name: tool.parameters for tool in request.tools}
    try:
        calls = list(_calls_in(content[begin:], schemas))
    except (_NoCall, ValueError, RecursionError):
        return response
    if not calls:
        return response
    # What comes before a mark is text to the user; the spaces between are not.
    return attrs.evolve(
        response,
        content=content[:begin].rstrip(),
        tool_calls=with_own_ids(calls),
        finish="tool_calls" if response.finish == "stop" else response.finish,
    )


def _calls_in(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> Iterator[ToolCall]:
    for place, (name, arguments) in enumerate(_named_arguments(text, schemas)):
        if not isinstance(name, str) or name not in schemas:
            raise _NoCall
        call = tool_call("", name, arguments, place)
        if call.unreadable is not None:
            raise _NoCall
        yield call


def _named_arguments(
    text: str, schemas: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[object, object]]:
    """Yield the name and the arguments of each call; raise if there is anything else."""
    at = _end_of_match(_BETWEEN, text, 0)
    while at < len(text):
        if function := _FUNCTION.match(text, at):
            name, body = function.groups()
            at = function.end()
            yield name, _written_arguments(body, schemas.get(name, {}))
        elif named := _NAMED.match(text, at):
            arguments, at = _decoder.raw_decode(text, named.end())
            yield named[1], arguments
        elif text[at] in "{[":
            value, at = _decoder.raw_decode(text, at)
            for one in value if isinstance(value, list) else [value]:
                yield _one_call(one)
        else:
            raise _NoCall
        at = _end_of_match(_BETWEEN, text, at)


def _end_of_match(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _one_call(value: object) -> tuple[object, object]:
    if not isinstance(value, Mapping) or set(value) - _KEYS:
        raise _NoCall
    inside = value.get("function")
    if isinstance(inside, Mapping):
        return _one_call(inside)
    arguments = value.get("arguments", value.get("parameters", value))
    if arguments is value:
        raise _NoCall
    return value.get("name", inside), arguments


def _written_arguments(body: str, schema: Mapping[str, Any]) -> object:
    """Return the arguments between the marks of a function: JSON, or one mark for each."""
    if not _PARAMETER.search(body):
        return body
    if _PARAMETER.sub("", body).strip():
        raise _NoCall
    properties = schema.get("properties", {})
    return {name: _value(text, properties.get(name)) for name, text in _PARAMETER.findall(body)}


def _value(text: str, schema: object) -> object:
    """Return the value that a text stands for: itself, for a parameter that takes text."""
    kinds: list[object] = []
    for one in [schema, *entries(schema, "anyOf")]:
        kind = inner(one, "type")
        kinds += kind if isinstance(kind, list) else [kind]
    if "string" in kinds:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
