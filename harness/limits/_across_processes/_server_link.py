"""Define what keeping state on a Redis server takes of a client: three methods."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

import trio

from harness._words import error_in_words

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
    except trio.TooSlowError:
        raise TimeoutError(f"no answer for {CALL_SECONDS:g} s") from None


def reason_in_words(error: BaseException) -> str:
    """Return an error in words, with its cause, which may be all that says what is wrong."""
    words = error_in_words(error).rstrip(".")
    return words if error.__cause__ is None else f"{words} ({error_in_words(error.__cause__)})"
