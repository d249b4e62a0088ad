"""Tell listeners what happens in a run: events, and subscriptions to them.

A subscription is a bounded buffer with one reader. A writer either waits for room (`offer` queues
the event behind those already waiting, so order is kept) or has the event dropped and counted
(`offer_nowait`). The end of the run is a flag, not a message, so a full buffer can't lose it.

Invariant, at every checkpoint: nobody is waiting for room while there is room.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import trio
from trio.lowlevel import enable_ki_protection

if TYPE_CHECKING:
    # For checkers alone: a protocol takes a while to make, and `import harness` would make it.
    from typing import Protocol

    class Emitter(Protocol):
        """A run, as its subscriptions see it."""

        @property
        def path(self) -> str:
            """The run's path, for messages."""
            ...

        def _attach(self, subscription: Subscription) -> None:
            """Hand the subscription every event from now on."""

        def _detach(self, subscription: Subscription) -> None:
            """Hand it no more events."""


READS_PER_CHECKPOINT = 64
"""A reader that always finds an event ready still lets others run once in this many events."""


class Event(NamedTuple):
    """Something a run told its subscribers and observers.

    A named tuple, not an attrs class: one is made per event for every listener, and this is the
    immutable record that Python makes fastest.
    """

    run_id: str
    """The run that emitted it; kept when the event is forwarded to an ancestor's subscriber."""

    parent_id: str | None
    """The parent of that run; None for a root."""

    path: str
    """That run's path, such as ``nightly/ticket-17``."""

    depth: int
    """How many runs are above that run; 0 for a root."""

    sequence: int
    """Counts what that run has emitted, from 0, heard or not. A gap in what one subscription reads
    means that it missed an event: its buffer was full, or the `Run.emit` was cancelled."""

    time: float
    """`trio.current_time` when it was emitted, in seconds."""

    payload: Any
    """What was emitted."""


class Delivery:
    """An event on its way to subscriptions that had no room when it was emitted."""

    __slots__ = ("_missing", "_task", "_waiting_in", "event")

    def __init__(self, event: Event) -> None:
        self.event: Event = event
        self._waiting_in: list[Subscription] = []
        self._missing = 0
        self._task: trio.lowlevel.Task | None = None

    def queue_in(self, subscription: Subscription) -> None:
        """Wait in line for room in ``subscription``."""
        if subscription._deliveries is None:
            subscription._deliveries = deque()
        subscription._deliveries.append(self)
        self._waiting_in.append(subscription)
        self._missing += 1

    def arrived(self) -> None:
        """Note that one subscription took the event, or will never take another."""
        self._missing -= 1
        if not self._missing and self._task is not None:
            trio.lowlevel.reschedule(self._task)

    @enable_ki_protection
    async def wait(self) -> None:
        """Wait until every subscription has taken the event, or closed.

        Checkpoint: always.

        Cancellation: leaves every line it is in; subscriptions that had room keep the event.
        """
        _waiting_for = "room in the buffer of a subscription"
        self._task = trio.lowlevel.current_task()

        def abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
            for subscription in self._waiting_in:
                if subscription._deliveries and self in subscription._deliveries:
                    subscription._deliveries.remove(self)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


class Subscription:
    """The events of one run and, if wanted, of its descendants, as they are emitted.

    An async context manager and an async iterator, made by `Run.subscribe`. The iteration ends
    when the run ends, after everything that was accepted has been read. Leaving the block closes
    the subscription and frees whoever is waiting for room in it.
    """

    __slots__ = (
        "_buffer",
        "_closed",
        "_deliveries",
        "_dropped",
        "_ended",
        "_entered",
        "_reader",
        "_ready_reads",
        "_run",
        "_size",
        "children",
    )

    def __init__(self, run: Emitter, *, size: int, children: bool) -> None:
        self.children: bool = children
        self._run = run
        self._size = size
        self._buffer: deque[Event] = deque()
        # Made for the first that finds no room: there may be ten thousand of us.
        self._deliveries: deque[Delivery] | None = None
        self._reader: trio.lowlevel.Task | None = None
        self._ready_reads = 0
        self._dropped = 0
        self._ended = False
        self._entered = False
        self._closed = False

    @property
    def dropped(self) -> int:
        """How many events were dropped because the buffer was full."""
        return self._dropped

    @enable_ki_protection
    async def __aenter__(self) -> Subscription:
        """Start listening.

        Raises:
          RunEndedError: if the run has ended.
          RuntimeError: if the block was entered before.

        Checkpoint: never.
        """
        if self._entered:  # Attached twice, it would get every event twice.
            raise RuntimeError(
                f"the block of this subscription to run {self._run.path!r} was already entered; "
                "call run.subscribe() for each block"
            )
        self._run._attach(self)
        self._entered = True
        return self

    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        """Stop listening, and free those waiting for room.

        Checkpoint: never.
        """
        self._closed = True
        self._run._detach(self)
        self.end()
        self._buffer.clear()

    def __aiter__(self) -> Subscription:
        return self

    @enable_ki_protection
    async def __anext__(self) -> Event:
        """Return the next event, waiting for one.

        Raises:
          StopAsyncIteration: if the run has ended and everything was read.
          RuntimeError: if the subscription's block wasn't entered; nothing would ever come.
          trio.BusyResourceError: if another task is waiting for an event of this subscription.
          trio.ClosedResourceError: if the subscription's block has been left.

        Checkpoint: if no event is ready; otherwise once in 64 events.

        Cancellation: no event is lost.
        """
        _waiting_for = "an event of a run"
        if self._closed:
            raise trio.ClosedResourceError(
                f"the block of this subscription to run {self._run.path!r} was left; "
                "call run.subscribe() for a new one"
            )
        if not self._entered:
            raise RuntimeError(
                f"this subscription to run {self._run.path!r} hears nothing yet; "
                "write `async with run.subscribe() as events:` around the loop"
            )
        if self._buffer:
            self._ready_reads += 1
            if self._ready_reads % READS_PER_CHECKPOINT == 0:
                await trio.lowlevel.checkpoint()
        while not self._buffer:
            if self._ended:
                raise StopAsyncIteration
            if self._reader is not None:
                raise trio.BusyResourceError(
                    f"another task already reads this subscription to run {self._run.path!r}; "
                    "give each reader a subscription of its own"
                )
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort_wait)
        event = self._buffer.popleft()
        if self._deliveries:
            delivery = self._deliveries.popleft()
            self._buffer.append(delivery.event)
            delivery.arrived()
        return event

    @enable_ki_protection
    def offer_nowait(self, event: Event) -> None:
        """Take an event if there is room; else drop and count it."""
        if len(self._buffer) >= self._size:
            self._dropped += 1
            return
        self._buffer.append(event)
        if self._reader is not None:
            self._wake_reader()

    def offer(self, event: Event, delivery: Delivery | None) -> Delivery | None:
        """Take an event if there is room; else queue it, and return the delivery to wait for.

        Args:
          event: The event.
          delivery: The one that another full subscription queued it with; None for none.
        """
        if len(self._buffer) < self._size:
            self.offer_nowait(event)
            return delivery
        delivery = delivery or Delivery(event)
        delivery.queue_in(self)
        return delivery

    @enable_ki_protection
    def end(self) -> None:
        """Note that no more events will come, and wake everybody."""
        self._ended = True
        if self._reader is not None:
            self._wake_reader()
        while self._deliveries:
            delivery = self._deliveries.popleft()
            if not self._closed:
                # The run ended while its own event stood in line: accepted, so it isn't lost.
                self._buffer.append(delivery.event)
            delivery.arrived()

    def _abort_wait(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake_reader(self) -> None:
        reader, self._reader = self._reader, None
        assert reader is not None
        trio.lowlevel.reschedule(reader)
