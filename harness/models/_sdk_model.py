"""Ask a model through its provider's library: opened once, used by any number of runs.

The library's own retries are off. It would retry without the limiter, and hide from the limiter
what the provider says.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness._arguments import check_count
from harness._async_with import AsyncWithOnly
from harness._outside_trio import refuse_outside_trio
from harness.errors import MissingApiKeyError, ModelNotOpenError
from harness.limits import JointLimiter, Limiter
from harness.models._answers import Answer, AnswerStream
from harness.models._batch_apis import BatchApi
from harness.models._called import CalledModel
from harness.models._clients import SharedClients
from harness.models._dialect import CallSettings, Dialect, EventReader, UnreadableReply
from harness.models._events import EventDecoder, JsonDecoder
from harness.models._file import File
from harness.models._file_refusals import check_media_types, fits
from harness.models._grant import members_of
from harness.models._messages import Message, ModelRequest, ModelResponse
from harness.models._options import with_options
from harness.models._price import Price
from harness.models._sdk_failures import SdkFailures
from harness.models._sending import hear_of_sending
from harness.models._text_calls import HeldText, with_calls_of_text

SelfT = TypeVar("SelfT", bound="SdkModel")

TIMEOUT_SECONDS = 600.0
"""Time without a single byte; a scope around the call ends it earlier."""
CONNECT_TIMEOUT_SECONDS = 30.0

_CLOSING_SECONDS = 5.0
# For the last bytes after an answer has said it is complete, so that its connection can be reused.
_REST_SECONDS = 1.0
# A server on this machine hardly ever needs a key, but the libraries always do.
_NO_KEY = "none"


class SdkModel(CalledModel, AsyncWithOnly):
    """What the models of all providers with a library have in common."""

    _provider: ClassVar[str]
    _sdk: ClassVar[Any]
    _client_type: ClassVar[Callable[..., Any]]
    _key_variable: ClassVar[str]
    _address_variable: ClassVar[str]
    _dialect: Dialect

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        limiter: Limiter | JointLimiter | None = None,
        price: Price | None = None,
        max_output_tokens: int | None = None,
        context_tokens: int | None = None,
        temperature: float | None = None,
        enforce_schema: bool = True,
        cache_prompts: bool = False,
        files: Iterable[str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        for option, count, advice in (
            ("max_output_tokens", max_output_tokens, "leave it out for no limit"),
            ("context_tokens", context_tokens, "leave it out if you don't know"),
        ):
            if count is not None:
                check_count(f"{type(self).__name__}({option}=...)", count, advice=advice)
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(
                f"{type(self).__name__}(options=...) takes a mapping of what its library's method "
                f"takes, such as {{'seed': 7}}, not {options!r}"
            )
        super().__init__(
            name,
            provider=self._provider,
            limiter=limiter,
            price=price,
            max_output_tokens=max_output_tokens,
        )
        for parameter, value in [("base_url", base_url), ("api_key", api_key)]:
            if value is not None and not isinstance(value, str):
                raise TypeError(  # Its value may be a key.
                    f"{parameter} of model {name!r} is of type {type(value).__name__}, but must be "
                    "a string"
                )
        self.context_tokens: int | None = context_tokens
        self.base_url: str | None = base_url
        self._api_key = api_key
        self._options: Mapping[str, Any] = MappingProxyType(dict(options or {}))
        self._settings = CallSettings(
            model=name,
            max_output_tokens=max_output_tokens,
            temperature=temperature,
            enforce_schema=enforce_schema,
            cache_prompts=cache_prompts,
        )
        self._files = check_media_types(f"{type(self).__name__}(files=...)", files)
        self._clients: SharedClients | None = None
        self._failures: SdkFailures | None = None
        for streamed in (False, True):  # Refuses options that no request could go with.
            self._arguments(ModelRequest([Message("user", "hello")]), streamed=streamed)

    # Opening -----------------------------------------------------------------------------------

    async def __aenter__(self: SelfT) -> SelfT:
        """Open the clients. No connection is made before the first call.

        Raises:
          MissingApiKeyError: if there is no key, neither as an argument nor in the environment, or
            it has characters that can't be sent.
          ModelNotOpenError: if it is open already.
          ModelUnreachableError: if ``base_url`` isn't an address.

        Checkpoint: always.

        Cancellation: the model isn't open.
        """
        refuse_outside_trio(f"model {self.name!r} was opened")
        await trio.lowlevel.checkpoint()  # First: a cancel after opening would leave it open.
        if self._clients is not None:
            raise ModelNotOpenError(
                f"model {self.name!r} is open already; open it once, around all that use it"
            )
        key = self._find_key()
        limiters = () if self.limiter is None else members_of(self.limiter)
        places = [limiter.statistics().concurrent for limiter in limiters]
        concurrent = min((count for count in places if count is not None), default=None)
        self._failures = SdkFailures(self._sdk, model=self.name, provider=self._provider, key=key)
        with self._failures.translated():  # What is given may not be an address.
            self._clients = SharedClients(lambda: self._make_client(key), concurrent)
        address = urlsplit(str(self._clients.clients[0].base_url))
        self._settings = attrs.evolve(
            self._settings, is_compatible=self._is_compatible(), server=address.netloc
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        clients, self._clients = self._clients, None
        if clients is not None:
            await clients.close()

    def _find_key(self) -> str:
        # A key read from a file ends in a newline, which no header can carry.
        key = (self._api_key or os.environ.get(self._key_variable) or "").strip()
        if not all("!" <= letter <= "~" for letter in key):
            # Otherwise the layers beneath would complain, and quote it.
            raise self._error(
                MissingApiKeyError,
                "has a key that can't be sent: it contains a space, a newline or a character that "
                f"isn't ASCII; look at api_key= or at the environment variable "
                f"{self._key_variable}",
            )
        if key:
            return key
        address = self.base_url or os.environ.get(self._address_variable) or ""
        # The library refuses an invalid address in its own words.
        with contextlib.suppress(ValueError):
            if urlsplit(address).hostname in ("localhost", "127.0.0.1", "::1"):
                return _NO_KEY
        raise self._error(
            MissingApiKeyError,
            f"has no key: set the environment variable {self._key_variable}, or give api_key=",
        )

    def _make_client(self, key: str) -> Any:
        """Return a client of the library."""
        return self._client_type(
            api_key=key,
            base_url=self.base_url,
            max_retries=0,
            timeout=self._sdk.Timeout(TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS),
            http_client=self._sdk.DefaultAsyncHttpxClient(
                event_hooks={"request": [hear_of_sending]}
            ),
        )

    def _is_compatible(self) -> bool:
        """Return whether somebody other than the provider answers at the address."""
        return False

    def refuse_unless_ready(self) -> None:
        self._open_clients()

    @property
    def file_bytes_at_most(self) -> int:
        """How many bytes the files of a request may have together."""
        return self._dialect.files_bytes_at_most

    def why_not(self, file: File) -> str | None:
        """Return what it takes instead of a file, in words; None if it takes that."""
        if self._files is None or fits(file.media_type, self._files):
            return self._dialect.refusal(file)
        return f"only {', '.join(self._files) or 'text'}, as its files= says"

    def _open_clients(self) -> SharedClients:
        if self._clients is None:
            raise ModelNotOpenError(
                f"model {self.name!r} is not open; use it inside `async with "
                f"{type(self).__name__}({self.name!r}) as model:`, opened once for all runs"
            )
        return self._clients

    # In batches --------------------------------------------------------------------------------

    def _batch_api(self) -> BatchApi:
        """Return how its provider takes requests in batches."""
        raise NotImplementedError

    def body_in_batch(self, request: ModelRequest) -> dict[str, Any]:
        """Return a request as it is in a batch: what is sent, without what is the client's."""
        body = self._arguments(request)
        body.update(body.pop("extra_body", {}))
        for name in ("extra_headers", "extra_query", "timeout"):
            body.pop(name, None)
        return body

    # Asking ------------------------------------------------------------------------------------

    @enable_ki_protection
    async def _ask(self, request: ModelRequest) -> Answer:
        clients = self._open_clients()
        assert self._failures is not None
        _waiting_for = f"an answer of model {self.name!r}"
        with self._failures.translated():
            async with clients.lease() as client:
                raw = await self._dialect.resource(client).with_raw_response.create(
                    **self._arguments(request)
                )
            response = raw.http_response
            headers = {name.lower(): value for name, value in response.headers.items()}
            whole = self._dialect.read(json.loads(response.content), self._settings)
            if self._may_write_calls(request):
                whole = with_calls_of_text(whole, request)
            return Answer(whole, headers, response.status_code)

    @asynccontextmanager
    @enable_ki_protection
    async def _open(self, request: ModelRequest) -> AsyncGenerator[AnswerStream]:
        clients = self._open_clients()
        failures = self._failures
        assert failures is not None
        async with clients.lease() as client:
            opening = self._dialect.resource(client).with_streaming_response.create(
                **self._arguments(request, streamed=True)
            )
            _waiting_for = f"an answer of model {self.name!r}"
            with failures.translated():
                response = (await opening.__aenter__()).http_response
            reader = self._dialect.reader(self._settings)
            if "json" in response.headers.get("content-type", ""):
                reader = _WholeReader(self._dialect, self._settings)
            written_by = request if self._may_write_calls(request) else None
            stream = _EventStream(response, reader, failures, written_by)
            try:
                yield stream
            finally:
                await stream.aclose()

    def _may_write_calls(self, request: ModelRequest) -> bool:
        """Return whether the server may have left calls of tools in the text."""
        return self._settings.is_compatible and bool(request.tools)

    def _arguments(self, request: ModelRequest, *, streamed: bool = False) -> dict[str, Any]:
        arguments = self._dialect.body(request, self._settings)
        if streamed:
            arguments.update(self._dialect.streaming)
        return with_options(arguments, self._options, self.name)


class _WholeReader(EventReader):
    """Reads the answer of a server that was asked for a stream and sent one piece of JSON."""

    def __init__(self, dialect: Dialect, settings: CallSettings) -> None:
        super().__init__()
        self._dialect = dialect
        self._settings = settings
        self._response: ModelResponse | None = None

    def take(self, event: Any) -> str:
        self._response = self._dialect.read(event, self._settings)
        self.usage = self._response.usage
        self.done = True
        return self._response.content

    def whole(self) -> ModelResponse:
        assert self._response is not None
        return self._response


class _EventStream(AnswerStream):
    """An answer that arrives as events over a connection, which it owns."""

    __slots__ = (
        "_chunks",
        "_decoder",
        "_ended",
        "_failures",
        "_held",
        "_pieces",
        "_reader",
        "_request",
        "_response",
    )

    def __init__(
        self,
        response: Any,
        reader: EventReader,
        failures: SdkFailures,
        request: ModelRequest | None,
    ) -> None:
        super().__init__(
            headers={name.lower(): value for name, value in response.headers.items()},
            status=response.status_code,
        )
        self._response = response
        self._chunks: AsyncIterator[bytes] = response.aiter_bytes()
        self._decoder = JsonDecoder() if isinstance(reader, _WholeReader) else EventDecoder()
        self._reader = reader
        self._request = request
        """What was asked, if there may be calls of tools in the text."""
        self._held = HeldText()
        self._failures = failures
        self._pieces: deque[str | ModelResponse] = deque()
        self._ended = False

    async def __anext__(self) -> str | ModelResponse:
        _waiting_for = "the next piece of an answer"
        while not self._pieces:
            if self._ended:
                raise StopAsyncIteration
            with self._failures.translated():
                try:
                    await self._read()
                except BaseException:
                    self._ended = True
                    raise
            self.usage = self._reader.usage
        return self._pieces.popleft()

    async def _read(self) -> None:
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            for event in self._decoder.end():
                self._take(event)
            self._reader.take_end()
            if not self._reader.done:
                raise UnreadableReply("ended its stream before its answer was whole") from None
        else:
            for event in self._decoder.feed(chunk):
                self._take(event)
        if self._reader.done:
            self._ended = True
            whole = self._reader.whole()
            if self._request is not None:
                whole = with_calls_of_text(whole, self._request)
                rest = self._held.rest(whole.content)
                if rest:
                    self._pieces.append(rest)
            self._pieces.append(whole)

    def _take(self, event: str) -> None:
        if self._reader.done or not event.strip():  # Some servers send empty ones to keep it open.
            return
        piece = self._reader.take(event if event.startswith("[DONE]") else json.loads(event))
        if piece and self._request is not None:
            piece = self._held.take(piece)
        if piece:
            self._pieces.append(piece)

    async def aclose(self) -> None:
        """Close the connection, or return it to the pool if the answer was read to its end.

        Cancellation: it is closed all the same, within a few seconds.
        """
        with trio.CancelScope(deadline=trio.current_time() + _CLOSING_SECONDS, shield=True):
            if self._reader.done:
                with trio.move_on_after(_REST_SECONDS):
                    await self._exhaust()
            await self._response.aclose()
            # A closed connection ends the generators beneath with an error. Left alone, they would
            # be found by the garbage collector, which trio complains about.
            await self._exhaust()

    async def _exhaust(self) -> None:
        try:
            async for _ in self._chunks:
                pass
        except Exception:
            return
