"""Run many items at once, the most urgent of those read ahead first.

The engine with a look-ahead between the source and the start. Everything else is the engine's:
what a look-ahead changes is how items are pulled, which of them is next, and that items can have
been pulled without having been started. Those end as skipped results, like any item that has a
result and no run.

A plain iterable is read until the look-ahead is full, and then an item for each that starts. An
async one is read by its owner as it gives, while items run; nobody waits for a source that gives
slowly, so there the choice is among the items that have come.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import trio

from harness.fanout._engine import Engine
from harness.fanout._lookahead import Lookahead
from harness.fanout._result import Result
from harness.fanout._snapshot import FanOutStatistics
from harness.fanout._source import AsyncSource, Exhausted, SyncSource
from harness.policies import Priority

QUIET_PASSES = 5
"""A source that gives nothing for so many passes of the event loop has nothing more at hand."""


class PriorityEngine(Engine):
    """An `Engine` that starts items by their priority."""

    def __init__(self, *given: Any, priority: Priority, **options: Any) -> None:
        super().__init__(*given, **options)
        self._lookahead = Lookahead(priority)
        self._end_of_source: Exception | None = None
        """Why the source gives no more: `Exhausted`, or the error that it raised."""
        self._settling = False

    async def drive(self) -> None:
        """Do what `Engine.drive` does; items that were pulled and never started are skipped."""
        try:
            await super().drive()
        finally:
            for one in self._lookahead.drain():
                self._sink(self._skip(one.item, one.index))

    def skipped(self) -> Iterator[Result[Any]]:
        """Yield a result for each item of a sized source that was never pulled."""
        if not isinstance(self._source, SyncSource) or self._source.size is None:
            return
        for index in range(self._lookahead.pulled, self._source.size):
            try:
                item = next(self._source.iterator)
            except Exception:  # At its end, or it can't be read further.
                return
            self._lookahead.pulled = index + 1
            yield self._skip(item, index)

    def statistics(self) -> FanOutStatistics:
        """Return how many items are where."""
        return FanOutStatistics(
            in_flight=self._in_flight,
            unread=self.unread,
            waiting=len(self._lookahead.waiting),
            waiting_by_priority=self._lookahead.depths(),
        )

    def start_next(self) -> None:
        """Start what there is room for: an item has ended or come, or a result was read."""
        if not self._over:
            self._base.run(self._fill_by_priority)
        self._wake_owner()

    def _fill_by_priority(self) -> None:
        """Start items while there is room. To be called in the base context."""
        lookahead = self._lookahead
        waiting = lookahead.waiting
        while not self._over and self._has_room():
            if self._iterator is not None and self._end_of_source is None:
                self._read_ahead(self._iterator)
            if not waiting:
                if self._end_of_source is not None and isinstance(self._source, SyncSource):
                    self._end_with(self._end_of_source)
                return
            one = lookahead.take()
            self._start(one.item, one.index, one.problem)

    def _has_room(self) -> bool:
        return self._in_flight < self._limit and self._in_flight + self.unread < self._window

    def _may_read(self) -> bool:
        """Return whether another item may be pulled: what waits counts towards the window."""
        waiting = len(self._lookahead.waiting)
        return (
            waiting < self._lookahead.depth
            and waiting + self._in_flight + self.unread < self._window
        )

    def _read_ahead(self, iterator: Iterator[Any]) -> None:
        """Pull from a plain iterable while that is allowed."""
        put = self._lookahead.put
        try:
            while self._may_read():
                put(next(iterator))
        except StopIteration:
            self._end_of_source = Exhausted()
        except Exception as error:
            # It is told in its turn: what was read before it is still run.
            self._end_of_source = error

    def _end_with(self, end: Exception) -> None:
        if isinstance(end, Exhausted):
            self._no_more_items()
        else:
            self._source_failed(end)

    # An async source --------------------------------------------------------------------------

    async def _pull_all(self, source: AsyncSource, scope: trio.CancelScope) -> None:
        """Pull items as the source gives them, and stay until all that came has been started."""
        try:
            while await self._room():
                self._pulling = scope
                item = await source.next()
                self._pulling = None
                self._base.run(self._lookahead.put, item)
                self._start_soon()
        except Exception as end:
            self._pulling = None
            self._end_of_source = end
            self.start_next()
            while self._lookahead.waiting and not self._over:
                await self._park()
            raise

    def _room_to_pull(self) -> bool:
        return self._may_read()

    def _start_soon(self) -> None:
        """Start what has come: at once if the choice can't get better, else when it is quiet."""
        if not self._may_read():
            self.start_next()
        elif not self._settling and self._has_room():
            self._settling = True
            self._nursery.start_soon(self._start_when_quiet)

    async def _start_when_quiet(self) -> None:
        """Let a source that has much at hand give it first; then start the best of it."""
        came = -1
        while came != self._lookahead.pulled and self._end_of_source is None and self._may_read():
            came = self._lookahead.pulled
            for _ in range(QUIET_PASSES):
                await trio.lowlevel.checkpoint()
        self._settling = False
        self.start_next()

    def _in_words(self) -> str:
        return f"{super()._in_words()}, {len(self._lookahead.waiting):,} read ahead"
