"""Two attempts at one item: when the second may start, and which of them counts.

Bookkeeping only; the engine starts the tasks.
"""

from __future__ import annotations

import math
from typing import Any, Generic, Protocol, TypeVar

import trio

from harness.fanout._latency import Latencies
from harness.fanout._result import FAILURES, ResultStatus
from harness.policies import Hedge

HEDGES_IN_ANY_CASE = 10
"""A short fan-out may hedge so often whatever its budget: a share of few items is nothing."""


class HedgeBudget:
    """Bounds the extra load of hedges to a share of the items."""

    __slots__ = ("spent",)

    def __init__(self) -> None:
        self.spent = 0

    def spend(self, share: float, items_started: int) -> bool:
        """Take one hedge out of the budget; return False if there is none left."""
        if self.spent >= max(HEDGES_IN_ANY_CASE, share * items_started):
            return False
        self.spent += 1
        return True


class Cancellable(Protocol):
    """An attempt under way: the run of one, or the scope of one inside a run."""

    def cancel(self, reason: str) -> None:
        """Cut it short."""


AttemptT = TypeVar("AttemptT", bound=Cancellable)


class SideBySide(Generic[AttemptT]):
    """The attempts made side by side for one item."""

    __slots__ = ("_ended", "_event", "_granted_at", "live")

    def __init__(self, *, granted: bool) -> None:
        self.live: list[AttemptT] = []
        self._ended: list[tuple[AttemptT, ResultStatus, Any]] = []
        self._event = trio.Event()
        self._granted_at = trio.current_time() if granted else None

    def first_granted(self) -> None:
        """Note that the limiter let the first attempt go: from now on it can be late."""
        if self._granted_at is None:
            self._granted_at = trio.current_time()
            self.look_again()

    def ended(self, attempt: AttemptT, status: ResultStatus, result: Any) -> None:
        """Note how an attempt ended. A success cancels the others."""
        self.live.remove(attempt)
        self._ended.append((attempt, status, result))
        if status == "ok":
            for other in self.live:
                other.cancel("another attempt at the same item answered first")
        self.look_again()

    def look_again(self) -> None:
        """Wake up whoever waits for news."""
        self._event.set()

    async def news(self) -> None:
        """Wait until something happened that may change when an attempt is late."""
        waiting_for = "an attempt, or the moment for a second one"  # noqa: F841 (read by `dump`)
        await self._event.wait()
        self._event = trio.Event()

    def seconds_until_late(self, hedge: Hedge, latencies: Latencies) -> float | None:
        """Return when the attempt will be late: inf if that isn't known yet, None if it ended."""
        if self._ended:
            return None
        after = hedge.after
        if after is None:
            assert hedge.percentile is not None
            after = latencies.percentile(hedge.percentile)
        if after is None or self._granted_at is None:
            return math.inf
        return max(0.0, self._granted_at + after - trio.current_time())

    def decision(self) -> tuple[AttemptT, ResultStatus, Any]:
        """Return the attempt that counts: the first success, else the first failure."""
        for wanted in (frozenset({"ok"}), FAILURES):
            for one in self._ended:
                if one[1] in wanted:
                    return one
        return self._ended[0]
