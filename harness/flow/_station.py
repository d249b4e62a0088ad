"""Keep the stages of a running pipeline: where items wait, what is called, what was counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.fanout import FanOutStatistics
from harness.flow._attempts import Calls
from harness.flow._batches import Batches
from harness.flow._gate import Gate
from harness.flow._places import what_stage
from harness.flow._stage import AnyStage, distinct
from harness.flow._statistics import Clock, Meter, PipelineStatistics, StageStatistics


class Station:
    """One stage of a running pipeline."""

    def __init__(self, given: AnyStage, name: str, index: int, *, buffer: int) -> None:
        self.given = given
        self.name = name
        self.index = index
        self.what = what_stage(name)
        self.function: Callable[[Any], Any] = given.function
        self.calls = Calls(self.what, self.function, given.each)
        self.meter = Meter()
        self.gives_several = given.gives_several
        """Whether its outputs go on one by one."""
        if given.batch is not None:
            self.places = max(buffer, given.batch.size)
        else:
            # Before the first stage there is the input, which waits by itself.
            self.places = 0 if index == 0 else buffer
        self.gate: Any = Gate(self.what, slots=given.limit, places=self.places)
        """Its `Gate`; at the entry the host, which counts instead; None for batches."""
        self.batches: Batches | None = None

    @property
    def capacity(self) -> int:
        """How many items there is room for in it and right before it."""
        size = 1 if self.given.batch is None else self.given.batch.size
        return self.given.limit * size + self.places

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to do but call the function."""
        return self.calls.plain and self.batches is None and not self.gives_several

    @property
    def line(self) -> Gate | Batches | None:
        """Where items wait before it; None at the entry."""
        if self.batches is not None:
            return self.batches
        return self.gate if isinstance(self.gate, Gate) else None


def stations_for(stages: Sequence[AnyStage], *, buffer: int) -> tuple[Station, ...]:
    """Return what is needed to run these stages once."""
    names = distinct([given.name for given in stages])
    return tuple(
        Station(given, name, index, buffer=buffer)
        for index, (given, name) in enumerate(zip(stages, names, strict=True))
    )


def statistics_of(
    stations: Sequence[Station], clock: Clock, counts: FanOutStatistics
) -> PipelineStatistics:
    """Return what happened at each stage so far."""
    now, seconds = clock.now(), clock.seconds()
    lines = [station.line for station in stations]
    found: list[StageStatistics] = []
    for station, line, further in zip(stations, lines, [*lines[1:], None], strict=True):
        meter = station.meter
        slot_seconds = station.given.limit * seconds
        found.append(
            StageStatistics(
                name=station.name,
                limit=station.given.limit,
                working=meter.working,
                waiting=0 if line is None else line.waiting,
                held_up=0 if further is None else further.held_up,
                calls=meter.calls,
                ok=meter.ok,
                failed=meter.failed,
                dropped=meter.dropped,
                cancelled=meter.cancelled,
                busy_share=meter.busy_seconds(now) / slot_seconds if slot_seconds else 0.0,
                throughput=meter.items / seconds if seconds else 0.0,
            )
        )
    return PipelineStatistics(
        in_flight=counts.in_flight,
        unread=counts.unread,
        stages=tuple(found),
        seconds=seconds,
    )
