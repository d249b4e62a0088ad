"""Let something outside see how far fan-outs have come, without a word from them for each item.

A fan-out that begins tells the watch of its context, if there is one, and again when it is over.
In between the watch reads off counts that the engine has anyway, whenever it likes and from any
thread. So nobody pays for a display that nobody looks at, and an item never pays for one.

Fan-outs below a watched one aren't told: there may be thousands of them, and their work is that of
an item which the watched one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol


class Counts(NamedTuple):
    """How far a fan-out has come. Not made by attrs, which shows in ``import harness``."""

    total: int | None
    """How many items there are; None if that isn't known."""

    done: int
    """Items that have ended."""

    failed: int
    """Those of them that failed or timed out."""

    in_flight: int
    """Items that have been started and have not ended."""


class Watched(Protocol):
    """A fan-out that is watched."""

    def counts(self) -> Counts:
        """Return how far it has come. May be called in any thread."""
        ...


class Watch(Protocol):
    """What watches. Called by the fan-outs, in trio's thread."""

    def begun(self, name: str, fan_out: Watched) -> None:
        """Hear that a fan-out begins."""

    def over(self, fan_out: Watched) -> None:
        """Hear that it is over; its counts are final."""


class _Nobody:
    """Watches, and shows nothing."""

    def begun(self, name: str, fan_out: Watched) -> None:
        pass

    def over(self, fan_out: Watched) -> None:
        pass


NOBODY: Watch = _Nobody()
"""Hides what is below from every watch. One is there, so nobody starts another."""

watching: ContextVar[Watch | None] = ContextVar("harness.fanout.watching", default=None)
"""What watches the fan-outs that begin in this context."""


@contextmanager
def watched_by(watch: Watch) -> Iterator[None]:
    """Have ``watch`` told of the fan-outs that begin in the block, in tasks started there too."""
    token = watching.set(watch)
    try:
        yield
    finally:
        watching.reset(token)
