"""Items that grow while they are worked on: work that adds work, ended by itself.

A fan-out over a backlog is over when nothing waits in it, every item taken from it has its result,
and whoever reads the results has read them all and asks for more. Until then an item in flight, or
the reader between two results, may add. This can't end early, as each of them is heard of before
the next question; and it can't wait for ever, as `Backlog.add` never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import trio

from harness.fanout._result import Result
from harness.fanout._source import AsyncSource, Exhausted, OwnSource, Pulled
from harness.runs import current_run_or_none

ItemT = TypeVar("ItemT")


class Backlog(OwnSource[ItemT]):
    """The items of a fan-out, a pipeline or a router to which more are added while it runs::

        pages = harness.Backlog(["/"])
        async with harness.open_fan_out(read, pages) as stream:
            async for result in stream:
                for link in result.value:
                    pages.add(link)

    It ends by itself, once every item has ended and nothing was added. For one fan-out only.

    Args:
      items: What is there at the start.

    Raises:
      TypeError: if ``items`` can't be iterated.
    """

    def __init__(self, items: Iterable[ItemT] = ()) -> None:
        self._waiting: deque[ItemT] = deque(items)  # As long as what was added.
        self._source: _BacklogSource | None = None

    @property
    def left(self) -> list[ItemT]:
        """What no fan-out has taken; after one that ended early, what it left."""
        return list(self._waiting)

    def add(self, item: ItemT) -> None:
        """Add an item, which starts when there is room. Call in trio's thread.

        With retries, an item had better add as its last act: each attempt adds. With a journal only
        the reader may add: a later session hands it the results that the journal has, but doesn't
        run their items again, and what those had added would be lost.

        Raises:
          RuntimeError: if the fan-out has ended by itself; or in an item, if it has a journal.
        """
        if self._source is not None:
            self._source.check_adding()
        self._waiting.append(item)
        if self._source is not None:
            self._source.wake()

    def __repr__(self) -> str:
        return f"<Backlog of {len(self._waiting):,} items>"

    def _open(self, call: str) -> AsyncSource:
        if self._source is not None:
            raise RuntimeError(
                f"{call} was given a backlog that another fan-out has; each needs one of its own: "
                "harness.Backlog(backlog.left)"
            )
        self._source = _BacklogSource(self._waiting)
        return self._source


class _BacklogSource(AsyncSource):
    """Gives what waits in a backlog, and waits for more as long as some may come."""

    def __init__(self, waiting: deque[Any]) -> None:
        self.size = None
        self.at_hand: deque[Any] = deque()
        self.is_fast = False
        self._waiting = waiting
        self._host: Pulled
        self._open = 0
        """Items given that have no result yet."""
        self._task: trio.lowlevel.Task | None = None
        """The task in `next`, while it waits."""
        self._has_ended = False

    def begin(self, host: Pulled) -> None:
        """Hear of each result from now on."""
        self._host = host
        hand_on = host.hand_on

        def heard(result: Result[Any]) -> None:
            self._open -= 1
            hand_on(result)
            self.wake()

        host.hand_on = heard

    async def next(self) -> Any:
        """Return the next item, waiting for one if there may be any.

        Raises:
          Exhausted: if there is none and never will be.
        """
        _waiting_for = "an item to be added to its backlog"
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if not self._open and self._host.is_read():
                self._has_ended = True
                raise Exhausted
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        self._open += 1  # harness: shared (only the one reader of a source adds)
        return self._waiting.popleft()

    async def close(self) -> None:
        """Leave what waits to whoever made the backlog."""

    def wake(self) -> None:
        """Look again: an item was added or has ended, or the reader asks for more."""
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def check_adding(self) -> None:
        """Refuse an item that would never run, in this session or in a later one."""
        if self._has_ended:
            raise RuntimeError(
                "the backlog has ended: all its items have, and nothing was added; add from an "
                "item, or while reading the results"
            )
        if not hasattr(self, "_host") or not self._host.has_journal:
            return
        run = current_run_or_none()
        while run is not None:
            if run is self._host.run:
                raise RuntimeError(
                    "with a journal an item can't add to the backlog: a later session doesn't run "
                    "it again, so the work would be lost; use open_fan_out(), and add from each "
                    "result as you read it"
                )
            run = run.parent

    def _abort(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
