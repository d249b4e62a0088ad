"""Carry an answer from whoever gives it to the one wrapper around all calls.

Besides what the caller gets, it carries what limits and budgets need: the response's headers and
status and, while it streams, what is known of its usage so far.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager

import attrs
import trio

from harness.models._messages import ModelRequest, ModelResponse, Usage

_PIECES = re.compile(r"\S+\s*|\s+")


@attrs.frozen
class Answer:
    """A whole answer."""

    response: ModelResponse

    headers: Mapping[str, str] | None = None
    """The headers it came with, if it came from a provider."""

    status: int | None = None


@attrs.define(eq=False, kw_only=True, repr=False)
class AnswerStream(ABC):
    """An answer in pieces. Each step is a checkpoint, unless the piece is already there."""

    headers: Mapping[str, str] | None = None
    status: int | None = None
    usage: Usage = attrs.field(default=Usage(), init=False)
    """What the provider has said of the usage so far."""

    def __aiter__(self) -> AnswerStream:
        return self

    @abstractmethod
    async def __anext__(self) -> str | ModelResponse:
        """Return the next piece of the text or, last of all, the whole response."""


@attrs.define(eq=False, repr=False)
class Begun(AnswerStream):
    """A stream whose first piece has been read: until it comes, the whole may be refused.

    Leaving its block forgets the piece, so that reading on raises what the stream raises.
    """

    _first: str | ModelResponse | None
    _stream: AsyncIterator[str | ModelResponse]

    def __enter__(self) -> Begun:
        return self

    def __exit__(self, *_: object) -> None:
        self._first = None

    async def __anext__(self) -> str | ModelResponse:
        first, self._first = self._first, None
        if first is None:
            return await anext(self._stream)
        await trio.lowlevel.checkpoint()
        return first


class ReadyStream(AnswerStream):
    """A whole answer handed out in pieces: words, each with what follows it.

    Args:
      response: The answer.
      piece_delay: Seconds between two pieces.
      pieces: Its pieces, if they are known.
    """

    __slots__ = ("_begun", "_piece_delay", "_pieces", "_response")

    def __init__(
        self,
        response: ModelResponse,
        *,
        piece_delay: float = 0.0,
        pieces: Iterable[str] | None = None,
    ) -> None:
        super().__init__()
        self._pieces = iter(_PIECES.findall(response.content) if pieces is None else pieces)
        self._response: ModelResponse | None = response
        self._piece_delay = piece_delay
        self._begun = False

    async def __anext__(self) -> str | ModelResponse:
        piece = next(self._pieces, None)
        if self._piece_delay and piece is not None and self._begun:
            await trio.sleep(self._piece_delay)
        else:
            await trio.lowlevel.checkpoint()
        self._begun = True
        if piece is not None:
            return piece
        response, self._response = self._response, None
        if response is None:
            raise StopAsyncIteration
        return response


@attrs.frozen(eq=False, repr=False)
class ReadyBlock(AbstractAsyncContextManager[AnswerStream]):
    """The block that asks for a whole answer and hands it out in pieces.

    Args:
      ask: Asks for it.
      request: What to ask.
      piece_delay: Seconds between two pieces.
    """

    _ask: Callable[[ModelRequest], Awaitable[Answer]]
    _request: ModelRequest
    _piece_delay: float = attrs.field(default=0.0, alias="piece_delay", kw_only=True)

    async def __aenter__(self) -> AnswerStream:
        answer = await self._ask(self._request)
        return ReadyStream(answer.response, piece_delay=self._piece_delay)

    async def __aexit__(self, *_: object) -> None:
        return
