"""Hold an answer as it goes over the wire, whole or spoilt.

An `HttpReply` says which bytes are sent and how it ends; sending is up to the shell, with sockets
or without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs

from harness.testing.provider._dialect import Headers
from harness.testing.provider._fates import RequestFate

# A cut or hang this early in an answer comes before its first byte.
_BEFORE_THE_HEAD = 0.4


@attrs.frozen(kw_only=True)
class HttpReply:
    """What is sent for one request."""

    status: int
    headers: Headers
    pieces: Sequence[bytes]
    """The body: one piece, or one for each event of a stream."""
    content_length: int | None
    """The length announced; ``None`` for a stream."""
    head_sent: bool = True
    """Whether the status and headers are sent at all."""
    ending: Literal["whole", "cut", "hang"] = "whole"
    accepted: bool = False
    """Whether it answers a request that was accepted."""


def json_reply(
    status: int, headers: Headers, content: bytes, *, accepted: bool = False
) -> HttpReply:
    """Return a reply whose body is ``content``, in JSON."""
    return HttpReply(
        status=status,
        headers=[("content-type", "application/json"), *headers],
        pieces=(content,),
        content_length=len(content),
        accepted=accepted,
    )


def stream_reply(headers: Headers, events: Sequence[bytes]) -> HttpReply:
    """Return a reply that streams ``events``."""
    return HttpReply(
        status=200,
        headers=[
            ("content-type", "text/event-stream; charset=utf-8"),
            ("cache-control", "no-cache"),
            *headers,
        ],
        pieces=events,
        content_length=None,
        accepted=True,
    )


def spoil(reply: HttpReply, fate: RequestFate) -> HttpReply:
    """Return ``reply``, spoilt as its fate says."""
    if fate.kind == "malformed":
        return _malformed(reply, fate.where)
    if fate.kind not in ("cut", "hang"):
        return reply
    ending: Literal["cut", "hang"] = "cut" if fate.kind == "cut" else "hang"
    if fate.where < _BEFORE_THE_HEAD:
        return attrs.evolve(reply, pieces=(), head_sent=False, ending=ending)
    share = (fate.where - _BEFORE_THE_HEAD) / (1 - _BEFORE_THE_HEAD)
    if reply.content_length is None:
        pieces = reply.pieces[: int(share * len(reply.pieces))]
    else:
        pieces = (reply.pieces[0][: int(share * reply.content_length)],)
    return attrs.evolve(reply, pieces=pieces, ending=ending)


def _malformed(reply: HttpReply, where: float) -> HttpReply:
    if reply.content_length is not None:
        # An object without its closing brace is never JSON.
        content = reply.pieces[0][: int(where * reply.content_length)]
        return attrs.evolve(reply, pieces=(content,), content_length=len(content))
    pieces = list(reply.pieces)
    # Not the last event: it may be the one that isn't JSON even when all is well.
    index = int(where * (len(pieces) - 1))
    head, mark, payload = pieces[index].partition(b"data: ")
    pieces[index] = head + mark + payload[: len(payload) // 2] + b"\n\n"
    return attrs.evolve(reply, pieces=pieces)
