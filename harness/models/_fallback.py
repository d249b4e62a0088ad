"""Chain models: the first that works and has room answers.

The pool of their limiters knows which that is: it passes over those that are used up, paused or
resting after failures, and comes back to the first as soon as it can serve. A call doesn't ask a
second time a model that failed it.

A stream moves on to the next model only while nothing of it has been read. Two halves of two
answers aren't an answer.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from types import TracebackType
from typing import Any, TypeAlias

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness._arguments import says_near_options
from harness._outside_trio import refuse_outside_trio
from harness._words import error_in_words
from harness.errors import (
    HarnessError,
    ModelError,
    ModelFileError,
    ModelRateLimitedError,
)
from harness.limits import Limiter, ProviderPool
from harness.models._answers import Answer, AnswerStream, Begun
from harness.models._called import CalledModel
from harness.models._failures import model_error
from harness.models._grant import Grant, granted
from harness.models._messages import ModelRequest, ModelResponse, check_request
from harness.models._protocol import Model, ModelStream
from harness.models._waits import RateLimitWaits
from harness.policies import is_rate_limit, is_too_large, retry_after_seconds

FallbackEntry: TypeAlias = "Model | tuple[Limiter, Model]"
"""A model that has a limiter, or a limiter with the model it is for."""


@says_near_options
class FallbackModel:
    """Ask the first of several models that works and has room.

    Opened with ``async with``, it opens those of its models that have to be opened. If they are all
    open already, that isn't needed.

    Args:
      models: The models in order of preference. Each has a limiter, which knows how it is doing:
        its own, or one in front of it, as in ``(limiter, model)``.
      name: Its name, in messages.

    Raises:
      TypeError, ValueError: if there are none, one has no limiter, or two limiters share a name.
    """

    def __init__(self, models: Sequence[FallbackEntry], *, name: str = "fallback") -> None:
        if isinstance(models, str) or not isinstance(models, Iterable):
            raise TypeError(f"FallbackModel takes several models, but got {models!r}; put it in []")
        self.name: str = name
        self._members = tuple(_member(entry) for entry in models)
        if not self._members:
            raise ValueError("a FallbackModel needs at least 1 model")
        names = [member.limiter.name for member in self._members]
        if len(set(names)) < len(names):
            raise ValueError(
                f"two limiters of {name!r} have the same name ({', '.join(map(repr, names))}), so "
                "nobody could tell whose turn it is; give each a name of its own"
            )
        self.pool: ProviderPool = ProviderPool([member.limiter for member in self._members])
        """The limiters, as one line."""
        windows: list[Any] = [
            getattr(member.given, "context_tokens", None) for member in self._members
        ]
        self.context_tokens: int | None = None if None in windows else min(windows)
        """The smallest context window of its models; None if one doesn't say."""
        self._opened: AsyncExitStack | None = None

    async def __aenter__(self) -> FallbackModel:
        """Open those models that have to be opened.

        Raises:
          MissingApiKeyError: if one of them has no key.
          ModelNotOpenError: if one of them is open already.

        Checkpoint: if one of them has to be opened.

        Cancellation: those that were opened are closed again.
        """
        refuse_outside_trio(f"model {self.name!r} was opened")
        async with AsyncExitStack() as stack:
            for member in self._members:
                if isinstance(member.given, AbstractAsyncContextManager):
                    await stack.enter_async_context(member.given)
            self._opened = stack.pop_all()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.__aexit__(error_type, error, traceback)

    @enable_ki_protection
    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the whole answer of the first model that gives one.

        Args:
          request: What the models are asked.

        Raises:
          ModelError: if none gave an answer; the message says why, for each.

        Checkpoint: always.

        Cancellation: the request is abandoned, as by the model that was asked.
        """
        refuse_outside_trio("FallbackModel.complete() was called")
        check_request(request, self)
        search = _Search(self.name, self._members, self.pool, request)
        while True:  # Ends: a failure takes a model out, and waits are bounded.
            try:
                async with search.next_model() as (model, grant):
                    with search.errors_named(model):
                        return await model.ask_counted(request, grant)
            except ModelError as error:
                await search.failed(error)

    @asynccontextmanager
    @enable_ki_protection
    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelStream]:
        """Open a stream with the answer of the first model that begins one.

        Leaving the block closes the stream, whether it was read to its end or not.

        Args:
          request: What the models are asked.

        Raises:
          ModelError: if none began an answer; while it is read, if it breaks off.

        Checkpoint: on entry, and as the model's own stream does.

        Cancellation: the stream is closed, as by the model that was asked.
        """
        refuse_outside_trio("FallbackModel.stream() was called")
        check_request(request, self)
        search = _Search(self.name, self._members, self.pool, request)
        while True:  # Ends: a failure takes a model out, and waits are bounded.
            try:
                async with search.next_model() as (model, grant):
                    with search.errors_named(model):
                        async with model.open_counted(request, grant) as stream:
                            with Begun(await anext(stream), stream) as begun:
                                search.began = True
                                yield begun
                                return
            except ModelError as error:
                if search.began:
                    raise
                await search.failed(error)

    def __repr__(self) -> str:
        models = ", ".join(repr(member.model.name) for member in self._members)
        return f"<FallbackModel {self.name!r} of {models}>"


class _Search:
    """One call's way through the chain: which models it asked, and which are left."""

    def __init__(
        self, name: str, members: tuple[_Member, ...], pool: ProviderPool, request: ModelRequest
    ) -> None:
        for member in members:
            member.model.refuse_unless_ready()
        able = [member for member in members if _takes_files(member.model, request)]
        if not able:
            members[0].model.refuse_files(request)
        self._name = name
        self._request = request
        self._left = {member.limiter.name: member for member in able}
        self._pool = pool
        if len(able) < len(members):
            self._pool = ProviderPool([member.limiter for member in able])
        self._asked: str | None = None
        self._failures: dict[str, ModelError] = {}
        self._waits = RateLimitWaits()
        self.began = False
        """Whether the reader has the stream. Errors from then on may be the reader's own."""

    @contextmanager
    def errors_named(self, model: CalledModel) -> Generator[None]:
        """Treat an error of any kind as the failure of ``model``, as with a function.

        Not with a provider's model: what its library raises has already been put into words. The
        rest are mistakes, such as an option that doesn't exist.
        """
        try:
            yield
        except HarnessError:
            raise
        except Exception as error:
            if self.began or model.provider is not None:
                raise
            raise _failure(error, model.name) from error

    @asynccontextmanager
    @enable_ki_protection
    async def next_model(self) -> AsyncGenerator[tuple[CalledModel, Grant]]:
        """Wait for the first of those left that can serve, and hold it."""
        self._asked = None
        members = tuple(self._left.values())
        maxima = [member.model.max_output_tokens for member in members]
        stated = [maximum for maximum in maxima if maximum is not None]
        async with granted(
            self._pool,
            self._request,
            model=self._name,
            max_output_tokens=max(stated) if len(stated) == len(maxima) else None,
        ) as grant:
            assert grant.provider is not None
            self._asked = grant.provider
            yield self._left[grant.provider].model, grant

    async def failed(self, error: ModelError) -> None:
        """Record that the call failed; raise if no model is left."""
        if self._asked is None:  # Nobody was asked, because there is nobody to wait for.
            raise error
        self._failures[self._asked] = error
        if isinstance(error, ModelRateLimitedError) and not is_too_large(error):
            # It is paused now, so the pool takes another, or waits for whichever is back first.
            delay = self._waits.delay_seconds(
                pause=min(
                    member.limiter.statistics().paused_seconds for member in self._left.values()
                ),
                now=trio.current_time(),
                deadline=trio.current_effective_deadline(),
            )
            if delay is None:
                raise self._no_answer() from error
            await trio.sleep(delay)
            return
        del self._left[self._asked]
        if not self._left:
            raise self._no_answer() from error
        self._pool = ProviderPool([member.limiter for member in self._left.values()])

    def _no_answer(self) -> ModelError:
        """Return the error that says why each model gave no answer."""
        failures = list(self._failures.values())
        kinds = {type(failure) for failure in failures}
        retry_after = [failure.retry_after for failure in failures if failure.retry_after]
        return model_error(
            kinds.pop() if len(kinds) == 1 else ModelError,
            f"got no answer: {'; '.join(map(str, failures))}",
            model=self._name,
            status_code=failures[-1].status_code,
            headers=failures[-1].headers,
            body=failures[-1].body,
            retry_after=min(retry_after, default=None),
        )


def _takes_files(model: CalledModel, request: ModelRequest) -> bool:
    try:
        model.refuse_files(request)
    except ModelFileError:
        return False
    return True


# Members ----------------------------------------------------------------------------------------


@attrs.frozen
class _Member:
    """A model of the chain."""

    limiter: Limiter
    model: CalledModel
    given: Model
    """The model as given, which may be wrapped."""


def _member(entry: FallbackEntry) -> _Member:
    limiter, model = entry if isinstance(entry, tuple) else (None, entry)
    own = getattr(model, "limiter", None)
    if limiter is not None and own is not None and own is not limiter:
        raise ValueError(
            f"{model!r} is behind {limiter!r} and has another limiter itself; give it one of "
            "the two"
        )
    limiter = own if limiter is None else limiter
    if not isinstance(limiter, Limiter):
        raise TypeError(
            f"{model!r} has no limiter, which would know how it does; give it limiter=, or write "
            "(limiter, model)"
        )
    called = model if isinstance(model, CalledModel) else _Foreign(model)
    return _Member(limiter, called, model)


class _Foreign(CalledModel):
    """Somebody else's model, whose errors don't mention models."""

    def __init__(self, model: Model) -> None:
        super().__init__(str(getattr(model, "name", type(model).__name__)))
        self._model = model

    async def _ask(self, request: ModelRequest) -> Answer:
        with self._errors_named():
            return Answer(await self._model.complete(request))

    @asynccontextmanager
    @enable_ki_protection
    async def _open(self, request: ModelRequest) -> AsyncGenerator[AnswerStream]:
        async with AsyncExitStack() as stack:
            with self._errors_named():
                stream = await stack.enter_async_context(self._model.stream(request))
                first = await anext(stream)
            with Begun(first, stream) as begun:
                yield begun

    @contextmanager
    def _errors_named(self) -> Generator[None]:
        try:
            yield
        except HarnessError:
            raise
        except Exception as error:
            raise _failure(error, self.name) from error


def _failure(error: Exception, model: str) -> ModelError:
    """Return an error of any kind as what it means to a chain."""
    what = f"failed: {error_in_words(error)}"
    if is_rate_limit(error):
        seconds = retry_after_seconds(error, now=time.time())
        return model_error(
            ModelRateLimitedError, what, model=model, status_code=429, retry_after=seconds
        )
    return model_error(ModelError, what, model=model)
