"""Let a number in at once, first come, first served, and a number more wait in front.

There is a `Gate` before each stage. It has slots, which are for work, and places, which are for
waiting: the stage's limit and the buffer before it. What passes through is a `Walker`, in a task of
its own. It keeps the slot of the stage behind it until it has a slot or a place here; that is all
there is to backpressure.

Invariants, at every checkpoint: a slot is free only if nobody is waiting, and a place is free only
if nobody is waiting outside, or whoever gave it up is about to run. So whatever frees one hands it
on at once, and a walker parks only once, however far it has to come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import trio
from trio.lowlevel import enable_ki_protection

from harness.errors import RecursiveCallError
from harness.runs._waits import Wait, observed_run

if TYPE_CHECKING:
    from harness.fanout._journal_steps import ItemSteps


class Holdable(Protocol):
    """What a walker holds until there is room for it further on."""

    def give_back(self, walker: Walker) -> None:
        """Take back what ``walker`` held. Plain code, called in any task."""


class Walker:
    """One item, or one output of it, on its way through the gates.

    What it starts with is on the class: the items of a pipeline are walkers themselves, and making
    one should cost nothing more.
    """

    item: Any = None
    """What it brings to its first stage."""
    started_at: float = 0.0
    """When it was started, as `trio.current_time`."""
    position: int = 0
    """The index of the stage it is going to; beyond a gathering stage, once it is there."""
    held: Holdable | None = None
    """What it has to give back once there is room for it further on."""
    past_entry: bool = False
    """Whether it has left the entry of its pipeline."""
    attempts: int = 0
    """Attempts made on its way; at each stage only those beyond the first count."""
    degraded: bool = False
    """Whether a fallback gave a value on its way."""
    inside: str | None = None
    """The path of the run that is inside of the same pipeline or router and waits for this."""
    record: ItemSteps | None = None
    """What records its steps; None without a journal."""
    task: trio.lowlevel.Task | None = None
    """Its task, once it has waited."""
    wait: Wait | None = None
    """Its latest wait, if anybody observes it."""

    def let_go(self) -> None:
        """Give back what it holds: there is room for it further on."""
        held, self.held = self.held, None
        if held is not None:
            held.give_back(self)


class Gate:
    """A number of slots, and a number of places to wait for one."""

    __slots__ = ("_near", "_outside", "_places", "_words", "free")

    def __init__(self, what: str, *, slots: int, places: int) -> None:
        self.free = slots
        """Free slots. Whoever finds one may take it, by counting it down."""
        self._places = places
        self._words = f"a slot of {what}"
        self._near: OrderedDict[Walker, None] = OrderedDict()
        self._outside: OrderedDict[Walker, None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many are waiting in the places before it."""
        return len(self._near)

    @property
    def held_up(self) -> int:
        """How many are waiting for a place, and holding up the stage behind them."""
        return len(self._outside)

    @enable_ki_protection
    async def wait(self, walker: Walker) -> None:
        """Get a slot when it is the walker's turn; give back what it holds when it has a place.

        Raises:
          RecursiveCallError: if the walker's own caller may hold the slot that it would wait for.

        Checkpoint: always. To be called when no slot is free.

        Cancellation: the walker has left the line, and holds what it held before, or nothing.
        """
        _waiting_for = self._words
        if walker.inside is not None:
            raise RecursiveCallError(
                f"run {walker.inside!r} is inside a pipeline or router, and called it again "
                f"with no slot free: the call would wait for {self._words}, which its own caller "
                "may hold; give the stage or track a larger limit=, or call another pipeline"
            )
        if len(self._near) < self._places and not self._outside:
            walker.let_go()
            line = self._near
        else:
            line = self._outside
        walker.task = trio.lowlevel.current_task()
        line[walker] = None
        run = observed_run()
        walker.wait = wait = None if run is None else Wait(run, "queue", self._words)

        def leave(_: Callable[[], None]) -> trio.lowlevel.Abort:
            self._near.pop(walker, None)
            self._outside.pop(walker, None)
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            await trio.lowlevel.wait_task_rescheduled(leave)
        except BaseException:
            # Here and not in ``leave``: who moves up may let the next item in, and no task may be
            # started while trio walks over those that it cancels.
            self._move_up()
            raise
        finally:
            if wait is not None:
                wait.over()

    def give_back(self, walker: Walker) -> None:
        """Take back a slot, for the first in line."""
        line = self._near or self._outside
        if not line:
            self.free += 1
            return
        first, _ = line.popitem(last=False)
        held, first.held = first.held, self
        assert first.task is not None
        if first.wait is not None:
            first.wait.woken()
        trio.lowlevel.reschedule(first.task)
        if held is not None:
            held.give_back(first)
        self._move_up()

    def _move_up(self) -> None:
        """If a place has come free, give it to the first of those outside."""
        if self._outside and len(self._near) < self._places:
            first, _ = self._outside.popitem(last=False)
            self._near[first] = None
            first.let_go()
