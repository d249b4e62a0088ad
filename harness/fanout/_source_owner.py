"""Pull an async source, and close it, in one task: its owner.

A generator's cancel scopes belong to the task that entered them, so no other task may resume it.
"""

from __future__ import annotations

import contextvars
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from harness.fanout._feed import Feed, Room
from harness.fanout._source import AsyncSource, Exhausted
from harness.runs._cleanup import cleanup_deadline


class Pulling(Room, Protocol):
    """The fan-out a source is pulled for."""

    def no_more_items(self) -> None:
        """Note that the source has been read to its end."""

    def source_failed(self, error: Exception) -> None:
        """Note that it can't be read further."""

    def start_no_more(self) -> None:
        """Start nothing more."""


class SourceOwner:
    """Pulls the items of one async source into a feed, as there is room."""

    def __init__(self, source: AsyncSource, feed: Feed, base: contextvars.Context) -> None:
        self._source = source
        self._feed = feed
        self._base = base
        self._parked: trio.lowlevel.Task | None = None
        """The task that pulls, while it waits for room."""
        self._pulling: trio.CancelScope | None = None
        """Its scope while it waits for an item, so that a stop can cancel it."""
        self._interrupted = False
        """Whether a stop did; else it was the time that the next item may take."""

    def wake(self) -> None:
        """Check again for room."""
        task, self._parked = self._parked, None
        if task is not None:
            trio.lowlevel.reschedule(task)
        else:
            self._source.wake()

    def interrupt(self) -> None:
        """Stop waiting for items: the fan-out is over."""
        self._interrupted = True
        if self._pulling is not None:
            self._pulling.cancel()
        self.wake()

    @enable_ki_protection
    async def own(self, host: Pulling) -> None:
        """Pull items one after another, as there is room, and close the source at the end.

        One scope surrounds it all, none a single pull: a generator may hold its own scopes open
        while it yields, and scopes have to nest. For the same reason it is closed inside that
        scope, unless a stop, or the time for the next item, has cancelled the scope and so ended
        the generator.
        """
        interrupted = late = False
        try:
            with trio.CancelScope() as scope:
                try:
                    await self._pull_all(host, scope)
                except Exhausted:
                    host.no_more_items()
                except Exception as error:
                    host.source_failed(error)
                finally:
                    self._pulling = None
                    interrupted = scope.cancel_called
                    late = interrupted and not self._interrupted
                    if not late:
                        host.start_no_more()
                    if not interrupted:
                        scope.deadline, scope.shield = cleanup_deadline(), True
                        await self._close(host)
        finally:
            if interrupted:
                with trio.CancelScope(deadline=cleanup_deadline(), shield=True):
                    await self._close(host)
        if late:
            allowed = self._source.next_within
            too_slow = trio.TooSlowError(f"the next item took longer than {allowed:g} s")
            await self._start_what_came(host, too_slow)
            host.source_failed(too_slow)

    async def _pull_all(self, host: Pulling, scope: trio.CancelScope) -> None:
        """Pull items until none is wanted, or all that came have been started.

        Raises:
          Exhausted: if there are no more.
          Exception: what the source raised.
        """
        feed, within, at_hand = self._feed, self._source.next_within, self._source.at_hand
        try:
            while await self._room(host):
                if not at_hand:
                    self._pulling = scope
                    if within is not None:
                        scope.deadline = trio.current_time() + within
                    at_hand.appendleft(await self._source.next())
                    self._pulling = None
                    if within is not None:
                        scope.deadline = math.inf
                self._base.run(_put, feed, at_hand, host)
                feed.came(host)
        except Exception as end:
            self._pulling = None
            scope.deadline = math.inf
            await self._start_what_came(host, end)
            raise

    async def _start_what_came(self, host: Pulling, end: Exception) -> None:
        """Wait until every item that came before the end has been started."""
        self._feed.end(end)
        host.start_next()
        while self._feed.waiting and not host.over:
            await self._park()

    async def _room(self, host: Pulling) -> bool:
        """Wait until another item may be pulled; return False when none ever may."""
        while not host.over:
            if self._feed.may_pull(host):
                return True
            await self._park()
        return False

    async def _park(self) -> None:
        _waiting_for = "an item to end, or a result to be read"
        self._parked = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self._parked = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def _close(self, host: Pulling) -> None:
        try:
            await self._source.close()
        except Exception as error:
            host.source_failed(error)


@disable_ki_protection
def _put(feed: Feed, items: deque[Any], room: Room) -> None:
    """Give items to a feed, which may ask the user's functions about them."""
    feed.put(items, room)
