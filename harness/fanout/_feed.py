"""Say which item is next: what an engine asks of whoever feeds it, and the plain answer.

A feed is one of the parts an engine is given. It makes jobs of items, and knows which may be
started, whether more may be pulled to choose from, and what was pulled and never started. There
are three: in input order, here; by priority (`harness.fanout._by_priority`); and what a journal
has left to do (`harness.fanout._journal_feed`), which may use a priority inside.

A feed holds no engine: each call passes what it has to know of one, as a `Room`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import trio

from harness.fanout._job import Job
from harness.fanout._source import Exhausted, Source, SyncSource


class Room(Protocol):
    """How full a fan-out is. Counted by its engine; read-only here."""

    limit: int
    """How many items may be in flight."""
    window: float
    """How many may be in flight, on their way to a journal, or unread."""
    in_flight: int
    unread: int
    """Results waiting for a reader."""
    unwritten: int
    """Results a journal doesn't have yet."""
    over: bool
    """Whether nothing more is started."""

    @property
    def nursery(self) -> trio.Nursery:
        """Where the items run."""
        ...

    def places(self) -> float:
        """Return how many more items may be in flight, unwritten or unread."""
        ...

    def start_next(self) -> None:
        """Start what there is room for."""


class Feed(Protocol):
    """Which item is next."""

    @property
    def pulled(self) -> int:
        """How many items were taken from the source; the index of the next one."""
        ...

    @property
    def waiting(self) -> int:
        """How many were pulled but neither started nor ended without a start."""
        ...

    def next(self, room: Room) -> Job | None:
        """Return the next job to start; None if there is none just now.

        Called in the context that items start in, and only where there is room for one.

        Raises:
          Exhausted: if there is none and never will be.
          Exception: what the source raised, once all that came before it has been started.
        """
        ...

    def may_pull(self, room: Room) -> bool:
        """Return whether the owner of an async source may pull another item."""
        ...

    def put(self, items: deque[Any], room: Room) -> None:
        """Take out the first of an async source's items, or several.

        Called when `may_pull` says so, in the context that items start in.
        """

    def came(self, room: Room) -> None:
        """See to it that the item just put is started in its turn."""

    def ended(self, job: Job) -> None:
        """Note that a job has ended, before `next` is called; only with ``serial_by``."""

    def end(self, why: Exception) -> None:
        """Note why an async source gives no more: `Exhausted`, or what it raised."""

    def left_over(self) -> Iterable[Job]:
        """Take out, in input order, all that was pulled and will never be started."""
        ...

    def depths(self) -> dict[float, int]:
        """Return how many wait by priority, the largest first; nothing without priorities."""
        ...


class InOrder:
    """Gives items in the order of the input, none before there is room for it."""

    def __init__(self, source: Source, new_job: Callable[[int, Any], Job]) -> None:
        self.pulled = 0
        self._iterator = source.iterator if isinstance(source, SyncSource) else None
        self._new_job = new_job
        self._came: deque[Job] = deque()
        """What an async source gave: one item at most, except when everything is over."""

    @property
    def waiting(self) -> int:
        """How many arrived and were not started."""
        return len(self._came)

    def next(self, room: Room) -> Job | None:
        """Return the next item; a plain source is asked for it here."""
        if self._iterator is None:
            return self._came.popleft() if self._came else None
        try:
            item = next(self._iterator)
        except StopIteration:
            raise Exhausted from None
        index = self.pulled
        self.pulled = index + 1
        return self._new_job(index, item)

    def may_pull(self, room: Room) -> bool:
        """Return whether an item could be started right away."""
        return room.in_flight < room.limit and room.places() > 0

    def put(self, items: deque[Any], room: Room) -> None:
        """Take an item that there is room for."""
        self._came.append(self._new_job(self.pulled, items.popleft()))
        self.pulled += 1

    def came(self, room: Room) -> None:
        """Start it."""
        room.start_next()

    def ended(self, job: Job) -> None:
        """Do nothing: nobody waits here for another item."""

    def end(self, why: Exception) -> None:
        """Do nothing: nobody waits here for the end."""

    def left_over(self) -> Iterable[Job]:
        """Yield what came when everything was over."""
        while self._came:
            yield self._came.popleft()

    def depths(self) -> dict[float, int]:
        """Return nothing: there are no priorities."""
        return {}
