"""Run a server in a task beside a block, which doesn't notice it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from harness.runs import start_soon


@asynccontextmanager
async def beside(serve: Callable[[], Awaitable[None]], name: str) -> AsyncGenerator[None, None]:
    """Run ``serve``, which raises nothing, until the block is left; its error comes out unchanged.

    Args:
      serve: The server. It belongs to no run, so the run around the block doesn't wait for it.
      name: The task's name, for dumps.

    Checkpoint: on exit.

    Cancellation: ends the server.
    """
    error: BaseException | None = None
    try:
        try:
            async with trio.open_nursery() as nursery:
                start_soon(nursery, serve, run=None, name=name)
                try:
                    yield
                except BaseException as raised:
                    error = raised
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup:  # A cancel from outside, of the server too.
            if error is None:
                raise
        if error is not None:
            raise error
    finally:
        del error
