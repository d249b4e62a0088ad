"""Define what an agent needs from a model: the protocol of every model in this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from harness.models._messages import ModelRequest, ModelResponse

ModelStream: TypeAlias = AsyncIterator[str | ModelResponse]
"""Pieces of the text as they come and, last, the whole as one `ModelResponse`."""


class Model(Protocol):
    """Anything that answers a `ModelRequest`. Shared by any number of runs at once.

    One that makes its callers wait before it sends anything calls `request_sent` when it does, so
    that agents can tell which messages it was told.
    """

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the whole answer.

        Args:
          request: What the model is asked.

        Raises:
          ModelError: if there is no usable answer.

        Checkpoint: always.

        Cancellation: the request is abandoned, and its connection isn't used again.
        """
        ...

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[ModelStream]:
        """Open the answer as a stream: text as it comes and, last, one `ModelResponse`.

        Leaving the block closes the stream, whether it was read to its end or not.

        Args:
          request: What the model is asked.

        Raises:
          ModelError: if there is no answer; while it is read, if it breaks off.

        Checkpoint: on entry, and for each piece.

        Cancellation: the connection is closed, and not used again.
        """
        ...
