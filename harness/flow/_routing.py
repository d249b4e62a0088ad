"""Send each item along a track of a running router."""

from __future__ import annotations

import json
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import trio
from trio.lowlevel import disable_ki_protection

from harness._words import error_in_words, told
from harness.errors import JournaledError, UnknownTrackError
from harness.fanout import DROP, FanOutStatistics, Hedges
from harness.fanout._attempts import is_cancelled
from harness.flow._attempts import Calls, Closing, NotAsync
from harness.flow._calls import calling
from harness.flow._gate import Gate, Walker
from harness.flow._places import note_place, what_classifies, what_escalates, what_track
from harness.flow._statistics import (
    NOTHING_IN_FLIGHT,
    Clock,
    Meter,
    RouterStatistics,
    TrackStatistics,
    sum_of_hedges,
)
from harness.flow._track import Track
from harness.runs._endings import is_only_cancelled, set_context, try_note
from harness.runs._functions import name_of

if TYPE_CHECKING:
    from harness.fanout._journal_steps import ItemSteps


class Crashing(Closing, Protocol):
    """What can end everything under way."""

    def crash(self, error: NotAsync) -> None:
        """End everything with a mistake in the program."""


class Line:
    """One track of a running router."""

    def __init__(self, name: str, given: Track[Any, Any]) -> None:
        self.name = name
        self.given = given
        self.what = what_track(name)
        self.calls = Calls(self.what, given.function, given.each)
        self.meter = Meter()
        self.escalated = 0
        self._gate = None if given.limit is None else Gate(self.what, slots=given.limit, places=0)

    async def take(self, walker: Walker) -> Any:
        """Call the track's function for an item when there is a slot for it."""
        gate = self._gate
        if gate is not None:
            if gate.free:
                gate.free -= 1
            else:
                await gate.wait(walker)
                walker.held = None
        self.meter.begin(trio.current_time())
        status = "failed"
        try:
            value = await self.calls.call(walker.item, walker)
            status = "dropped" if value is DROP else "ok"
            return value
        except Exception as error:
            note_place(error, self.what, self.name)
            raise
        except BaseException as error:
            status = "cancelled" if is_only_cancelled(error) else "failed"
            raise
        finally:
            self.meter.end(status, trio.current_time())
            if gate is not None:
                gate.give_back(walker)

    def statistics(self, now: float) -> TrackStatistics:
        """Return what happened here so far."""
        meter = self.meter
        return TrackStatistics(
            name=self.name,
            limit=self.given.limit,
            working=meter.working,
            waiting=0 if self._gate is None else self._gate.held_up,
            taken=meter.calls,
            ok=meter.ok,
            failed=meter.failed,
            dropped=meter.dropped,
            cancelled=meter.cancelled,
            escalated=self.escalated,
            busy_seconds=meter.busy_seconds(now),
        )


class Routing:
    """The tracks of a running router."""

    def __init__(
        self,
        classify: Callable[[Any], Any],
        tracks: Mapping[str, Track[Any, Any]],
        default: str | None,
    ) -> None:
        self.clock: Clock = Clock()
        self.gathers: Sequence[int] = ()
        """Nowhere do items wait for others."""
        self.items_set_out = 0
        self.is_recorded = False
        """Whether a journal records the tracks that items take."""
        self.slots: int | None = None
        """The router's limit says how many items are worked on at once."""
        self.crash: Callable[[NotAsync], None] = lambda error: None
        """Ends everything with a mistake in the program; here the error does that by itself."""
        self.counts: Callable[[], FanOutStatistics] = lambda: NOTHING_IN_FLIGHT
        """How many items are in flight and waiting for their turn."""
        self._calls_in_flight = 0
        self._classify = classify
        self._classifier = what_classifies(classify)
        self._lines = {name: Line(name, given) for name, given in tracks.items()}
        self._default = default

    @disable_ki_protection
    async def call(self, item: Any) -> Any:
        """Send a single item along its track, in the task and run of the caller."""
        walker = Walker()
        walker.item = item
        self.counts = lambda: FanOutStatistics(in_flight=self._calls_in_flight, unread=0)
        self.clock.start()
        self._calls_in_flight += 1
        try:
            with calling(self, walker):
                return await self.walk(walker)
        finally:
            self._calls_in_flight -= 1
            self.clock.touch()

    def begin(self, host: Crashing) -> None:
        """Let an engine start the items, and start the clock."""
        self.crash = host.crash
        for line in self._lines.values():
            line.calls.belong_to(host)
        self.clock.start()

    def left(self, walker: Walker) -> None:
        """Do nothing: nobody here waits for other items."""

    def look(self) -> None:
        """Do nothing: nobody here waits for other items."""

    async def walk(self, walker: Walker) -> Any:
        """Classify an item and send it along its track; if it fails there, once along another.

        Raises:
          UnknownTrackError: if the classifier chose a track that doesn't exist.
          Exception: from the classifier or the track.

        Checkpoint: as the functions do.

        Cancellation: the item is on no track and in no line.
        """
        record = walker.record
        line = await (self._choose(walker.item) if record is None else self._chosen(record, walker))
        escalate = line.given.escalate
        failure = None if record is None else await _failed_before(record, line)
        if failure is None:
            if record is not None:
                await record.enter(line.what)
            try:
                return await line.take(walker)
            except NotAsync as error:
                self.crash(error)
                raise
            except Exception as error:
                if escalate is None or is_cancelled() or line.calls.closing():
                    raise
                failure = error
            line.escalated += 1
            walker.attempts += 1
            if record is not None:
                _record(record, line.what, told(failure), walker)
        assert escalate is not None
        try:
            if record is not None:
                await record.enter(what_escalates(line.name, escalate))
            return await self._lines[escalate].take(walker)
        except NotAsync as error:
            self.crash(error)
            raise
        except Exception as error:
            set_context(error, failure)
            try_note(
                error, f"escalated from {line.what}, which failed with {error_in_words(failure)}"
            )
            raise
        finally:
            del failure  # It holds the frame that holds it.

    async def _chosen(self, record: ItemSteps, walker: Walker) -> Line:
        """Return the track that was chosen for an item, or choose it and record that."""
        step = record.knows(self._classifier)
        if step is not None:
            line = self._lines.get(json.loads(await record.text(step)))
            if line is not None:
                return line
        await record.enter(self._classifier)
        line = await self._choose(walker.item)
        _record(record, self._classifier, line.name, walker)
        return line

    async def _choose(self, item: Any) -> Line:
        try:
            chosen = self._classify(item)
            if isinstance(chosen, Awaitable):
                chosen = await chosen
        except Exception as error:
            note_place(error, self._classifier, name_of(self._classify))
            raise
        try:
            line = self._lines.get(chosen)
        except TypeError:  # Not even hashable.
            line = None
        if line is None and self._default is not None:
            line = self._lines[self._default]
        if line is None:
            unknown = UnknownTrackError(
                f"{self._classifier} chose the track {chosen!r:.200}, but there is no such track; "
                f"there are {', '.join(map(repr, self._lines))}; add it to tracks=, or name "
                "one of those as default="
            )
            note_place(unknown, self._classifier, name_of(self._classify))
            raise unknown
        return line

    @property
    def hedges(self) -> Hedges:
        """The attempts started alongside others, and what they achieved."""
        return sum_of_hedges(line.calls.hedges for line in self._lines.values())

    def end(self) -> None:
        """Stop the clock and let go of the engine: whoever keeps this keeps only numbers."""
        self.clock.stop()
        self.counts = lambda: NOTHING_IN_FLIGHT
        self.crash = lambda error: None
        for line in self._lines.values():
            line.calls.belong_to(None)

    def statistics(self, counts: FanOutStatistics | None = None) -> RouterStatistics:
        """Return what happened on each track so far."""
        now = self.clock.now()
        counts = counts or self.counts()
        return RouterStatistics(
            in_flight=counts.in_flight,
            unread=counts.unread,
            waiting=counts.waiting,
            waiting_by_priority=counts.waiting_by_priority,
            tracks=types.MappingProxyType(
                {name: line.statistics(now) for name, line in self._lines.items()}
            ),
            seconds=self.clock.seconds(),
        )


def _record(record: ItemSteps, name: str, value: Any, walker: Walker) -> None:
    """Record what a step came to that gives no value: the choice of a track, or its failure."""
    further, degraded = walker.attempts - 1, walker.degraded
    record.leave_text(name, json.dumps(value), further=further, degraded=degraded)


async def _failed_before(record: ItemSteps, line: Line) -> Exception | None:
    """Return the failure that had an item leave a track, in an earlier session; None without."""
    step = record.knows(line.what)
    if step is None or line.given.escalate is None:
        return None
    return JournaledError(*json.loads(await record.text(step)))
