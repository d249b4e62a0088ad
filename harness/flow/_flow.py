"""Walk items through the stages of a pipeline: one task and one run each, from end to end.

An item goes from gate to gate. It keeps the slot of a stage until it has a slot or a place before
the next, so a slow stage holds up those behind it, one by one, back to the entry, where nothing
more is then pulled. Its task keeps its run, its context and its cancellation all the way; nothing
is handed from task to task.

For gathering stages, the flow knows how many walkers may still arrive: when none can, a batch
starts with what it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol

import trio
from trio.lowlevel import disable_ki_protection

from harness.errors import JournalValueError
from harness.fanout import DROP, FanOutStatistics, Hedges
from harness.flow._attempts import Calls, NotAsync, not_async
from harness.flow._batches import Batches, call_with_list
from harness.flow._calls import CALLS, calling
from harness.flow._gate import Gate, Holdable, Walker
from harness.flow._outputs import Outputs
from harness.flow._places import note_place
from harness.flow._stage import AnyStage
from harness.flow._station import Station, stations_for, statistics_of
from harness.flow._statistics import (
    NOTHING_IN_FLIGHT,
    Clock,
    Meter,
    PipelineStatistics,
    sum_of_hedges,
)
from harness.runs import Run, open_run
from harness.runs._endings import cancelled_error, is_only_cancelled
from harness.runs._functions import forgotten_await_error

if TYPE_CHECKING:
    from harness.fanout._journal_steps import ItemSteps


class Host(Protocol):
    """What starts the walkers of a flow: the engine of a pipeline, or a single call.

    A walker begins by holding the host, which at the entry of a pipeline stands in for a slot of
    the first stage.
    """

    @property
    def run(self) -> Run:
        """The run that the items are below."""
        ...

    @property
    def decided(self) -> bool:
        """Whether everything is being cut short."""
        ...

    def why_cut(self) -> str | None:
        """Return in words why everything is being cut short; None if it isn't."""
        ...

    def closing(self) -> bool:
        """Return whether no further attempt is to be started."""
        ...

    def more_may_come(self) -> bool:
        """Return whether items may still start that aren't on their way yet."""
        ...

    def give_back(self, walker: Walker) -> None:
        """Note that a walker has room after the first stage, so that another may start."""

    def start_task(
        self,
        nursery: trio.Nursery | None,
        function: Callable[..., Any],
        *args: Any,
        name: str | None = None,
    ) -> None:
        """Start a task, by default in the host's own nursery, in the caller's context."""

    def crash(self, error: NotAsync) -> None:
        """End everything with a mistake in the program."""


class Flow:
    """The stages of a running pipeline, and which items are where."""

    def __init__(self, stages: Sequence[AnyStage], *, buffer: int, fail_fast: bool) -> None:
        self.clock: Clock = Clock()
        self._stations = stations_for(stages, buffer=buffer)
        self._fail_fast = fail_fast
        self.counts: Callable[[], FanOutStatistics] = lambda: NOTHING_IN_FLIGHT
        """How many items are in flight."""
        self._host: Host
        self._calls_in_flight = 0
        self._way: Sequence[tuple[Station, Any, Callable[[Any], Any] | None, Meter]] = ()
        """For each stage: the stage, its gate, its function if that is all there is, its meter."""
        self._now: Callable[[], float]
        """The clock itself: `trio.current_time` has to look it up first, which costs."""
        self.gathers: list[int] = []
        """The indexes of the stages that gather."""
        self._before: dict[int, int] = {}
        """How many walkers are on their way to each of them."""
        self.items_set_out: int = 0
        """Items whose task has begun; counted only if a stage gathers and has to know."""
        self.is_recorded = False
        """Whether a journal records the stages that items have been through."""

    @property
    def capacity(self) -> int:
        """How many items there is room for at once."""
        return sum(station.capacity for station in self._stations)

    @property
    def slots(self) -> int:
        """How many calls, or batches, may be in progress at once."""
        return sum(station.given.limit for station in self._stations)

    # How it is entered ------------------------------------------------------------------------

    @property
    def entry(self) -> int:
        """How many items may be at the entry at once."""
        first = self._stations[0]
        return first.given.limit if first.given.batch is None else first.places

    def begin(self, host: Host) -> None:
        """Let an engine start the items, and start the clock."""
        self._host = host
        self.start_clock()
        for station in self._stations:
            batch = station.given.batch
            if batch is not None:
                self.gathers.append(station.index)
                self._before[station.index] = 0
                station.gate = None
                station.batches = Batches(
                    self,
                    station.index,
                    station.name,
                    station.given.function,
                    batch=batch,
                    limit=station.given.limit,
                    places=station.places,
                    each=station.given.each,
                    meter=station.meter,
                )
                station.calls = station.batches.calls
            station.calls.belong_to(host)
        first = self._stations[0]
        if first.batches is None:
            first.gate = host
        self._set_way()

    def belong_to_calls(self) -> None:
        """Let any task `call` it with an item; a gathering stage gets a list of one."""
        self._host = CALLS
        self.counts = lambda: FanOutStatistics(in_flight=self._calls_in_flight, unread=0)
        for station in self._stations:
            if station.given.batch is not None:
                station.function = _alone(station)
                station.calls = Calls(station.what, station.function, station.given.each)
        self._set_way()

    def _set_way(self) -> None:
        self._way = tuple(
            (
                station,
                station.gate,
                station.function if station.is_plain and not self.is_recorded else None,
                station.meter,
            )
            for station in self._stations
        )

    def begin_output(self, position: int, item: Any, held: Holdable) -> Walker:
        """Return a walker for an output on its way to the stage ``position``."""
        walker = Walker()
        walker.item = item
        walker.position = position
        walker.held = held
        self._set_out(walker)
        return walker

    def end(self) -> None:
        """Stop the clock and let go of the host: whoever keeps the flow keeps only numbers."""
        self.clock.stop()
        self.counts = lambda: NOTHING_IN_FLIGHT
        self._host = CALLS
        for station in self._stations:
            station.calls.belong_to(None)
            if station.gate is not None and not isinstance(station.gate, Gate):
                station.gate = None
        self._way = ()

    def start_clock(self) -> None:
        """Start the clock, unless it has been started before."""
        self._now = trio.lowlevel.current_clock().current_time
        self.clock.start()

    def _set_out(self, walker: Walker) -> None:
        """Count a walker among those on their way to the gathering stages."""
        for index in self.gathers:
            if index >= walker.position:
                self._before[index] += 1

    # The way ----------------------------------------------------------------------------------

    @disable_ki_protection
    async def call(self, item: Any) -> Any:
        """Take a single item through, in the task and run of the caller."""
        walker = Walker()
        walker.item, walker.started_at = item, trio.current_time()
        self.start_clock()
        self._calls_in_flight += 1
        try:
            with calling(self, walker):
                return await self.walk(walker)
        finally:
            self._calls_in_flight -= 1
            self.clock.touch()

    async def walk(self, walker: Walker) -> Any:
        """Take an item through the stages from the walker's position; return what comes out.

        Raises:
          Exception: of the stage that failed, with a note of its name.

        Checkpoint: as the stages do.

        Cancellation: the walker holds nothing, and is no longer on its way anywhere.
        """
        position, value, now = walker.position, walker.item, walker.started_at
        record = walker.record
        if record is not None:
            position, value = await self._resumed(record, walker)
        is_output = walker.held is not None
        if not is_output:
            walker.held = self._host
            if self.gathers:
                self.items_set_out += 1
                self._set_out(walker)
        station: Station = self._stations[0]
        awaitable: Any = _NOT_CALLED
        time = self._now
        in_call = False  # Here, and not in a method that is called from here.
        try:
            for station, gate, function, meter in self._way[position:] if position else self._way:
                if gate is not None and (held := walker.held) is not gate:
                    if gate.free:
                        gate.free -= 1
                        walker.held = gate
                        held.give_back(walker)  # type: ignore[union-attr] # Never None here.
                    else:
                        in_call = False
                        await gate.wait(walker)
                        now = time()
                if function is None:
                    in_call = False
                    if record is None:
                        value = await self._not_plain(station, walker, value, now)
                    else:
                        value = await self._recorded(record, station, walker, value)
                    now = time()
                    if value is DROP:
                        return DROP
                    if station.gives_several:
                        return value
                    continue
                meter.calls += 1
                meter.busy -= now
                in_call = True
                awaitable = function(value)
                value = await awaitable
                if type(value) is CoroutineType:
                    raise forgotten_await_error(function, value)
                now = time()
                meter.busy += now
                if value is DROP:
                    meter.dropped += 1
                    return DROP
                meter.ok += 1
            return value
        except BaseException as error:
            if in_call:
                self._failed(station, error)
                called = awaitable is not _NOT_CALLED
                if isinstance(error, TypeError) and called and not isinstance(awaitable, Awaitable):
                    mistake = not_async(station.what, station.function, awaitable)
                    self._host.crash(mistake)
                    raise mistake from None
            raise
        finally:
            held, walker.held = walker.held, None
            # At the entry it is the host that counts, when it takes the item's result.
            if held is not None and held is not self._host:
                held.give_back(walker)
            if self.gathers:
                self._arrive_nowhere(walker)

    async def _resumed(self, record: ItemSteps, walker: Walker) -> tuple[int, Any]:
        """Return where an item goes on, and with what: behind the last stage that is done."""
        ahead = self._stations[walker.position :]
        several = next((one.index for one in ahead if one.gives_several), len(self._stations))
        for station in reversed(self._stations[walker.position : several]):
            step = record.knows(station.what)
            if step is None:
                continue
            try:
                value = record.decode(station.what, await record.text(step))
            except BaseException:
                if walker.held is not None:
                    self._arrive_nowhere(walker)
                raise
            position = len(self._stations) if value is DROP else station.index + 1
            for index in self.gathers:
                if walker.held is not None and walker.position <= index < position:
                    self._before[index] -= 1  # An output is counted as it is sent on its way.
            walker.position = position
            return position, value
        return walker.position, walker.item

    async def _recorded(
        self, record: ItemSteps, station: Station, walker: Walker, value: Any
    ) -> Any:
        """Go through a stage, and record that it is done."""
        await record.enter(station.what)
        value = await self._not_plain(station, walker, value, self._now())
        is_last = station.index == len(self._stations) - 1
        if station.gives_several or (record.is_whole and (is_last or value is DROP)):
            return value  # It is the item's, or an output has recorded it.
        try:
            further = max(0, walker.attempts - record.is_whole)
            return record.leave(station.what, value, further=further, degraded=walker.degraded)
        except JournalValueError as error:
            note_place(error, station.what, station.name)
            raise

    async def _not_plain(self, station: Station, walker: Walker, value: Any, now: float) -> Any:
        """Do at a stage what goes beyond calling its function."""
        if station.batches is not None:
            return await self._gather(station, station.batches, walker, value)
        if station.gives_several:
            return await self._spread(station, walker, value)
        meter = station.meter
        meter.begin(now)
        try:
            value = await station.calls.call(value, walker)
        except BaseException as error:
            self._failed(station, error)
            raise
        meter.end("dropped" if value is DROP else "ok", self._now())
        return value

    async def _gather(self, station: Station, batches: Batches, walker: Walker, value: Any) -> Any:
        """Go through the stage in a batch."""
        try:
            value = await batches.join(walker, value)
        except Exception as error:
            note_place(error, station.what, station.name)
            raise
        if value is DROP:
            station.meter.extra_items -= 1
        return value

    async def _spread(self, station: Station, walker: Walker, value: Any) -> Any:
        """Send each output of a stage that yields several on its own way."""
        outputs = Outputs(
            station.name,
            station.calls,
            station.meter,
            walk=self.walk,
            begin=self.begin_output,
            start_task=self._host.start_task,
            next_position=station.index + 1,
            fail_fast=self._fail_fast,
        )

        def given_back() -> None:
            walker.let_go()
            self._arrive_nowhere(walker)

        try:
            return await outputs.collect(value, walker, given_back)
        except NotAsync as error:
            self._host.crash(error)
            raise
        finally:
            if walker.record is not None:
                # What its outputs came to is due to all that follows, too.
                walker.record.here = self._stations[-1].what

    def _failed(self, station: Station, error: BaseException) -> None:
        """Note in which stage an error arose; a function that isn't async ends everything."""
        status = "cancelled" if is_only_cancelled(error) else "failed"
        station.meter.end(status, self._now())
        if not isinstance(error, Exception):
            return
        note_place(error, station.what, station.name)
        if isinstance(error, NotAsync):
            self._host.crash(error)

    def _arrive_nowhere(self, walker: Walker) -> None:
        """Stop counting a walker among those on their way, because it is about to end."""
        position, walker.position = walker.position, len(self._stations)
        for index in self.gathers:
            if index >= position:
                self._before[index] -= 1
        self.look()

    # What stages that gather ask ----------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The pipeline's run."""
        return self._host.run

    @property
    def decided(self) -> bool:
        """Whether the pipeline is being cut short."""
        return self._host.decided

    def why_cut(self) -> str | None:
        """Return in words why everything is being cut short; None if it isn't."""
        return self._host.why_cut()

    def left(self, walker: Walker) -> None:
        """Note that an item has ended."""
        if walker.position:  # It has arrived somewhere, so it was counted.
            self.items_set_out -= 1

    def look(self) -> None:
        """Start batches that wait for something that can no longer come."""
        for index in self.gathers:
            batches = self._stations[index].batches
            assert batches is not None
            batches.look()

    def may_come(self, index: int) -> bool:
        """Return whether another item may still arrive at the stage ``index``."""
        return self._before[index] > 0 or self._host.more_may_come()

    def arrived(self, walker: Walker, index: int) -> None:
        """Note that a walker is at the stage ``index``."""
        walker.position = index + 1
        self._before[index] -= 1

    def start_call(self, function: Callable[..., Any], *args: Any, name: str) -> None:
        """Start a task for the call of a batch."""
        self._host.start_task(None, function, *args, name=name)

    def crash(self, error: NotAsync) -> None:
        """End everything with a mistake in the program."""
        self._host.crash(error)

    # What happened ------------------------------------------------------------------------------

    @property
    def hedges(self) -> Hedges:
        """The attempts started alongside others, and what they achieved."""
        return sum_of_hedges(station.calls.hedges for station in self._stations)

    def statistics(self, counts: FanOutStatistics | None = None) -> PipelineStatistics:
        """Return what happened at each stage so far."""
        return statistics_of(self._stations, self.clock, counts or self.counts())


def _alone(station: Station) -> Callable[[Any], Awaitable[Any]]:
    """Return a function of one item that calls a gathering stage with a list of just that."""

    async def call(item: Any) -> Any:
        async with open_run(station.name) as run:
            values = await call_with_list(station.what, station.given.function, [item])
            return values[0]
        raise cancelled_error(run)

    return call


_NOT_CALLED = object()
"""Means that a stage's function hasn't returned. Not None, which it may return."""
