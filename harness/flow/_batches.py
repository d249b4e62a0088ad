"""Gather items before a stage that takes a list, and call it for all of them together.

Items wait in a room until a batch goes: when it is full, when its first item has waited long
enough, or when nothing more can arrive. The call is a run of its own below the pipeline's, in a
task of its own, because it belongs to none of its members: each waits for it in its own task, and
may give up alone.

A batch keeps one of the stage's slots until its last member has found room further on.
"""

from __future__ import annotations

import functools
import math
import types
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sized
from typing import Any, Protocol

import trio
from trio.lowlevel import enable_ki_protection

from harness._events import happened
from harness.errors import RunCancelled, RunTimedOut
from harness.flow._attempts import Calls, NotAsync, not_async
from harness.flow._gate import Walker
from harness.flow._places import what_stage
from harness.flow._stage import Batch, EachItem
from harness.flow._statistics import Meter
from harness.runs import Run, current_run
from harness.runs._carry import carry


class Surroundings(Protocol):
    """What a gathering stage has to know about the running pipeline."""

    @property
    def run(self) -> Run:
        """The pipeline's run."""
        ...

    @property
    def decided(self) -> bool:
        """Whether the pipeline is being cut short."""
        ...

    def why_cut(self) -> str | None:
        """Return in words why it is being cut short; None if it isn't."""
        ...

    def may_come(self, index: int) -> bool:
        """Return whether another item may still arrive at the stage ``index``."""
        ...

    def arrived(self, walker: Walker, index: int) -> None:
        """Note that a walker is at the stage ``index``."""

    def start_call(self, function: Callable[..., Any], *args: Any, name: str) -> None:
        """Start a task in the context copied when the pipeline was started."""

    def crash(self, error: NotAsync) -> None:
        """End the pipeline with a mistake in the program."""


class Member:
    """An item in the room, and then in a batch."""

    __slots__ = ("batch", "done", "due_at", "place", "value", "walker")

    def __init__(self, walker: Walker, value: Any, due_at: float) -> None:
        self.walker = walker
        self.value = value
        self.due_at = due_at
        self.done = trio.Event()
        self.batch: BatchCall | None = None
        self.place = 0
        """Its place in the batch."""


class BatchCall:
    """One call in progress: what its members hold together."""

    __slots__ = ("_over", "_slot", "members", "result", "run", "status", "traceback")

    def __init__(self, members: list[Member], slot: Callable[[], None]) -> None:
        self.members = members
        """Those still waiting for it, or holding its slot."""
        self.run: Run | None = None
        self.status = ""
        self.result: Any = None
        self.traceback: types.TracebackType | None = None
        self._over = False
        self._slot = slot

    def give_back(self, walker: Walker) -> None:
        """Note that a member has gone on or given up."""
        self.members = [one for one in self.members if one.walker is not walker]
        if self.members:
            return
        if self._over:
            self._slot()
        elif self.run is not None:
            self.run.cancel("every item of the batch was cancelled")

    def end(self, status: str, result: Any) -> None:
        """Take the call's result, and tell the members."""
        self.status, self.result, self._over = status, result, True
        self.traceback = getattr(result, "__traceback__", None)
        for member in self.members:
            member.done.set()
        if not self.members:
            self._slot()


class Batches:
    """The room before one gathering stage, and its calls in progress."""

    def __init__(
        self,
        around: Surroundings,
        index: int,
        name: str,
        function: Callable[[Any], Any],
        *,
        batch: Batch,
        limit: int,
        places: int,
        each: EachItem,
        meter: Meter,
    ) -> None:
        self._around = around
        self._index = index
        self._name = name
        self._what = what_stage(name)
        self._function = function
        self._batch = batch
        self._places = places
        self._meter = meter
        self._free = limit
        self._number = 0
        self._near: OrderedDict[Member, None] = OrderedDict()
        self._outside: OrderedDict[Member, None] = OrderedDict()
        self.calls = Calls(self._what, self._call, each)

    @property
    def waiting(self) -> int:
        """How many are waiting in the room."""
        return len(self._near)

    @property
    def held_up(self) -> int:
        """How many are waiting for a place in the room."""
        return len(self._outside)

    @enable_ki_protection
    async def join(self, walker: Walker, value: Any) -> Any:
        """Join a batch, and return the value that the stage gave for this item.

        Checkpoint: always.

        Cancellation: the item has left the room. A batch in progress goes on for the others, and is
        cancelled if there are none.
        """
        _waiting_for = f"a batch of {self._what}"
        member = Member(walker, value, trio.current_time() + self._batch.within)
        if self._index == 0:
            # The room is all there is before the first stage: an item counts against the entry,
            # which is as large, until a batch takes it. So nothing waits outside.
            self._near[member] = None
        elif len(self._near) < self._places:
            walker.let_go()
            self._near[member] = None
        else:
            self._outside[member] = None
        self._around.arrived(walker, self._index)
        self.look()
        try:
            if member.due_at < math.inf:
                with trio.CancelScope(deadline=member.due_at):
                    await happened(member.done)
                if not member.done.is_set():
                    self.look()
            await happened(member.done)
        except BaseException:
            self._withdraw(member)
            raise
        return await _result_of(member)

    def look(self) -> None:
        """Start batches that are due, as far as there are slots."""
        while self._free and self._near and not self._around.decided and self._is_due():
            self._go()

    def _is_due(self) -> bool:
        if len(self._near) >= self._batch.size:
            return True
        oldest = next(iter(self._near))
        return oldest.due_at <= trio.current_time() or not self._around.may_come(self._index)

    def _go(self) -> None:
        self._free -= 1
        self._number += 1
        size = min(self._batch.size, len(self._near))
        members = [self._near.popitem(last=False)[0] for _ in range(size)]
        call = BatchCall(members, self._slot_came_free)
        for member in members:
            member.batch = call
            member.walker.let_go()
            member.walker.held = call
        self._move_up()
        name = f"{self._name}-{self._number}"
        self._around.start_call(self._carry, call, name, name=name)

    def _move_up(self) -> None:
        while self._outside and len(self._near) < self._places:
            member, _ = self._outside.popitem(last=False)
            self._near[member] = None
            member.walker.let_go()

    def _slot_came_free(self) -> None:
        self._free += 1
        self.look()

    def _withdraw(self, member: Member) -> None:
        """Forget a cancelled member; one in a batch gives that back, as its slot."""
        if member in self._near:
            del self._near[member]
            self._move_up()
        else:
            self._outside.pop(member, None)

    async def _carry(self, call: BatchCall, name: str) -> None:
        """Make one call, in a task and a run of its own."""
        values = [member.value for member in call.members]
        for place, member in enumerate(call.members):  # Now, as one may have left since it went.
            member.place = place
        if not values or self._around.decided or trio.current_effective_deadline() == -math.inf:
            # The step that let this batch go was also the end of everything, or of its members.
            call.end("cancelled", RunCancelled(self._around.why_cut()))
            return
        now = trio.current_time()
        run = call.run = Run(name, self._around.run, now)
        records = [one.walker.record for one in call.members if one.walker.record is not None]
        if records:
            records[0].enter_together(run, records, self._what)
        whole = Walker()
        self._meter.begin(now)
        status, result = await carry(run, functools.partial(self._make, values), whole)
        self._meter.end(status, trio.current_time())
        if status == "ok":
            self._meter.extra_items += len(values) - 1
        if isinstance(result, NotAsync):
            self._around.crash(result)
        for member in call.members:
            member.walker.attempts += whole.attempts
            member.walker.degraded = member.walker.degraded or whole.degraded
        call.end(status, result)

    async def _make(self, values: list[Any], whole: Walker) -> Any:
        returned = await self.calls.call(values, whole)
        return checked(self._what, values, returned)  # Again, as it may come from the fallback.

    async def _call(self, values: list[Any]) -> Any:
        return await call_with_list(self._what, self._function, values)


async def call_with_list(what: str, function: Callable[[Any], Any], values: list[Any]) -> Any:
    """Call a stage's function with a list; checking what it returns is part of the call.

    The list is a copy: what a first attempt takes out of it is there again for the next.
    """
    awaitable = function(list(values))
    if not isinstance(awaitable, Awaitable):
        raise not_async(what, function, awaitable)
    return checked(what, values, await awaitable)


def checked(what: str, values: list[Any], returned: Any) -> Any:
    """Return what a stage gave for a list, or refuse it.

    Raises:
      TypeError: if it isn't a list.
      ValueError: if it has another length.
    """
    if (
        isinstance(returned, str | bytes | Mapping)
        or not isinstance(returned, Sized)
        or not hasattr(returned, "__getitem__")
    ):
        raise TypeError(
            f"{what} got a list of {len(values):,} items and returned {returned!r:.200}; "
            "it must return a list with one value per item, in the same order"
        )
    if len(returned) != len(values):
        raise ValueError(
            f"{what} got a list of {len(values):,} items and returned {len(returned):,} values; "
            "it must return one value per item, in the same order, with DROP for an item that "
            "ends here"
        )
    return returned


async def _result_of(member: Member) -> Any:
    call = member.batch
    assert call is not None
    if call.status == "ok":
        return call.result[member.place]
    if call.status == "cancelled":
        current_run().cancel(call.result.reason or "its batch was cancelled")
        await trio.sleep_forever()
    error: Exception = call.result
    if isinstance(error, RunTimedOut) and call.run is not None and error.run_id == call.run.id:
        # What timed out is this item too, so the error has to be of its own run.
        mine = RunTimedOut(str(error))
        mine.run_id = current_run().id
        raise mine from error
    # The members raise one object; each begins with the traceback of the call, or it would grow.
    raise error.with_traceback(call.traceback)
