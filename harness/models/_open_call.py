"""Stream one answer under one grant, and settle that and the budgets when its block ends.

The wrapper around every call (`harness.models._called`) is above this file, so what it needs of a
model is a protocol here.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from types import TracebackType
from typing import Protocol

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness.models._answers import AnswerStream
from harness.models._grant import Grant
from harness.models._guesses import Guesses
from harness.models._messages import ModelRequest, ModelResponse, Usage
from harness.models._notices import ModelCall
from harness.models._price import Price
from harness.models._sizes import request_tokens, text_tokens, usage_of
from harness.models._spend import PastUse, Spend
from harness.runs._waits import observed_run


class Asked(Protocol):
    """What a call needs to know of the model it asks."""

    name: str
    """The model's name."""

    provider: str | None
    """Who serves it."""

    price: Price | None
    """What it costs."""

    _past: PastUse
    """What its calls used."""

    @property
    def _guesses(self) -> Guesses:
        """Its calls in this ``trio.run`` that hold guesses."""
        ...

    def _open(self, request: ModelRequest) -> AbstractAsyncContextManager[AnswerStream]:
        """Ask once for an answer in pieces. Leaving the block closes it, whatever happened."""
        ...

    async def _spend(self, request: ModelRequest, grant: Grant) -> Spend:
        """Hold what the call may use of the budgets here, or give the grant back."""
        ...


@attrs.define(eq=False, repr=False)
class OpenCall(AnswerStream):
    """A streamed call under one grant: asked on entry, and settled at the end of its block.

    One object, not nested generators: ten thousand may be open at once.
    """

    _model: Asked
    _request: ModelRequest
    _grant: Grant
    _spend: Spend | None = attrs.field(default=None, init=False)
    _block: AbstractAsyncContextManager[AnswerStream] | None = attrs.field(default=None, init=False)
    _answer: AnswerStream | None = attrs.field(default=None, init=False)
    _is_open: bool = attrs.field(default=False, init=False)
    _was_entered: bool = attrs.field(default=False, init=False)
    _text_tokens: int = attrs.field(default=0, init=False)
    _whole: ModelResponse | None = attrs.field(default=None, init=False)
    _told: ModelCall | None = attrs.field(default=None, init=False)
    """What observers know of it, if there are any."""
    _broke: Exception | None = attrs.field(default=None, init=False)
    """The error it broke off with."""

    @enable_ki_protection
    async def __aenter__(self) -> OpenCall:
        if self._was_entered:
            raise RuntimeError(
                "the block of this stream was already entered; call model.stream() for each block"
            )
        self._was_entered = True
        model = self._model
        self._spend = spend = await model._spend(self._request, self._grant)
        if (run := observed_run()) is not None:
            self._told = ModelCall(run, model, self._request)
        try:
            self._block = model._open(self._request)
            with model._guesses.read() if spend.is_guess else nullcontext():
                self._answer = answer = await self._block.__aenter__()
        except BaseException as error:
            spend.__exit__(type(error), error, error.__traceback__)
            if self._told is not None:
                self._told.__exit__(type(error), error, error.__traceback__)
            model._guesses.let_next_try()
            raise
        self.headers, self.status = answer.headers, answer.status
        self._is_open = True
        return self

    @enable_ki_protection
    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._spend is not None
        assert self._block is not None
        self._is_open = False
        ends = AsyncExitStack()  # Last one first; all, whatever any of them raises.
        if self._told is not None:
            self._told.usage, self._told.response = self._used(), self._whole
            ends.push(self._told)
        ends.push(self._spend)
        ends.push_async_exit(self._block)
        ends.push(self._settle)
        with self._model._guesses.held() if self._spend.is_guess else nullcontext():
            return await ends.__aexit__(error_type, error, traceback)

    def _settle(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        """Settle what was used, unless the stream broke off: then the error tells the limiter."""
        if error is not None and error is self._broke:
            return
        usage = self._used()
        assert self._answer is not None
        assert self._spend is not None
        self._grant.settle(usage, headers=self._answer.headers, status=self._answer.status)
        self._spend.settle(usage)
        if error is None and self._whole is not None:
            self._model._past.learn(request_tokens(self._request, self._model.provider), usage)

    async def __anext__(self) -> str | ModelResponse:
        answer, spend = self._answer, self._spend
        if not self._is_open or answer is None or spend is None:
            raise trio.ClosedResourceError(
                "this answer was closed with its block; read it inside `async with "
                "model.stream(request)`"
            )
        try:
            if spend.is_guess:
                with self._model._guesses.read():
                    piece = await answer.__anext__()
            else:
                piece = await answer.__anext__()
        except StopAsyncIteration:
            raise
        except Exception as error:
            self._broke = error
            raise
        if isinstance(piece, ModelResponse):
            self._whole = piece
        else:
            self._text_tokens += text_tokens(piece)
        return piece

    def _used(self) -> Usage:
        """Return the usage of the whole answer, or of the part that has come."""
        if self._whole is not None:
            return usage_of(self._request, self._whole, self._model.provider)
        assert self._answer is not None
        known = self._answer.usage
        return attrs.evolve(
            known,
            input_tokens=known.input_tokens or request_tokens(self._request, self._model.provider),
            output_tokens=max(known.output_tokens, self._text_tokens),
        )
