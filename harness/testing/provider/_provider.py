"""Open a simulated model provider: a `Provider` that lives as long as its block."""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any, TypeVar

import attrs
import trio

from harness._outside_trio import refuse_outside_trio
from harness.testing.provider import _sockets
from harness.testing.provider._answers import AnswerFunction
from harness.testing.provider._batches import Batches
from harness.testing.provider._core import Core, Incoming
from harness.testing.provider._counters import ProviderStatistics
from harness.testing.provider._fates import Faults, RequestFates
from harness.testing.provider._http_reply import HttpReply
from harness.testing.provider._limits import Judged, build_limits

T = TypeVar("T")

# Without sockets, the calendar always starts here, so that headers with dates repeat from run to
# run.
_VIRTUAL_EPOCH_SECONDS = 1_767_225_600.0  # 2026-01-01T00:00:00Z


@attrs.frozen(kw_only=True)
class ProviderReply:
    """What came back from `Provider.request`."""

    status: int
    """The status."""

    headers: Mapping[str, str]
    """The headers, names in lower case."""

    body: Any
    """The body: the value of its JSON, or its text if it isn't JSON (a stream, or malformed)."""

    content: bytes
    """The body's bytes."""


@attrs.define(eq=False, kw_only=True)
class Provider:
    """A simulated provider, open until the block of `open_provider` ends."""

    _core: Core = attrs.field(alias="core")
    _address: tuple[str, int] | None = attrs.field(default=None, alias="address")
    _scopes: set[trio.CancelScope] = attrs.field(factory=set[trio.CancelScope], init=False)
    _closed: bool = attrs.field(default=False, init=False)

    @property
    def host(self) -> str:
        """The loopback address it listens on.

        Raises:
          RuntimeError: if it was opened with ``http=False``.
        """
        return self._listening_address()[0]

    @property
    def port(self) -> int:
        """The port it listens on.

        Raises:
          RuntimeError: if it was opened with ``http=False``.
        """
        return self._listening_address()[1]

    @property
    def base_url(self) -> str:
        """Where clients find it, without a version.

        Give it to ``AsyncAnthropic(base_url=...)`` as it is. ``AsyncOpenAI`` accepts it with or
        without ``/v1`` at the end.

        Raises:
          RuntimeError: if it was opened with ``http=False``.
        """
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def statistics(self) -> ProviderStatistics:
        """Return what it has counted so far."""
        return self._core.tally.snapshot()

    async def request(
        self, path: str, body: object, *, headers: Mapping[str, str] | None = None
    ) -> ProviderReply:
        """Send a request without a socket.

        It is judged, answered and counted just like one that comes over HTTP.

        Args:
          path: Where to, such as ``/v1/chat/completions``.
          body: What to send, as JSON; bytes are sent as they are.
          headers: What the answer function sees as the request's headers.

        Returns:
          The reply, even if it is an error.

        Raises:
          trio.BrokenResourceError: if a fault cuts the connection, or the provider is
            closed before it has answered.
          trio.ClosedResourceError: if the provider was closed before.

        Checkpoint: always.

        Cancellation: the provider may have accepted, counted and charged the request.
        """
        if self._closed:
            raise trio.ClosedResourceError("the simulated provider's block has ended")
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        incoming = Incoming(
            method="POST",
            path=path,
            headers={name.lower(): value for name, value in (headers or {}).items()},
            content=content,
        )
        await trio.lowlevel.checkpoint()
        tally = self._core.tally
        tally.begin()
        scope = trio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                reply = await self._core.exchange(incoming, _PATIENCE)
                return await self._receive(reply)
            raise trio.BrokenResourceError("the simulated provider was closed during this request")
        except trio.Cancelled:
            tally.clients_gone += 1
            raise
        finally:
            self._scopes.discard(scope)
            tally.in_flight -= 1

    def close(self) -> None:
        """Refuse further requests without sockets, and break those in progress."""
        self._closed = True
        for scope in self._scopes:
            scope.cancel()

    async def _receive(self, reply: HttpReply) -> ProviderReply:
        gap = self._core.fates.faults.event_gap_seconds
        if gap and len(reply.pieces) > 1:
            await trio.sleep(gap * (len(reply.pieces) - 1))
        if reply.ending == "hang":
            await trio.sleep_forever()
        if reply.ending == "cut":
            raise trio.BrokenResourceError("the simulated provider cut the connection (a fault)")
        self._core.tally.answered += reply.accepted
        content = b"".join(reply.pieces)
        return ProviderReply(
            status=reply.status,
            headers=dict(reply.headers),
            body=_decoded(content),
            content=content,
        )

    def _listening_address(self) -> tuple[str, int]:
        if self._address is None:
            raise RuntimeError(
                "this provider was opened with http=False and has no address; "
                "call its request(), or open it with http=True"
            )
        return self._address


@asynccontextmanager
async def open_provider(
    *,
    answer: AnswerFunction,
    requests_per_minute: float | None = None,
    tokens_per_minute: float | None = None,
    input_tokens_per_minute: float | None = None,
    output_tokens_per_minute: float | None = None,
    requests_per_day: float | None = None,
    judged: Judged = "bucket",
    faults: Faults | None = None,
    batch_seconds: float = 0.0,
    http: bool = True,
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncGenerator[Provider]:
    """Open a provider that speaks OpenAI's and Anthropic's APIs and enforces limits.

    Args:
      answer: Called with each accepted `ProviderRequest`; returns a str, an `Answer` or an
        `ErrorAnswer`, and may be async. What it raises ends the block: it is a mistake in the test.
      requests_per_minute: Most requests a minute; ``None`` for no limit, as below.
      tokens_per_minute: Most tokens a minute, questions and answers together. OpenAI's
        dialects count the requested maximum if there is one, Anthropic's doesn't.
      input_tokens_per_minute: Most tokens of questions a minute.
      output_tokens_per_minute: Most tokens of answers a minute.
      requests_per_day: Most requests in each 24 hours since the opening.
      judged: How the limits per minute are judged: ``"bucket"`` refills continuously, ``"minute"``
        counts from zero each minute since the opening, ``"second"`` does so too but spreads
        requests over the minute's seconds.
      faults: What goes wrong on purpose, and how long answers take.
      batch_seconds: How long the batches of both providers' batch APIs take. Their requests are
        answered when the batch comes in, and count against no limit.
      http: Whether to listen on a socket, for which the clock must be a real one, or
        jump only after a moment: ``MockClock(autojump_threshold=0.01)``.
        Without one, `Provider.request` is the only way in, and any clock will do.
      host: A loopback address.
      port: The port; 0 for any free one.

    Raises:
      TypeError: if ``answer`` can't be called, or a limit isn't a number.
      ValueError: if ``host`` isn't a loopback address, or a limit or ``judged`` isn't allowed.
      ImportError: if ``http`` is true and h11 is missing; ``trio-harness[provider]`` installs it.
      OSError: if the port is taken.

    Checkpoint: with ``http``, on entry and exit; without, never.

    Cancellation: every connection is closed, and no task is left.
    """
    if not callable(answer):
        raise TypeError(f"answer must be a function from request to text, not {answer!r}")
    address = loopback_address(host)
    refuse_outside_trio("open_provider() was called")
    core = Core(
        answer=answer,
        limits=build_limits(
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            input_tokens_per_minute=input_tokens_per_minute,
            output_tokens_per_minute=output_tokens_per_minute,
            requests_per_day=requests_per_day,
            judged=judged,
        ),
        fates=RequestFates(faults or Faults()),
        batches=Batches(seconds=batch_seconds),
        opened_at=trio.current_time(),
        epoch_seconds=time.time() if http else _VIRTUAL_EPOCH_SECONDS,
    )
    server = _sockets.open_server(core, host=address, port=port) if http else nullcontext()
    async with server as bound:
        provider = Provider(core=core, address=bound)
        try:
            yield provider
        finally:
            provider.close()


def loopback_address(host: str) -> str:
    """Return the loopback address that ``host`` stands for.

    Raises:
      ValueError: if it isn't one.
    """
    if host == "localhost":
        return "127.0.0.1"
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ValueError(
            f"the simulated provider can't listen on {host!r}, only on a loopback address: "
            "it checks nobody's key; use '127.0.0.1'"
        )
    return host


class _PlainPatience:
    """Waits without a connection to watch."""

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def wait_for(self, answer: Awaitable[T]) -> T:
        return await answer


_PATIENCE = _PlainPatience()


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode("utf-8", "replace")
