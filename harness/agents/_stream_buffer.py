"""Hold what a stream's reader hasn't read yet, bounded, without ever losing an agent's event.

An agent mustn't wait for its reader in the middle of a turn, when it may hold a reservation. So
when the buffer is full, a piece of text is joined to the last waiting one of its run, the few other
events of a turn are taken all the same, and agents wait for room before their next turn. Events
that users emit are treated as in any subscription: dropped and counted, or waited for.

Invariant, at every checkpoint: no agent waits for room while the reader waits for an event.
"""

from __future__ import annotations

import trio
from trio.lowlevel import enable_ki_protection

from harness.agents._events import AGENT_EVENTS, TextDelta
from harness.runs import Event, Run, Subscription
from harness.runs._events import READS_PER_CHECKPOINT, Delivery


class _JoinedText(Event):
    """Pieces of one run's text that wait together and are read as one event."""

    pieces: list[str]

    def whole(self) -> Event:
        """Return them as one event, with the number and time of the first."""
        return Event(*self[:-1], TextDelta("".join(self.pieces)))


class StreamBuffer(Subscription):
    """The events of a run and of those below it, for the one reader of a stream."""

    __slots__ = ("_last_text", "_room")

    def __init__(self, run: Run, size: int) -> None:
        super().__init__(run, size=size, children=True)
        # Joined text still waiting, by run, if nothing from that run came after it. Made for the
        # first text that finds no room.
        self._last_text: dict[str, _JoinedText] | None = None
        self._room: trio.lowlevel.ParkingLot | None = None  # Made for the first task that waits.

    @property
    def has_room(self) -> bool:
        """Whether the reader has room for another event, or will never read again."""
        return len(self._buffer) < self._size or self._ended

    async def wait_for_room(self) -> None:
        """Wait until the reader has room, or will never read again.

        Checkpoint: if there is none.

        Cancellation: nothing happened.
        """
        _waiting_for = f"the reader of the stream of {self._run.path}"
        while not self.has_room:
            if self._room is None:
                self._room = trio.lowlevel.ParkingLot()
            await self._room.park()

    def offer_nowait(self, event: Event) -> None:
        """Take an agent's event always; any other if there is room."""
        kind = type(event.payload)
        if self._deliveries and kind in AGENT_EVENTS:
            self._take_in_deliveries(event.run_id)
        if len(self._buffer) < self._size or (kind is not TextDelta and kind in AGENT_EVENTS):
            self._append(event)
        elif kind is TextDelta:
            if self._last_text is None:
                self._last_text = {}
            last = self._last_text.get(event.run_id)
            if last is not None:
                last.pieces.append(event.payload.text)
                return
            joined = _JoinedText(*event)
            joined.pieces = [event.payload.text]
            self._last_text[event.run_id] = joined
            self._buffer.append(joined)
        else:
            self._dropped += 1
            return
        if self._reader is not None:
            self._wake_reader()

    def _append(self, event: Event) -> None:
        if self._last_text:
            self._last_text.pop(event.run_id, None)
        self._buffer.append(event)

    def _take_in_deliveries(self, run_id: str) -> None:
        """Take what tools of this run are waiting to deliver, because its next event can't wait.

        Otherwise it would overtake them, and the events of a run must be in order.
        """
        waiting = self._deliveries
        assert waiting is not None
        for delivery in [one for one in waiting if one.event.run_id == run_id]:
            waiting.remove(delivery)
            self._take_in(delivery)

    def _take_in(self, delivery: Delivery) -> None:
        self._append(delivery.event)
        delivery.arrived()

    def end(self) -> None:
        """Note that no more events will come, and wake everybody."""
        super().end()
        if self._room is not None:
            self._room.unpark_all()

    @enable_ki_protection
    async def __anext__(self) -> Event:
        """Return the next event, waiting for one, as `Subscription.__anext__` does."""
        _waiting_for = "an event of an agent"
        if self._buffer:
            self._ready_reads += 1
            if self._ready_reads % READS_PER_CHECKPOINT == 0:
                await trio.lowlevel.checkpoint()
        while not self._buffer:
            if self._ended:
                raise StopAsyncIteration
            if self._reader is not None:
                raise trio.BusyResourceError(
                    f"another task already reads the stream of {self._run.path!r}; "
                    "one task reads and hands on"
                )
            # All of them: one that was woken before may have been cancelled since.
            if self._room is not None:
                self._room.unpark_all()
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort_wait)
        event = self._buffer.popleft()
        if type(event) is _JoinedText:
            if self._last_text and self._last_text.get(event.run_id) is event:
                del self._last_text[event.run_id]
            event = event.whole()
        while self._deliveries and len(self._buffer) < self._size:
            self._take_in(self._deliveries.popleft())
        if self._room and self._size > len(self._buffer):
            self._room.unpark(count=self._size - len(self._buffer))
        return event
