"""Serve one HTTP/1.1 connection with h11.

It parses and writes HTTP and decides nothing. A connection is idle between requests, and busy from
a request's last byte to its answer's last byte. While an answer is on its way, reading goes on, so
that a client that leaves is noticed, and what it sends ahead is kept.
"""

from __future__ import annotations

import math
import socket
import struct
import sys
from collections.abc import Awaitable
from typing import TypeVar

import attrs
import h11
import trio

from harness.testing.provider._core import Core, Incoming
from harness.testing.provider._dialect import UnreadableRequest
from harness.testing.provider._http_reply import HttpReply

T = TypeVar("T")

MAX_HEADER_BYTES = 32 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024
IDLE_SECONDS = 120.0
"""A connection without a complete request for this long is closed."""

_RECEIVE_BYTES = 64 * 1024
_DRAIN_SECONDS = 0.5
_LINGER_FOR_NO_TIME = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)


class _ClientGone(Exception):
    """The client closed the connection while it was owed an answer."""


@attrs.define(eq=False)
class HttpConnection:
    """One connection; also how the core waits while the client is there."""

    core: Core
    stream: trio.SocketStream
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    busy: bool = attrs.field(default=False, init=False)
    closing: bool = attrs.field(default=False, init=False)
    """Whether to end instead of going on to the next request."""
    _http: h11.Connection = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)

    async def run(self) -> None:
        """Answer one request after the other."""
        tally = self.core.tally
        try:
            while not self.closing:
                self.scope.deadline = trio.current_time() + IDLE_SECONDS
                try:
                    incoming = await self._receive_request()
                except UnreadableRequest as refused:
                    await self._send_refusal(refused)
                    return
                if incoming is None:
                    return
                self.scope.deadline = math.inf
                self.busy = True
                tally.begin()
                try:
                    reply = await self.core.exchange(incoming, self)
                    await self._send(reply, method=incoming.method)
                except (trio.BrokenResourceError, _ClientGone):
                    tally.clients_gone += 1
                    return
                finally:
                    tally.in_flight -= 1
                    self.busy = False
                if reply.ending != "whole":
                    return
                if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                    return
                self._http.start_next_cycle()
        except trio.BrokenResourceError:
            return  # It broke between two requests, or during a refusal.

    async def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``, or raise `_ClientGone` when the client goes."""
        with trio.move_on_after(seconds):
            await self._until_gone()

    async def wait_for(self, answer: Awaitable[T]) -> T:
        """Wait for the test's answer, or raise `_ClientGone` when the client goes."""
        result: list[T] = []
        error: Exception | None = None
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                try:
                    await self._until_gone()
                except (trio.BrokenResourceError, _ClientGone):
                    nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            try:
                result.append(await answer)
            except Exception as raised:  # Raised again below, outside the nursery's group.
                error = raised
            nursery.cancel_scope.cancel()
        if error is not None:
            raise error
        if not result:
            raise _ClientGone
        return result[0]

    async def _until_gone(self) -> None:
        """Wait until the client closes the connection, keeping what it sends meanwhile."""
        kept = 0
        while kept < MAX_HEADER_BYTES:
            received = await self.stream.receive_some(_RECEIVE_BYTES)
            if not received:
                raise _ClientGone
            kept += len(received)
            self._http.receive_data(received)
        await trio.sleep_forever()  # It sends too much to go on reading, and is certainly there.

    async def _receive_request(self) -> Incoming | None:
        """Return the next request, or ``None`` if the client closed the connection."""
        http = self._http
        request: h11.Request | None = None
        body: list[bytes] = []
        size = 0
        closed = False
        while True:
            try:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    if request is not None and http.they_are_waiting_for_100_continue:
                        response = h11.InformationalResponse(status_code=100, headers=[])
                        await self.stream.send_all(http.send(response) or b"")
                    received = await self.stream.receive_some(_RECEIVE_BYTES)
                    http.receive_data(received)
                    closed = not received
                    continue
            except h11.RemoteProtocolError as error:
                if closed:
                    return None  # In the middle of a request; nobody is left to tell.
                status = error.error_status_hint
                message = f"this is not HTTP/1.1: {error}"
                raise UnreadableRequest(message, status=status) from error
            if isinstance(event, h11.Request):
                request = event
                announced = _announced_bytes(request)
                if announced > MAX_BODY_BYTES:
                    raise UnreadableRequest(_too_large(announced), status=413)
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > MAX_BODY_BYTES:
                    raise UnreadableRequest(_too_large(size), status=413)
                body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                return Incoming(
                    method=request.method.decode("ascii"),
                    path=request.target.decode("latin-1"),
                    headers={
                        name.decode("ascii"): value.decode("latin-1")
                        for name, value in request.headers
                    },
                    content=b"".join(body),
                )
            else:
                return None  # ConnectionClosed.

    async def _send(self, reply: HttpReply, *, method: str) -> None:
        http = self._http
        chunks: list[bytes] = []
        pieces = reply.pieces
        if reply.head_sent:
            headers = list(reply.headers)
            if reply.content_length is None:
                headers.append(("transfer-encoding", "chunked"))
            else:
                headers.append(("content-length", str(reply.content_length)))
            if method == "HEAD":
                pieces = ()
            response = h11.Response(status_code=reply.status, headers=headers)
            chunks.append(http.send(response) or b"")
        gap = self.core.fates.faults.event_gap_seconds
        for index, piece in enumerate(pieces):
            if gap and index:
                await self.stream.send_all(b"".join(chunks))
                chunks.clear()
                await self.sleep(gap)
            chunks.append(http.send(h11.Data(data=piece)) or b"")
        if reply.ending == "whole":
            chunks.append(http.send(h11.EndOfMessage()) or b"")
        await self.stream.send_all(b"".join(chunks))
        if reply.ending == "cut":
            if not reply.head_sent:
                _reset_on_close(self.stream)
        elif reply.ending == "hang":
            self.busy = False  # Closing the server needn't wait for this one.
            if not self.closing:
                await self._until_gone()
        else:
            self.core.tally.answered += reply.accepted

    async def _send_refusal(self, refused: UnreadableRequest) -> None:
        """Say what was wrong, and close so that the client still gets to read it."""
        reply = self.core.refuse("", refused)
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        reply = attrs.evolve(reply, headers=[*reply.headers, ("connection", "close")])
        await self._send(reply, method="")
        # Closing with bytes unread makes the system throw away what was just sent.
        await self.stream.send_eof()
        with trio.move_on_after(_DRAIN_SECONDS):
            while await self.stream.receive_some(_RECEIVE_BYTES):
                pass


def _announced_bytes(request: h11.Request) -> int:
    for name, value in request.headers:
        if name == b"content-length":
            return int(value)  # h11 has checked that it is a number.
    return 0


def _too_large(size: int) -> str:
    return f"the body has {size} bytes or more; at most {MAX_BODY_BYTES} are read"


def _reset_on_close(stream: trio.SocketStream) -> None:
    """Make closing send a reset: the client sees an error where it expected an answer."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_FOR_NO_TIME)
