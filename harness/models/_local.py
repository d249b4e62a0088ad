"""Run a model in this process: llama.cpp on a GGUF file, each answer in a worker thread.

The library computes in the thread that calls it and releases the GIL meanwhile, so trio's tasks go
on running. It hands out each token in that thread, and asks there whether to continue: that is
where a cancelled answer ends.

The library always listens on a port of the loopback address. Nothing here uses it, so it gets a key
that nobody knows.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from harness._arguments import check_count, says_near_options
from harness._async_with import AsyncWithOnly
from harness._outside_trio import refuse_outside_trio
from harness._words import error_in_words
from harness.errors import ModelError, ModelNotOpenError, ModelReplyError
from harness.limits import JointLimiter, Limiter
from harness.models._answers import Answer, AnswerStream
from harness.models._called import CalledModel
from harness.models._dialect import (
    CallSettings,
    Dialect,
    ReportedError,
    UnreadableReply,
    inner,
    message_of,
)
from harness.models._failures import status_error_kind
from harness.models._file import File
from harness.models._messages import ModelRequest, ModelResponse
from harness.models._openai_chat import OpenAIChat
from harness.models._options import with_options
from harness.models._price import Price
from harness.models._sending import request_sent
from harness.models._thread_events import ThreadEvents

# As Any: it is untyped, and its names are made where checkers don't look.
xllamacpp: Any = import_module("xllamacpp")

# Only log what it can't do; the rest would clutter the user's screen.
_QUIET = -1


@says_near_options
class LocalModel(CalledModel, AsyncWithOnly):
    """A model from a GGUF file, computed in this process; opened with ``async with``.

    Args:
      path: The GGUF file.
      name: Its name, in messages; by default the file's.
      threads: How many threads compute one token. On a machine with other work, 1 is often fastest.
      concurrent: How many answers are computed at once; further calls wait. They share the
        processor, and each needs memory for its context.
      context_tokens: How many tokens a request and its answer may have together.
      limiter: Further limits that calls keep to.
      price: What it costs, if budgets should count that.
      max_output_tokens: The largest output of a call.
      temperature: How random the answers are; by default the library decides.
      enforce_schema: Whether an answer that must have a form is held to it while it is written.
      options: More fields of the request, named as in OpenAI's chat completions, such as
        ``{"seed": 3}``.

    Raises:
      TypeError, ValueError: if an argument isn't what it should be.
    """

    _written = "LocalModel(...) as model"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        threads: int = 1,
        concurrent: int = 1,
        context_tokens: int = 4_096,
        limiter: Limiter | JointLimiter | None = None,
        price: Price | None = None,
        max_output_tokens: int = 1_024,
        temperature: float | None = None,
        enforce_schema: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        for parameter, value in [
            ("threads", threads),
            ("concurrent", concurrent),
            ("context_tokens", context_tokens),
            ("max_output_tokens", max_output_tokens),
        ]:
            check_count(f"LocalModel({parameter}=...)", value, advice="give a number above 0")
        self.path: Path = Path(path)
        super().__init__(
            name or self.path.stem,
            limiter=limiter,
            price=price,
            max_output_tokens=max_output_tokens,
        )
        self.threads: int = threads
        self.concurrent: int = concurrent
        self.context_tokens: int | None = context_tokens
        self._places_tokens = context_tokens * concurrent
        self.dialect: Dialect = OpenAIChat()
        self._settings = CallSettings(
            model=self.name,
            max_output_tokens=max_output_tokens,
            temperature=temperature,
            enforce_schema=enforce_schema,
            is_compatible=True,
        )
        self._options: Mapping[str, Any] = MappingProxyType(dict(options or {}))
        self._server: Any = None
        self._places: trio.CapacityLimiter | None = None

    # Opening -----------------------------------------------------------------------------------

    async def __aenter__(self) -> LocalModel:
        """Load the file, in a worker thread.

        Raises:
          ModelError: if there is no such file, or it can't be loaded.
          ModelNotOpenError: if it is open already.

        Checkpoint: always.

        Cancellation: takes effect once the file is loaded; loading can't be cut short.
        """
        if self._server is not None:
            raise ModelNotOpenError(
                f"model {self.name!r} is open already; open it once, around all that use it"
            )
        refuse_outside_trio(f"model {self.name!r} was opened")
        self._server = await trio.to_thread.run_sync(self._load)
        self._places = trio.CapacityLimiter(self.concurrent)
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.CancelScope(shield=True):  # Takes a moment: its threads have ended.
            await trio.to_thread.run_sync(self._unload)

    def _load(self) -> Any:
        if not self.path.is_file():
            raise self._error(ModelError, f"can't be loaded: there is no file {str(self.path)!r}")
        params = xllamacpp.CommonParams()
        params.model.path = str(self.path)
        params.n_parallel = self.concurrent
        params.n_ctx = self._places_tokens
        params.cpuparams.n_threads = self.threads
        params.cpuparams_batch.n_threads = self.threads
        params.api_keys = [secrets.token_urlsafe()]
        params.verbosity = _QUIET
        try:
            return xllamacpp.Server(params)
        except Exception as error:
            raise self._error(
                ModelError, f"can't be loaded from {str(self.path)!r}: {error_in_words(error)}"
            ) from error

    def _unload(self) -> None:
        self._server = None

    def refuse_unless_ready(self) -> None:
        """Raise if it is not open."""
        if self._server is None:
            raise ModelNotOpenError(
                f"model {self.name!r} is not open; use it inside `async with "
                f"LocalModel({str(self.path)!r}) as model:`, opened once for all runs"
            )

    def why_not(self, file: File) -> str | None:
        """Return what it takes instead of a file: only text."""
        return None if file.is_text and file.data is not None else "only text"

    # Asking ------------------------------------------------------------------------------------

    @enable_ki_protection
    async def _ask(self, request: ModelRequest) -> Answer:
        async with self._open(request) as stream:
            async for piece in stream:
                if isinstance(piece, ModelResponse):
                    return Answer(piece)
        raise AssertionError("a stream ends with the whole, or raises")

    @asynccontextmanager
    @enable_ki_protection
    async def _open(self, request: ModelRequest) -> AsyncGenerator[AnswerStream]:
        self.refuse_unless_ready()
        assert self._places is not None
        body = with_options(
            {**self.dialect.body(request, self._settings), **self.dialect.streaming},
            self._options,
            self.name,
        )
        caller = object()  # A task may hold two places: a stream, and a call inside it.
        _waiting_for = f"a place in model {self.name!r}"
        await self._places.acquire_on_behalf_of(caller)
        try:
            request_sent()
            stream = _LocalStream(self, functools.partial(self._compute, body))
            try:
                yield stream
            finally:
                await stream.aclose()
        finally:
            self._places.release_on_behalf_of(caller)

    def _compute(self, body: dict[str, Any], take: Callable[[Any], bool]) -> None:
        self._server.handle_chat_completions(body, take)

    @contextmanager
    def errors_named(self) -> Generator[None]:
        """Make errors in the library name this model and the run that asked."""
        try:
            yield
        except UnreadableReply as error:
            raise self._error(ModelReplyError, str(error)) from error
        except ReportedError as error:
            status = _status_of(error.body)
            raise self._error(
                status_error_kind(status, error.body),
                f"reported an error: {message_of(error.body)}",
                status_code=status,
                body=error.body,
            ) from error
        except Exception as error:
            raise self._error(ModelError, f"could not answer: {error_in_words(error)}") from error


def _status_of(body: object) -> int | None:
    code = inner(inner(body, "error"), "code")
    return code if isinstance(code, int) else None


class _LocalStream(AnswerStream):
    """An answer computed in a thread."""

    __slots__ = ("_ended", "_events", "_model", "_reader")

    def __init__(self, model: LocalModel, compute: Callable[[Callable[[Any], bool]], None]) -> None:
        super().__init__()
        self._model = model
        self._reader = model.dialect.reader()
        self._events = ThreadEvents(compute, f"model {model.name}")
        self._ended = False

    async def __anext__(self) -> str | ModelResponse:
        _waiting_for = "the next token of an answer"
        if self._ended:
            raise StopAsyncIteration
        with self._model.errors_named():
            while True:  # Ends when the events do.
                try:
                    event = await self._events.receive()
                except trio.EndOfChannel:
                    self._ended = True
                    self._reader.take_end()
                    if not self._reader.done:
                        raise UnreadableReply("ended before its answer was whole") from None
                    return self._reader.whole()
                piece = self._reader.take(event)
                self.usage = self._reader.usage
                if piece:
                    return piece

    async def aclose(self) -> None:
        """Stop the thread, and wait until it has ended."""
        await self._events.aclose()
