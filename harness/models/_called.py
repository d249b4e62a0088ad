"""The one wrapper around every call to a model: limits, waits for them, and their settling.

A model of this folder says how it is asked, in `CalledModel._ask` and `CalledModel._open`; what
users call stands here, so that no model can forget any of it:

- the limiter's leave comes before each attempt, and what was used is settled after it;
- a refusal for rate is waited out, as long as there is a limiter to wait in, and it spends no
  attempt of anybody's: the limiter has begun the pause that all its callers share;
- a stream holds its reservation until it is closed, and is closed with its block.

While a call waits for its turn it holds nothing of the limiter. While it runs it holds nothing
that another call of the same run could need: a model calls nobody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import trio

from harness.errors import (
    ModelQuotaExhaustedError,
    ModelRateLimitedError,
    QuotaExhaustedError,
    RateLimitedError,
)
from harness.limits import Limiter
from harness.models._answers import Answer, AnswerStream
from harness.models._failures import ErrorT, model_error
from harness.models._grant import Grant, granted
from harness.models._messages import ModelRequest, ModelResponse, Usage
from harness.models._price import Price
from harness.models._protocol import ModelStream
from harness.models._sizes import request_tokens, text_tokens, usage_of
from harness.models._waits import RateLimitWaits


class CalledModel(ABC):
    """A model whose every call keeps a limit.

    Args:
      name: The model's name.
      provider: Who serves it, for messages.
      limiter: The limits of whoever serves it; None for none.
      price: What it costs; None if nobody needs to know.
      max_output_tokens: The largest output that a call allows itself; None for no such limit.
    """

    def __init__(
        self,
        name: str,
        *,
        provider: str | None = None,
        limiter: Limiter | None = None,
        price: Price | None = None,
        max_output_tokens: int | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a model is {name!r}, but must be a string with something")
        if limiter is not None and not isinstance(limiter, Limiter):
            raise TypeError(
                f"limiter of model {name!r} is {limiter!r}, but must be a Limiter; "
                "for a ProviderPool use a FallbackModel"
            )
        if price is not None and not isinstance(price, Price):
            raise TypeError(f"price of model {name!r} is {price!r}, but must be a Price")
        self.name: str = name
        self.provider: str | None = provider
        self.limiter: Limiter | None = limiter
        self.price: Price | None = price
        self.max_output_tokens: int | None = max_output_tokens

    # What a model is ---------------------------------------------------------------------------

    @abstractmethod
    async def _ask(self, request: ModelRequest) -> Answer:
        """Ask once and return the whole answer, or raise a `harness.errors.ModelError`."""

    @abstractmethod
    def _open(self, request: ModelRequest) -> AbstractAsyncContextManager[AnswerStream]:
        """Ask once for an answer in pieces. Leaving the block closes it, whatever happened."""

    # What users call ---------------------------------------------------------------------------

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the whole answer.

        Args:
          request: What the model is asked.

        Raises:
          ModelError: if there is no answer that can be used; see its subclasses.

        Checkpoint: always.

        Cancellation: the request is given up, and its connection is not used again. What it was
        expected to use stays charged.
        """
        if self.limiter is None:
            return (await self._ask(request)).response
        waits = RateLimitWaits()
        while True:  # Ends: the waits are bounded.
            async with self._granted(request) as grant:
                try:
                    answer = await self._ask(request)
                except ModelRateLimitedError as error:
                    refused = error
                    grant.refused(refused)
                else:
                    usage = usage_of(request, answer.response)
                    grant.settle(usage, headers=answer.headers, status=answer.status)
                    return answer.response
            await self._wait_after(refused, waits)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelStream]:
        """Open the answer as a stream: text as it comes and, last, one `ModelResponse`.

        Leaving the block closes the stream, whether it was read to its end or not.

        Args:
          request: What the model is asked.

        Raises:
          ModelError: if there is no answer; while it is read, if it breaks off.

        Checkpoint: on entry, and for each piece.

        Cancellation: the connection is closed, and not used again. What had come until then is
        charged.
        """
        waits = RateLimitWaits()
        while True:  # Ends: the waits are bounded.
            async with self._granted(request) as grant, AsyncExitStack() as stack:
                try:
                    answer = await stack.enter_async_context(self._open(request))
                except ModelRateLimitedError as error:
                    refused = error
                    grant.refused(refused)
                else:
                    reading = _Reading(answer, request)
                    try:
                        yield reading
                    except BaseException as error:
                        # Its own failure goes on to the limiter, which hears it from the error.
                        if error is not reading.broke:
                            reading.settle(grant)
                        raise
                    else:
                        reading.settle(grant)
                        return
                    finally:
                        reading.close()
            await self._wait_after(refused, waits)

    # Limits ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _granted(self, request: ModelRequest) -> AsyncGenerator[Grant]:
        """Hold what one call may use; who can't wait for that hears which model it was for."""
        entered = False
        try:
            async with granted(
                self.limiter,
                request,
                model=self.name,
                max_output_tokens=self.max_output_tokens,
            ) as grant:
                entered = True
                yield grant
        except RateLimitedError as error:
            if entered:
                raise
            raise self._error(
                ModelRateLimitedError, f"was not asked: {error}", retry_after=error.retry_after
            ) from error
        except QuotaExhaustedError as error:
            if entered:
                raise
            raise self._error(
                ModelQuotaExhaustedError, f"was not asked: {error}", resets_after=error.resets_after
            ) from error

    async def _wait_after(self, refused: ModelRateLimitedError, waits: RateLimitWaits) -> None:
        """Wait before the limiter is asked again, or raise the refusal if that can't help."""
        if self.limiter is None:
            raise refused
        delay = waits.delay_seconds(
            pause=max(refused.retry_after or 0.0, self.limiter.statistics().paused_seconds),
            now=trio.current_time(),
            deadline=trio.current_effective_deadline(),
        )
        if delay is None:
            raise refused
        waiting_for = f"model {self.name!r}, which refused a call for rate"  # noqa: F841 (read by `dump`)
        await trio.sleep(delay)

    def _error(self, kind: type[ErrorT], what: str, **facts: Any) -> ErrorT:
        """Return an error that names this model and the run that asks."""
        return model_error(kind, what, model=self.name, provider=self.provider, **facts)

    def __repr__(self) -> str:
        # Names alone: what else a model holds may be a key.
        served_by = "" if self.provider is None else f" of {self.provider}"
        return f"<{type(self).__name__} {self.name!r}{served_by}>"


class _Reading(AnswerStream):
    """An open answer in its reader's hands: notes what has come, and ends with its block."""

    __slots__ = ("_answer", "_request", "_response", "_text_size", "broke", "open")

    def __init__(self, answer: AnswerStream, request: ModelRequest) -> None:
        super().__init__(answer.headers, answer.status)
        self._answer = answer
        self._request = request
        self._response: ModelResponse | None = None
        self._text_size = 0
        self.open = True
        self.broke: Exception | None = None
        """What it broke off with."""

    async def __anext__(self) -> str | ModelResponse:
        if not self.open:
            raise trio.ClosedResourceError(
                "this answer was closed with its block; read it inside of `async with "
                "model.stream(request)`"
            )
        try:
            piece = await self._answer.__anext__()
        except StopAsyncIteration:
            raise
        except Exception as error:
            self.broke = error
            raise
        if isinstance(piece, ModelResponse):
            self._response = piece
        else:
            self._text_size += text_tokens(piece)
        return piece

    def settle(self, grant: Grant) -> None:
        """Settle to the usage of the whole, or of what has come of it."""
        if self._response is not None:
            usage = usage_of(self._request, self._response)
        else:
            known = self._answer.usage
            usage = Usage(
                known.input_tokens or request_tokens(self._request),
                max(known.output_tokens, self._text_size),
                cached_input_tokens=known.cached_input_tokens,
            )
        grant.settle(usage, headers=self.headers, status=self.status)

    def close(self) -> None:
        """Refuse to be read any further."""
        self.open = False
