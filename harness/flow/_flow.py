"""Walk items through the stages of a pipeline: one task and one run each, from end to end.

An item goes from gate to gate. It keeps the slot of a stage until it has a slot or a place before
the next, so a slow stage holds up those behind it, one by one, up to the entry, where nothing more
is pulled then. Its task holds its run, its context and its cancellation all the way; nothing is
handed from task to task.

For stages that gather, the flow knows how many walkers may still arrive there: when none can, a
batch goes with what it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import trio

from harness.fanout._drop import DROP
from harness.flow._attempts import Calls, NotAsync, not_async
from harness.flow._batches import Batches, call_with_list
from harness.flow._gate import Gate, Holdable, Walker
from harness.flow._outputs import Outputs
from harness.flow._places import note_place
from harness.flow._stage import Stage, distinct
from harness.flow._statistics import Clock, Meter, PipelineStatistics, StageStatistics
from harness.runs import Run, open_run


class Host(Protocol):
    """What starts the walkers of a flow: the engine of a pipeline, or a single call."""

    @property
    def run(self) -> Run:
        """The run that the items are below."""

    @property
    def decided(self) -> bool:
        """Whether everything is being cut short."""

    def more_may_come(self) -> bool:
        """Return whether items may still start that are not on their way yet."""

    def leave_entry(self, walker: Walker) -> None:
        """Note that a walker has room behind the first stage, so that another may start."""

    def start_task(
        self,
        nursery: trio.Nursery | None,
        function: Callable[..., Any],
        *args: Any,
        name: str | None = None,
    ) -> None:
        """Start a task, by default in the host's own nursery, in the context of the caller."""

    def crash(self, error: NotAsync) -> None:
        """End everything with a mistake in the program."""


class Entry:
    """What a walker holds at the first stage: a slot that the host counts."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def give_back(self, walker: Walker) -> None:
        """Tell the host, once."""
        if not walker.past_entry:
            walker.past_entry = True
            self._host.leave_entry(walker)


class Station:
    """One stage of a pipeline under way."""

    __slots__ = (
        "batches",
        "calls",
        "function",
        "gate",
        "gives_several",
        "limit",
        "meter",
        "name",
        "places",
        "plain",
        "what",
    )

    def __init__(self, given: Stage, name: str, *, places: int) -> None:
        self.name = name
        self.what = f"stage {name!r}"
        self.limit = given.limit
        self.places = places
        """How many may wait before it."""
        self.function: Callable[[Any], Any] = given.function
        self.gives_several = given.gives_several
        self.meter = Meter()
        self.batches: Batches | None = None
        self.calls = Calls(self.what, given.function, given.each)
        self.plain = self.calls.plain
        self.gate: Gate | Entry | None = Gate(self.what, slots=given.limit, places=places)

    @property
    def line(self) -> Gate | Batches | None:
        """Where items wait before it; None at the entry."""
        if self.batches is not None:
            return self.batches
        return self.gate if isinstance(self.gate, Gate) else None


class Flow:
    """The stages of a pipeline under way, and who is where."""

    def __init__(self, stages: Sequence[Stage], *, buffer: int, fail_fast: bool) -> None:
        self.clock = Clock()
        self._fail_fast = fail_fast
        self._host: Host
        self._gathering: list[int] = []
        """The indexes of the stages that gather."""
        self._before: dict[int, int] = {}
        """For each of them, how many walkers are on their way to it."""
        self.capacity = 0
        """How many walkers there is room for at once."""
        self._stages = stages
        names = distinct([given.name for given in stages])
        self._stations: list[Station] = []
        for index, (given, name) in enumerate(zip(stages, names, strict=True)):
            size = 1 if given.batch is None else given.batch.size
            places = 0 if index == 0 and size == 1 else max(buffer, size if given.batch else 0)
            self._stations.append(Station(given, name, places=places))
            self.capacity += given.limit * size + places

    # How it is entered ------------------------------------------------------------------------

    def belong_to_engine(self, host: Host) -> int:
        """Let an engine start the items; return how many may be at the entry at once."""
        self._host = host
        for index, (given, station) in enumerate(zip(self._stages, self._stations, strict=True)):
            if given.batch is not None:
                self._gathering.append(index)
                self._before[index] = 0
                station.gate = None
                station.batches = Batches(
                    self,
                    index,
                    station.name,
                    given.function,
                    batch=given.batch,
                    limit=given.limit,
                    places=station.places,
                    each=given.each,
                    meter=station.meter,
                )
                station.calls = station.batches.calls
        first = self._stations[0]
        entry = Entry(host)
        if first.batches is None:
            first.gate = entry
        self._entry: Holdable = entry
        return first.limit if first.batches is None else first.places

    def belong_to_calls(self, host: Host) -> None:
        """Let any task walk a single item through; a stage that gathers gets a list of one."""
        self._host = host
        for given, station in zip(self._stages, self._stations, strict=True):
            if given.batch is not None:
                station.function = _alone(station, given)
                station.calls = Calls(station.what, station.function, given.each)

    def begin_at_entry(self) -> Walker:
        """Return a walker for an item that the engine has let in."""
        return self.begin(0, self._entry)

    def begin(self, position: int, held: Holdable | None) -> Walker:
        """Return a new walker on its way to the stage ``position``."""
        walker = Walker(position, held)
        for index in self._gathering:
            if index >= position:
                self._before[index] += 1
        return walker

    # The way ----------------------------------------------------------------------------------

    async def walk(self, walker: Walker, value: Any) -> Any:
        """Take a value through the stages from the walker's position on; return what comes out.

        Raises:
          Exception: of the stage that failed, with a note of its name.

        Checkpoint: as the stages do.

        Cancellation: the walker holds nothing, and is on its way to nowhere.
        """
        now = trio.current_time
        try:
            for station in self._stations[walker.position :]:
                gate = station.gate
                if gate is None:
                    value = await self._gather(station, walker, value)
                    if value is DROP:
                        return DROP
                    continue
                if walker.held is not gate:
                    assert isinstance(gate, Gate)
                    if gate.free:
                        gate.free -= 1
                        held, walker.held = walker.held, gate
                        if held is not None:
                            held.give_back(walker)
                    else:
                        await gate.wait(walker)
                if station.gives_several:
                    return await self._spread(station, walker, value)
                meter = station.meter
                meter.begin(now())
                awaitable: Any = None
                try:
                    if station.plain:
                        awaitable = station.function(value)
                        value = await awaitable
                    else:
                        value = await station.calls.call(value, walker)
                except Exception as error:
                    self._failed(station, error, awaitable)
                    raise
                finally:
                    meter.end(now())
                if value is DROP:
                    meter.dropped += 1
                    return DROP
                meter.ok += 1
                meter.items += 1
            return value
        finally:
            self._end(walker)

    async def _gather(self, station: Station, walker: Walker, value: Any) -> Any:
        assert station.batches is not None
        try:
            returned = await station.batches.join(walker, value)
        except Exception as error:
            note_place(error, station.what, station.name)
            raise
        if returned is DROP:
            station.meter.dropped += 1
            station.meter.items -= 1
        return returned

    async def _spread(self, station: Station, walker: Walker, value: Any) -> Any:
        """Send each output of a stage that yields several on a way of its own."""
        outputs = Outputs(
            station.name,
            station.calls,
            station.meter,
            walk=self.walk,
            begin=self.begin,
            start_task=self._host.start_task,
            next_position=self._stations.index(station) + 1,
            fail_fast=self._fail_fast,
        )
        station.meter.calls += 1

        def given_back() -> None:
            walker.let_go()
            self._end(walker)

        try:
            return await outputs.collect(value, walker, given_back)
        except NotAsync as error:
            self._host.crash(error)
            raise

    def _failed(self, station: Station, error: Exception, awaitable: Any) -> None:
        """Note in which stage an error arose; a function that isn't async ends everything."""
        station.meter.failed += 1
        note_place(error, station.what, station.name)
        if isinstance(error, NotAsync):
            self._host.crash(error)
        elif isinstance(error, TypeError) and not isinstance(awaitable, Awaitable | None):
            self._host.crash(not_async(station.what, station.function, awaitable))

    def _end(self, walker: Walker) -> None:
        """Let a walker go: it holds nothing any more, and arrives nowhere."""
        held, walker.held = walker.held, None
        # At the entry it is the host that counts, when it takes the item's result.
        if held is not None and not isinstance(held, Entry):
            held.give_back(walker)
        if self._gathering:
            position, walker.position = walker.position, len(self._stations)
            for index in self._gathering:
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

    def look(self) -> None:
        """Let batches go that wait for something that can't come any more."""
        for index in self._gathering:
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
    def hedges(self) -> int:
        """How many attempts were started beside another one."""
        return sum(station.calls.hedges for station in self._stations)

    def statistics(self) -> PipelineStatistics:
        """Return what happened at each stage so far."""
        now, seconds = self.clock.now(), self.clock.seconds()
        lines = [station.line for station in self._stations]
        stages = []
        for index, station in enumerate(self._stations):
            meter = station.meter
            following = lines[index + 1] if index + 1 < len(lines) else None
            stages.append(
                StageStatistics(
                    name=station.name,
                    limit=station.limit,
                    working=meter.working,
                    waiting=0 if lines[index] is None else lines[index].waiting,
                    held_up=0 if following is None else following.held_up,
                    calls=meter.calls,
                    ok=meter.ok,
                    failed=meter.failed,
                    dropped=meter.dropped,
                    busy_share=meter.busy_seconds(now) / (station.limit * seconds)
                    if seconds
                    else 0.0,
                    throughput=meter.items / seconds if seconds else 0.0,
                )
            )
        return PipelineStatistics(stages=tuple(stages), seconds=seconds)


def _alone(station: Station, given: Stage) -> Callable[[Any], Awaitable[Any]]:
    """Return a function of one item that calls a stage that gathers with a list of it."""

    async def call(item: Any) -> Any:
        async with open_run(station.name):
            return (await call_with_list(station.what, given.function, [item]))[0]

    return call
