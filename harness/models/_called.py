"""Wrap every call to a model: limits and budgets, before it and after it.

A model in this folder only says how to ask it, in `CalledModel._ask` and `CalledModel._open`. What
users call is here, so that no model can forget any of it:

- the limiter must agree before each attempt, and what was used is settled after it;
- the budgets of the run are held only from then on, so a call waiting in line holds none;
- a refusal for rate is waited out if there is a limiter to wait in, and uses up nobody's attempts:
  the limiter has begun the pause that all its callers share;
- a stream holds its reservation until it is closed, and is closed with its block; see
  `harness.models._open_call`.

While a call waits for its turn, it holds nothing of the limiter's. While it runs, it holds nothing
that another call of the same run could need: a model calls nobody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    nullcontext,
)
from typing import Any

import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from harness._outside_trio import refuse_outside_trio
from harness._words import repr_of
from harness.errors import (
    BudgetExceeded,
    MissingPriceError,
    ModelRateLimitedError,
    ModelReplyError,
)
from harness.limits import JointLimiter, Limiter
from harness.models._answers import Answer, AnswerStream, Begun, ReadyBlock
from harness.models._failures import ErrorT, model_error
from harness.models._file import File
from harness.models._file_refusals import refuse_files
from harness.models._grant import NO_LIMIT, Grant, granted, members_of
from harness.models._guesses import Guesses
from harness.models._messages import ModelRequest, ModelResponse, Usage, check_request, misfit_in
from harness.models._notices import ModelCall
from harness.models._open_call import OpenCall
from harness.models._price import Price
from harness.models._protocol import ModelStream
from harness.models._sizes import request_tokens, usage_of
from harness.models._spend import PastUse, Spend, dollars_count, somebody_counts
from harness.models._waits import RateLimitWaits
from harness.policies import is_too_large
from harness.runs._waits import observed_run, waiting


class CalledModel(ABC):
    """A model whose every call keeps to a limit.

    Args:
      name: The model's name.
      provider: Who serves it, for messages.
      limiter: The limits of whoever serves it; None for none.
      price: What it costs; None if nobody needs to know.
      max_output_tokens: The largest output that a call allows; None for no such limit.
    """

    def __init__(
        self,
        name: str,
        *,
        provider: str | None = None,
        limiter: Limiter | JointLimiter | None = None,
        price: Price | None = None,
        max_output_tokens: int | None = None,
    ) -> None:
        kind = type(self).__name__
        if not isinstance(name, str) or not name:
            raise TypeError(f"{kind} takes a readable name, not {name!r}")
        if limiter is not None and not isinstance(limiter, Limiter | JointLimiter):
            raise TypeError(
                f"{kind}(limiter=...) takes a Limiter or a JointLimiter, not {limiter!r}; for a "
                "ProviderPool use a FallbackModel"
            )
        if price is not None and not isinstance(price, Price):
            raise TypeError(
                f"{kind}(price=...) takes a harness.models.Price, not {price!r}; None if nobody "
                "needs to know"
            )
        self.name: str = name
        self.provider: str | None = provider
        self.limiter: Limiter | JointLimiter | None = limiter
        self.price: Price | None = price
        self.max_output_tokens: int | None = max_output_tokens
        self._past = PastUse()
        # No task can wait for what happens in another trio run, in another thread, or be woken
        # there.
        self._guesses_here: trio.lowlevel.RunVar[Guesses] = trio.lowlevel.RunVar(
            "harness.models.guesses"
        )

    context_tokens: int | None = None
    """Its context window: how many tokens a request and its answer may have together; None if
    nobody has said."""

    no_price_because: str = ""
    """Why it has none, in words that follow "has no price"; empty if nobody looked for one."""

    # What a model is ---------------------------------------------------------------------------

    @abstractmethod
    async def _ask(self, request: ModelRequest) -> Answer:
        """Ask once and return the whole answer, or raise a `harness.errors.ModelError`."""

    def _open(self, request: ModelRequest) -> AbstractAsyncContextManager[AnswerStream]:
        """Ask once for an answer in pieces. Leaving the block closes it, whatever happened."""
        return ReadyBlock(self._ask, request)

    def refuse_unless_ready(self) -> None:
        """Raise if it can't be asked at all, before anybody waits in line for it."""
        return

    @property
    def file_bytes_at_most(self) -> int | None:
        """How many bytes the files of a request may have together; None for no such limit."""
        return None

    def why_not(self, file: File) -> str | None:
        """Return what it takes instead of a file, in words; None if it takes that."""
        return None

    def refuse_files(self, request: ModelRequest) -> None:
        """Raise if it can't take a file of the request, before anybody waits in line for it.

        Raises:
          ModelFileError: if it can't.
          TypeError: if a message's content is neither text nor a tuple of texts and files.
        """
        for message in request.messages:
            if type(message.content) is not str:
                refuse_files(self, request)
                return

    # What users call ---------------------------------------------------------------------------

    @enable_ki_protection  # A block that a Ctrl-C finds between its lines is never left.
    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the whole answer.

        Args:
          request: What the model is asked.

        Raises:
          ModelError: if there is no usable answer; see its subclasses.

        Checkpoint: always.

        Cancellation: the request is abandoned, and its connection isn't used again. What it was
        expected to use stays charged.
        """
        refuse_outside_trio(f"{type(self).__name__}.complete() was called")
        check_request(request, self)
        self.refuse_unless_ready()
        self.refuse_files(request)
        limiter = self.limiter
        if limiter is None:
            if not somebody_counts():
                return (await self._asked(request)).response
            return await self.ask_counted(request, NO_LIMIT)
        waits = RateLimitWaits()
        while True:  # Ends: the waits are bounded.
            async with self._granted(limiter, request) as grant:
                try:
                    return await self.ask_counted(request, grant)
                except ModelRateLimitedError as error:
                    refused = error
                    grant.refused(refused)
                    if is_too_large(refused):
                        raise
            await self._wait_after(limiter, refused, waits)

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[ModelStream]:
        """Open the answer as a stream: text as it comes and, last, one `ModelResponse`.

        Leaving the block closes the stream, whether it was read to its end or not.

        Args:
          request: What the model is asked.

        Raises:
          ModelError: if there is no answer; while it is read, if it breaks off.

        Checkpoint: on entry, and for each piece.

        Cancellation: the connection is closed, and not used again. What had come by then is
        charged.
        """
        refuse_outside_trio(f"{type(self).__name__}.stream() was called")
        check_request(request, self)
        self.refuse_unless_ready()
        self.refuse_files(request)
        if self.limiter is None:
            return self.open_counted(request, NO_LIMIT)
        return self._open_in_line(self.limiter, request)

    @asynccontextmanager
    @enable_ki_protection
    async def _open_in_line(
        self, limiter: Limiter | JointLimiter, request: ModelRequest
    ) -> AsyncGenerator[ModelStream]:
        """Open a stream when the limiter lets it, and the provider has begun to answer."""
        waits = RateLimitWaits()
        begun = False
        while True:  # Ends: the waits are bounded.
            async with self._granted(limiter, request) as grant:
                try:
                    async with self.open_counted(request, grant) as opened:
                        # An overloaded provider may say so in the stream's first event.
                        with Begun(await anext(opened), opened) as stream:
                            begun = True
                            yield stream
                            return
                except ModelRateLimitedError as error:
                    if begun:
                        raise
                    refused = error
                    grant.refused(refused)
                    if is_too_large(refused):
                        raise
            await self._wait_after(limiter, refused, waits)

    # One attempt, under a grant ----------------------------------------------------------------

    @enable_ki_protection
    async def ask_counted(self, request: ModelRequest, grant: Grant) -> ModelResponse:
        """Ask once under ``grant``, settle it, and count the use; wrapping models call this too."""
        with await self._spend(request, grant) as spend:
            # The guess ends last, so whoever waits for that finds everything settled.
            with self._guesses.held() if spend.is_guess else nullcontext():
                answer = await self._asked(request)
                usage = usage_of(request, answer.response, self.provider)
                grant.settle(usage, headers=answer.headers, status=answer.status)
                self._past.learn(request_tokens(request, self.provider), usage)
                spend.settle(usage)
                return answer.response

    def open_counted(
        self, request: ModelRequest, grant: Grant
    ) -> AbstractAsyncContextManager[ModelStream]:
        """Open a stream once under ``grant``; at its end, settle that and count the use."""
        return OpenCall(self, request, grant)

    async def _spend(self, request: ModelRequest, grant: Grant) -> Spend:
        """Hold what the call may use of the budgets here; a call that can't be held isn't made.

        Cancellation: nothing is held, and the grant is given back.
        """
        try:
            while True:  # Ends: in each round, one of the model's first calls has ended.
                spend = self._expect(request)
                try:
                    await spend.take()
                except BudgetExceeded:
                    if not await self._guesses.one_ended():
                        raise
                else:
                    self._guesses.let_next_try()
                    return spend
        except BaseException:
            grant.refund()
            raise

    @property
    def _guesses(self) -> Guesses:
        try:
            return self._guesses_here.get()
        except LookupError:
            guesses = Guesses()
            self._guesses_here.set(guesses)
            return guesses

    def _expect(self, request: ModelRequest) -> Spend:
        """Return what a call will probably use, so that it can be held."""
        if not somebody_counts():
            return Spend(self.name, None, None)
        if self.price is None and self.provider is not None and dollars_count():
            raise self._error(
                MissingPriceError,
                f"has no price{self.no_price_because and ' ' + self.no_price_because}, and there "
                "is a budget in dollars here, which could not be kept; give the model "
                "price=Price(...), or add it to a table of prices",
            )
        if self.max_output_tokens is None:
            foreseen = self._foresee(request)
            if foreseen is not None:
                return Spend(self.name, foreseen, self.price)
        input_tokens = request_tokens(request, self.provider)
        expected = self._past.expected(input_tokens, self.max_output_tokens)
        is_guess = self.max_output_tokens is None and not self._past.is_known
        return Spend(self.name, expected, self.price, past=self._past if is_guess else None)

    def _foresee(self, request: ModelRequest) -> Usage | None:
        """Return what a call will use, if its answer is already there."""
        return None

    @disable_ki_protection
    async def _asked(self, request: ModelRequest) -> Answer:
        """Ask, which Ctrl-C can end."""
        if (run := observed_run()) is None:
            return await self._ask(request)
        with ModelCall(run, self, request) as call:
            answer = await self._ask(request)
            call.response = answer.response
            call.usage = usage_of(request, answer.response, self.provider)
            return answer

    # Limits ------------------------------------------------------------------------------------

    def _granted(
        self, limiter: Limiter | JointLimiter, request: ModelRequest
    ) -> AbstractAsyncContextManager[Grant]:
        """Wait for the limiter; an error if that is impossible names the model."""
        return granted(
            limiter,
            request,
            model=self.name,
            provider=self.provider,
            max_output_tokens=self.max_output_tokens,
        )

    async def _wait_after(
        self,
        limiter: Limiter | JointLimiter,
        refused: ModelRateLimitedError,
        waits: RateLimitWaits,
    ) -> None:
        """Wait before asking the limiter again, or raise the refusal if waiting can't help."""
        delay = waits.delay_seconds(
            pause=max(
                refused.retry_after or 0.0,
                *(one.statistics().paused_seconds for one in members_of(limiter)),
            ),
            now=trio.current_time(),
            deadline=trio.current_effective_deadline(),
        )
        if delay is None:
            raise refused
        _waiting_for = f"model {self.name!r}, which refused a call for rate"
        with waiting("limiter", self.name):
            await trio.sleep(delay)

    def _refuse_misfit(self, response: ModelResponse) -> None:
        """Refuse a response from outside that holds something it can't."""
        misfit = misfit_in(response)
        if misfit is not None:
            given, wanted = misfit
            raise self._error(
                ModelReplyError, f"gave {repr_of(given)}, where a ModelResponse has {wanted}"
            )

    def _error(self, kind: type[ErrorT], what: str, **facts: Any) -> ErrorT:
        """Return an error that names this model and the run that asked."""
        return model_error(kind, what, model=self.name, provider=self.provider, **facts)

    def __repr__(self) -> str:
        # Names only: anything else that a model holds may be a key.
        served_by = "" if self.provider is None else f" of {self.provider}"
        return f"<{type(self).__name__} {self.name!r}{served_by}>"
