"""A limit that can change while a fan-out runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from harness._arguments import check_count

ADVICE = "say how many items may be in flight at once"


@runtime_checkable
class ChangingLimit(Protocol):
    """How many items may be in flight now; for example a `harness.limits.AdaptiveCapacity`.

    Read whenever an item ends or a result is read.
    """

    @property
    def limit(self) -> int:
        """The current limit."""
        ...


class Limit:
    """A limit that you change by hand: ``limit=Limit(100)``, then ``limit.change(20)``.

    Several fan-outs may share one; each may then have that many items in flight.
    """

    __slots__ = ("_limit", "_notices")

    def __init__(self, limit: int) -> None:
        self._limit = check_count("Limit(limit)", limit, advice=ADVICE)
        self._notices: dict[Callable[[], None], None] = {}

    @property
    def limit(self) -> int:
        """How many items may be in flight now."""
        return self._limit

    def change(self, limit: int) -> None:
        """Change how many items may be in flight from now on.

        If it grows, more are started at once. If it shrinks, nothing is cancelled: what is in
        flight ends, and nothing is started until there is room. Call in trio's thread.

        Args:
          limit: The new limit; 0 starts nothing more until it is changed again.

        Raises:
          TypeError: if it isn't a whole number.
          ValueError: if it is negative.
        """
        self._limit = check_count("Limit.change(limit)", limit, advice=ADVICE, least=0)
        for notice in tuple(self._notices):
            notice()

    def _watch(self, notice: Callable[[], None]) -> None:
        """Have ``notice`` called at each change."""
        self._notices[notice] = None

    def _unwatch(self, notice: Callable[[], None]) -> None:
        """Stop calling it."""
        self._notices.pop(notice, None)

    def __repr__(self) -> str:
        return f"Limit({self._limit})"
