"""Wrap a model or a tool so that its calls meet what a `Chaos` says; the rest is unchanged."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

from harness.testing.chaos._fate import CallFate

if TYPE_CHECKING:  # Programs without any model have chaos, too.
    from harness.models import ModelRequest, ModelResponse, ModelStream

Arguments = tuple[Any, ...]


@attrs.frozen
class CallFaults:
    """What a `Chaos` does to calls, each of which has a name and arguments."""

    words: str
    """The chaos, in words."""

    fate: Callable[[str, Arguments, dict[str, Any]], CallFate]
    """Say what becomes of a call."""

    strike: Callable[[CallFate], Awaitable[None]]
    """Make it fail or cancel it."""

    around: Callable[[str, Arguments, dict[str, Any]], AbstractAsyncContextManager[None]]
    """A block in which the call is made, and meets its fate."""


class ChaosModel:
    """A model whose requests meet what a `Chaos` says; otherwise it is the model itself."""

    def __init__(self, faults: CallFaults, model: Any) -> None:
        self._faults = faults
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __repr__(self) -> str:
        return f"<{self._model!r} under {self._faults.words}>"

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Ask the model, unless it is this request's fate not to get that far."""
        async with self._faults.around("complete", (_words_of(request),), {}):
            response: ModelResponse = await self._model.complete(request)
            return response

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStream]:
        """Open the model's answer; a fault after the call comes where the stream would end."""
        fate = self._faults.fate("stream", (_words_of(request),), {})
        if fate.kind == "delay":
            await trio.sleep(fate.delay_seconds)
        elif not fate.after:
            await self._faults.strike(fate)
        async with self._model.stream(request) as pieces:
            yield _Cut(pieces, self._faults, fate) if fate.after else pieces


@attrs.define(eq=False)
class _Cut:
    """A stream that breaks before its last piece."""

    _pieces: ModelStream
    _faults: CallFaults
    _fate: CallFate

    def __aiter__(self) -> _Cut:
        return self

    async def __anext__(self) -> str | ModelResponse:
        piece = await self._pieces.__anext__()
        if not isinstance(piece, str):  # The last piece is the whole response.
            await self._faults.strike(self._fate)
        return piece


def wrap_tool(faults: CallFaults, tool: Any) -> Any:
    """Return a copy of a tool, of a class that differs in what a call does."""
    name = str(getattr(tool, "name", type(tool).__name__))

    async def invoke(self: Any, arguments: Any, call_id: str) -> Any:
        async with faults.around(name, (dict(arguments),), {}):
            return await tool.invoke(arguments, call_id)

    changed = copy.copy(tool)
    # Without slots of its own, so that the copy can be an instance. Bypasses the frozen class's
    # lock.
    cls = type(type(tool).__name__, (type(tool),), {"__slots__": (), "invoke": invoke})
    object.__setattr__(changed, "__class__", cls)
    return changed


def _words_of(request: ModelRequest) -> tuple[str, ...]:
    """Return what a request says, without the ids that a provider makes up."""
    said = (
        f"{message.role}: {message.content}"
        + "".join(f" {call.name}({call.arguments})" for call in message.tool_calls)
        for message in request.messages[-2:]
    )
    return (str(len(request.messages)), *said)
