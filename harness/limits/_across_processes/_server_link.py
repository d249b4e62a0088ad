"""Define what keeping state on a Redis server takes of a client: three methods."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

import trio

CALL_SECONDS = 2.0
"""A server that takes longer for an answer can't be used."""


class ServerLink(Protocol):
    """A connection to a Redis server or cluster, made on entry and used by one task."""

    async def __aenter__(self) -> Self:
        """Connect, or raise."""
        ...

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Close it."""
        ...

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[str]) -> list[str]:
        """Run a script once, whatever happens: never again by itself after an error.

        A cancelled call may have run or not, and so may one that raised.
        """
        ...


async def run_in_time(
    link: ServerLink, script: str, keys: Sequence[str], arguments: Sequence[str]
) -> list[str]:
    """Run a script once, or raise `TimeoutError` if there is no answer in time."""
    try:
        with trio.fail_after(CALL_SECONDS):
            return await link.run(script, keys, arguments)
    except trio.TooSlowError as error:
        raise TimeoutError(f"no answer for {CALL_SECONDS:g} s") from error
