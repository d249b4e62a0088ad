"""Two attempts at one item: when the second may start, and which of them counts.

Bookkeeping only; `ItemWork` starts the tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from harness._events import happened
from harness.fanout._latency import Latencies
from harness.fanout._result import FAILURES, Hedges
from harness.policies import Hedge
from harness.runs._run import Ending

HEDGES_IN_ANY_CASE = 10
"""Hedges that a short fan-out may make whatever its budget: a share of few items is nothing."""


class Counted(Protocol):
    """Counts the items that hedges are a share of."""

    @property
    def started(self) -> int:
        """How many items have been started so far."""
        ...


class Hedging:
    """What the hedges of one fan-out share: what was learned, and what they may cost.

    An attempt that is late while the budget is spent stays in line. The budget grows with the
    items, and the next hedge goes to the attempt that has been late longest: the worst stragglers
    are hedged, not the first.
    """

    __slots__ = (
        "_counted",
        "_in_line",
        "_seconds_saved",
        "_started",
        "_under_way",
        "_won",
        "latencies",
    )

    def __init__(self, counted: Counted) -> None:
        self.latencies = Latencies()
        self._counted = counted
        self._started = 0
        self._won = 0
        self._seconds_saved = 0.0
        self._in_line: dict[SideBySide[Any], float] = {}
        self._under_way: set[SideBySide[Any]] = set()

    def hedges(self) -> Hedges:
        """Return how many there have been so far, and what they gained."""
        return Hedges(self._started, self._won, self._seconds_saved)

    @enable_ki_protection
    async def attend(
        self,
        tries: SideBySide[Any],
        hedge: Hedge,
        *,
        launch: Callable[[trio.Nursery], None],
        closing: Callable[[], bool],
    ) -> None:
        """Launch an attempt, and another beside it if it is late; wait until both have ended.

        Args:
          tries: Where the attempts report how they ended.
          hedge: When an attempt is late, and what hedges may cost.
          launch: Starts an attempt in a nursery.
          closing: Returns whether no further attempt may start.

        Raises:
          BaseExceptionGroup: what came out of the attempts' tasks.

        Checkpoint: always.

        Cancellation: the attempts are cancelled too, and have ended.
        """
        self._under_way.add(tries)
        self.item_started()
        try:
            async with trio.open_nursery() as nursery:
                launch(nursery)
                while (wait := tries.seconds_until_late(hedge, self.latencies)) is not None:
                    if wait > 0:
                        self.not_late(tries)
                        with trio.move_on_after(wait):
                            await tries.news()
                    elif closing():
                        break
                    elif self.spend(tries, hedge.budget):
                        launch(nursery)
                        break
                    else:
                        await tries.news()
        finally:
            self._under_way.discard(tries)
            self.ended(tries)

    def learn(self, seconds: float, *, cut: bool) -> None:
        """Learn from a first attempt; once enough is known, all check again whether they are late.

        Args:
          seconds: How long it took.
          cut: Whether it had no answer by then and was cut because the other had one.
        """
        if self.latencies.add(seconds, cut=cut):
            for tries in self._under_way:
                tries.look_again()

    def spend(self, tries: SideBySide[Any], share: float) -> bool:
        """Take a hedge out of the budget; if there is none, put ``tries`` in line, return False."""
        if not self._allows(share):
            self._in_line[tries] = share
            return False
        self._in_line.pop(tries, None)
        self._started += 1
        return True

    def not_late(self, tries: SideBySide[Any]) -> None:
        """Take ``tries`` out of the line; what counts as late may have changed."""
        self._in_line.pop(tries, None)

    def item_started(self) -> None:
        """Let the first in line check again, if the budget has grown enough for one."""
        for tries, share in self._in_line.items():
            if self._allows(share):
                tries.look_again()
            return

    def ended(self, tries: SideBySide[Any]) -> None:
        """Take ``tries`` out of the line, and count what they took."""
        self._in_line.pop(tries, None)
        if tries.saved_after is not None:
            self._won += 1
            self._seconds_saved += self.latencies.seconds_left(tries.saved_after)

    def _allows(self, share: float) -> bool:
        return self._started < max(HEDGES_IN_ANY_CASE, share * self._counted.started)


class Cancellable(Protocol):
    """An attempt under way: its run, or its scope inside a run."""

    def cancel(self, reason: str) -> None:
        """Cut it short."""


AttemptT = TypeVar("AttemptT", bound=Cancellable)


class SideBySide(Generic[AttemptT]):
    """The attempts made side by side for one item."""

    __slots__ = (
        "_ended",
        "_event",
        "_first",
        "_granted_at",
        "_needs_grant",
        "live",
        "saved_after",
    )

    def __init__(self, *, needs_grant: bool) -> None:
        self.live: list[AttemptT] = []
        self.saved_after: float | None = None
        """How long the first attempt had taken, if the second answered before it."""
        self._first: AttemptT | None = None
        self._ended: list[tuple[AttemptT, Ending, Any]] = []
        self._event = trio.Event()
        self._needs_grant = needs_grant
        self._granted_at: dict[AttemptT, float] = {}

    def began(self, attempt: AttemptT) -> None:
        """Note an attempt."""
        self.live.append(attempt)
        if self._first is None:
            self._first = attempt
        if not self._needs_grant:
            self._granted_at[attempt] = trio.current_time()

    def granted(self, attempt: AttemptT) -> None:
        """Note that the limiter let an attempt through: from now on it can be late."""
        self._granted_at[attempt] = trio.current_time()
        self.look_again()

    def granted_at(self, attempt: AttemptT) -> float:
        """Return when the clock of an attempt started; inf if it waits for its grant."""
        return self._granted_at.get(attempt, math.inf)

    def ended(
        self, attempt: AttemptT, status: Ending, result: Any, learn: Callable[..., object]
    ) -> None:
        """Note how an attempt ended. A success cancels the others.

        Args:
          attempt: The attempt.
          status, result: How it ended.
          learn: Called with the seconds the first attempt took, and ``cut=``.
        """
        self.live.remove(attempt)
        self._ended.append((attempt, status, result))
        if status == "ok":
            assert self._first is not None
            seconds = trio.current_time() - self.granted_at(self._first)
            if attempt is self._first:
                learn(seconds, cut=False)
            elif self._first in self.live and seconds >= 0:  # Else it still waits for its grant.
                learn(seconds, cut=True)
                self.saved_after = seconds
            for other in self.live:
                other.cancel("another attempt at the same item answered first")
        self.look_again()

    def look_again(self) -> None:
        """Wake whoever waits for news."""
        self._event.set()

    async def news(self) -> None:
        """Wait until something happens that may change when an attempt is late."""
        _waiting_for = "an attempt, or the moment for a second one"
        await happened(self._event)
        self._event = trio.Event()

    def seconds_until_late(self, hedge: Hedge, latencies: Latencies) -> float | None:
        """Return the seconds until the attempt is late: inf if unknown, None if it ended."""
        if self._ended:
            return None
        after = hedge.after
        if after is None:
            assert hedge.percentile is not None
            after = latencies.percentile(hedge.percentile)
        if after is None or self._first is None:
            return math.inf
        return max(0.0, self.granted_at(self._first) + after - trio.current_time())

    def decision(self) -> tuple[AttemptT, Ending, Any]:
        """Return the attempt that counts: the first success, else the first failure, else any."""
        for wanted in (frozenset({"ok"}), FAILURES):
            for one in self._ended:
                if one[1] in wanted:
                    return one
        return self._ended[0]
