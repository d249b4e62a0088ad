"""Give the most urgent of the items read ahead.

A plain iterable is read until the look-ahead is full, then one item for each that starts. An async
one is read by its owner as items come, while others run. Nobody waits for a slow source, so there
the choice is among the items that have come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from harness.fanout._feed import Room
from harness.fanout._job import Job
from harness.fanout._lookahead import Lookahead
from harness.fanout._source import Exhausted, Source, SyncSource, ended
from harness.policies import Priority

QUIET_PASSES = 5
"""A source that gives nothing for this many passes of the event loop has nothing more at hand."""


class ByPriority:
    """Gives items by their priority."""

    def __init__(
        self, source: Source, new_job: Callable[[int, Any], Job], priority: Priority
    ) -> None:
        self._iterator = source.iterator if isinstance(source, SyncSource) else None
        self._new_job = new_job
        self._lookahead = Lookahead(priority)
        self._end: Exception | None = None
        """Why the source gives no more: `Exhausted`, or the error it raised."""
        self._settling = False
        """Whether a task is waiting for the source to go quiet."""

    @property
    def pulled(self) -> int:
        """How many items were read."""
        return self._lookahead.pulled

    @property
    def waiting(self) -> int:
        """How many were read ahead."""
        return len(self._lookahead.waiting)

    def next(self, room: Room) -> Job | None:
        """Return the most urgent item, after reading ahead in a plain source."""
        if self._iterator is not None and self._end is None:
            self._read_ahead(self._iterator, room)
        if self._lookahead.ready:
            one = self._lookahead.take()
            job = self._new_job(one.index, one.item)
            job.problem = one.problem
            return job
        # Any that still wait are behind one with the same key that is in flight.
        if self._end is not None and self._iterator is not None and not self._lookahead.waiting:
            raise ended(self._end)
        return None

    def may_pull(self, room: Room) -> bool:
        """Return whether another item may be read: what waits counts towards the window."""
        waiting = len(self._lookahead.waiting)
        return waiting < self._lookahead.depth and waiting < room.places()

    def put(self, items: deque[Any], room: Room) -> None:
        """Take an item, and ask for its priority."""
        self._lookahead.put(items.popleft())

    def ended(self, job: Job) -> None:
        """Let the next one with its key go ahead."""
        self._lookahead.ended(job.index)

    @enable_ki_protection
    def came(self, room: Room) -> None:
        """Start what has come: at once if the choice can't improve, else when it is quiet."""
        if not self.may_pull(room):
            room.start_next()
        elif not self._settling and room.in_flight < room.limit and room.places() > 0:
            self._settling = True
            room.nursery.start_soon(self._start_when_quiet, room)

    def end(self, why: Exception) -> None:
        """Note why an async source gives no more; what it gave is still started."""
        self._end = why

    def left_over(self) -> Iterable[Job]:
        """Yield what was read ahead and not started."""
        for one in self._lookahead.drain():
            yield self._new_job(one.index, one.item)

    def depths(self) -> dict[float, int]:
        """Return how many wait by priority, the largest first."""
        return self._lookahead.depths()

    def _read_ahead(self, iterator: Iterator[Any], room: Room) -> None:
        """Pull from a plain iterable while that is allowed."""
        put = self._lookahead.put
        try:
            while self.may_pull(room):
                put(next(iterator))
        except StopIteration:
            self._end = Exhausted()
        except Exception as error:
            # Its turn comes later: what was read before it still runs.
            self._end = error

    async def _start_when_quiet(self, room: Room) -> None:
        """Let a source with much at hand give it first, then start the best of it."""
        came = -1
        while came != self.pulled and self._end is None and self.may_pull(room):
            came = self.pulled
            for _ in range(QUIET_PASSES):
                await trio.lowlevel.checkpoint()
        self._settling = False
        room.start_next()
