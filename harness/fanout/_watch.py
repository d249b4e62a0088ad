"""Let outside code see how far fan-outs have come, without a call per item.

A fan-out tells the watch of its context, if there is one, when it begins, what fails, and when it
is over. In between, the watch reads counts that the engine keeps anyway, whenever it likes and from
any thread. So a display that nobody looks at costs nothing, and none costs anything per item that
ends well.

Fan-outs below a watched one tell nothing: there may be thousands, and their work belongs to an item
that the watched one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol


class Counts(NamedTuple):
    """How far a fan-out has come. Not an attrs class, which would slow ``import harness``."""

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
    """Something that watches. The fan-outs call it, in trio's thread."""

    def begun(self, name: str, fan_out: Watched) -> None:
        """Hear that a fan-out begins."""

    def over(self, fan_out: Watched) -> None:
        """Hear that it is over; its counts are final."""

    def failed(self, key: Any, error: BaseException | None) -> None:
        """Hear that an item of such a fan-out has failed or timed out, for good."""


class _Nobody:
    """Watches, and shows nothing."""

    def begun(self, name: str, fan_out: Watched) -> None:
        pass

    def over(self, fan_out: Watched) -> None:
        pass

    def failed(self, key: Any, error: BaseException | None) -> None:
        pass


NOBODY: Watch = _Nobody()
"""Hides what is below from every watch. As there is one, nobody starts another."""

watching: ContextVar[Watch | None] = ContextVar("harness.fanout.watching", default=None)
"""What watches the fan-outs that begin in this context."""


@contextmanager
def watched_by(watch: Watch) -> Iterator[None]:
    """Tell ``watch`` of the fan-outs that begin in the block, or in tasks started there."""
    token = watching.set(watch)
    try:
        yield
    finally:
        watching.reset(token)
