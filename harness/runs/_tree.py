"""Hold what all runs of one tree share: the trio they live in, and whether anybody listens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import trio


def token_here() -> trio.lowlevel.TrioToken | None:
    """Return the token of the calling trio run; None outside any."""
    try:
        return trio.lowlevel.current_trio_token()
    except RuntimeError:
        return None


class Tree:
    """What all runs of one tree share: where they live, and whether anybody listens."""

    __slots__ = ("any_stopping", "listeners", "now", "payer", "thread_id", "token")

    def __init__(self) -> None:
        self.token: trio.lowlevel.TrioToken | None
        """The trio that its runs live in; None for calls outside trio, which own only state."""
        self.now: Callable[[], float]
        """The time, as `trio.current_time` gives it, but without looking up the clock, which costs.

        Where that matters, put it into a local variable first, then call that: ``tree.now()`` looks
        for a method of the class before it takes the field. The same goes for other functions kept
        in fields.
        """
        try:
            self.token = trio.lowlevel.current_trio_token()
            self.now = trio.lowlevel.current_clock().current_time
        except RuntimeError:
            self.token, self.now = None, time.monotonic
        self.thread_id = threading.get_ident()
        self.listeners = 0
        """Open subscriptions to any run of the tree; while it is 0, emitting is nearly free."""
        self.any_stopping = False
        """Whether any run of the tree was ever asked to stop; until then nobody looks for one."""
        self.payer: Any = None
        """Who pays for the root, if it was opened by code that somebody else pays for. Kept after
        the end: only numbers, which keep nothing of the user's alive."""

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Call ``function`` where the tree's trio runs: now if that is here, otherwise soon.

        A no-op once that trio has ended: so has everything in it, and nothing is left to change.
        Outside trio, each thread calls for itself.
        """
        if self.token is None:
            function(*args)
            return
        if token_here() is self.token:
            function(*args)
            return
        try:
            self.token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            pass


class Above:
    """The plain facts about what is above a run. All children of one run share one."""

    __slots__ = ("above", "depth", "parent_id", "path", "pointed_for", "tree")

    pointed_for: int | None
    """The item whose error says how asyncio code is run, for all its siblings; unset before."""

    def __init__(
        self,
        parent_id: str | None,
        path: str | None,
        depth: int,
        tree: Tree,
        above: Above | None = None,
    ) -> None:
        self.parent_id = parent_id
        self.path = path
        self.depth = depth
        self.tree = tree
        self.above = above
        """The same for the parent."""

    def ids(self) -> Iterator[str]:
        """Yield the ids of the runs above, nearest first; they may have ended."""
        level: Above | None = self
        while level is not None and level.parent_id is not None:
            yield level.parent_id
            level = level.above
