"""Small models to test agents with, and short ways to say what a model says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from harness.models import Message, ModelRequest, ModelResponse, ModelStream, ToolCall, Usage

Said = str | ModelResponse


def calls(*wanted: ToolCall | tuple[str, dict[str, Any]], text: str = "") -> ModelResponse:
    """Return a response that calls tools: ``calls(("add", {"a": 1}))``."""
    made = tuple(
        one if isinstance(one, ToolCall) else ToolCall(f"c{number}", one[0], one[1])
        for number, one in enumerate(wanted, start=1)
    )
    return ModelResponse(text, tool_calls=made, usage=Usage(10, 2))


def said(text: str) -> ModelResponse:
    return ModelResponse(text, usage=Usage(5, 3))


class Fake:
    """A model that answers by a function of the request; it streams its text word by word."""

    def __init__(
        self,
        answer: Callable[[ModelRequest], Said | Awaitable[Said]],
        *,
        seconds: float = 0.0,
        seconds_per_word: float = 0.0,
    ) -> None:
        self.answer = answer
        self.seconds = seconds
        self.seconds_per_word = seconds_per_word
        self.requests: list[ModelRequest] = []
        self.open_streams = 0
        self.streamed = 0

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        await trio.sleep(self.seconds)
        answer = self.answer(request)
        if isinstance(answer, Awaitable):
            answer = await answer
        return said(answer) if isinstance(answer, str) else answer

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStream]:
        response = await self.complete(request)

        async def pieces() -> ModelStream:
            for word in response.content.split(" ") if response.content else ():
                await trio.sleep(self.seconds_per_word)
                yield f"{word} "
            yield response

        self.open_streams += 1
        self.streamed += 1
        generator = pieces()
        try:
            yield generator
        finally:
            self.open_streams -= 1
            await generator.aclose()  # type: ignore[attr-defined]


class Script(Fake):
    """A model that says one thing after the other, by how often it has spoken in the request."""

    def __init__(self, *replies: Said, seconds: float = 0.0) -> None:
        def answer(request: ModelRequest) -> Said:
            return replies[sum(one.role == "assistant" for one in request.messages)]

        super().__init__(answer, seconds=seconds)


def last_user(request: ModelRequest) -> str:
    """Return the last words of the user in a request."""
    return next(one.text for one in reversed(request.messages) if one.role == "user")


def is_valid(messages: tuple[Message, ...]) -> bool:
    """Return whether a history can be sent: each call has its result, and each result its call."""
    open_calls: set[str | None] = set()
    for one in messages:
        if one.role == "tool":
            if one.tool_call_id not in open_calls:
                return False
            open_calls.remove(one.tool_call_id)
        elif open_calls:
            return False
        else:
            open_calls = {call.id for call in one.tool_calls}
    return not open_calls
