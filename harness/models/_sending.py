"""Tell whoever asks a model the moment at which the request goes out, and not before.

Until then the call waits: for a limiter, a budget, a connection, a place. A call that is cut short
there has told the model nothing, so what was to be said with it can still be taken back. A model
says when it no longer can.

The listener belongs to the call: a context variable around it, so that it reaches a model through
any others in between, and through their tasks, and nobody else who asks a model meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_listener: ContextVar[Callable[[], None] | None] = ContextVar(
    "harness.models.sending", default=None
)


@contextmanager
def heard_when_sent(listener: Callable[[], None]) -> Generator[None]:
    """Call ``listener`` when a request that is made inside goes out; again for each retry."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def request_sent() -> None:
    """Say that the request goes out now. For a `Model` of your own: call it just before.

    Without it, a message that was injected into an agent counts as delivered only when your model
    has answered.
    """
    listener = _listener.get()
    if listener is not None:
        listener()


async def hear_of_sending(request: Any) -> None:
    """Be the hook for requests of the providers' HTTP library, which connects before it sends."""
    listener = _listener.get()
    if listener is None:
        return

    async def trace(event: str, _: object) -> None:
        if event.endswith("send_request_headers.started"):
            listener()

    request.extensions["trace"] = trace
