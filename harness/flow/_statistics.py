"""Count what happens at each stage or track, and say which of them is the bottleneck."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import trio

from harness.fanout import FanOutStatistics, Hedges

NOTHING_IN_FLIGHT = FanOutStatistics(in_flight=0, unread=0)


class Meter:
    """Counts the calls of one stage or track.

    Plain attributes, which a pipeline's hot path counts itself: a call for each would be a tenth of
    a stage's cost.
    """

    __slots__ = ("busy", "calls", "cancelled", "dropped", "extra_items", "failed", "ok", "paused")

    def __init__(self) -> None:
        self.calls = 0
        """Calls that began."""
        self.busy = 0.0
        """The ends of all finished stretches of work, less the beginnings of all stretches."""
        self.ok = 0
        self.failed = 0
        self.dropped = 0
        self.cancelled = 0
        self.paused = 0
        """Calls in progress that aren't working at the moment."""
        self.extra_items = 0
        """Items that came out beyond one per call, from a stage with batches or several outputs."""

    @property
    def working(self) -> int:
        """Calls working at the moment."""
        ended = self.ok + self.failed + self.dropped + self.cancelled
        return self.calls - ended - self.paused

    @property
    def items(self) -> int:
        """Items that came out with a value."""
        return self.ok + self.extra_items

    def begin(self, now: float) -> None:
        """Note that a call began and is working."""
        self.calls += 1
        self.busy -= now

    def end(self, status: str, now: float) -> None:
        """Note how a call ended that was working until now."""
        self.busy += now
        if status == "ok":
            self.ok += 1
        elif status == "dropped":
            self.dropped += 1
        elif status == "cancelled":
            self.cancelled += 1
        else:
            self.failed += 1

    def pause(self, now: float) -> None:
        """Note that a call stops working."""
        self.paused += 1
        self.busy += now

    def resume(self, now: float) -> None:
        """Note that a call is working again."""
        self.paused -= 1
        self.busy -= now

    def busy_seconds(self, now: float) -> float:
        """Return the time spent in calls so far, summed over all of them."""
        return self.busy + self.working * now


@attrs.frozen(kw_only=True)
class StageStatistics:
    """What happened at one stage."""

    name: str
    """The stage's name."""

    limit: int
    """How many calls at once; batches, if it gathers."""

    working: int
    """Calls in progress now."""

    waiting: int
    """Items waiting before it now, with a place in its buffer: the queue depth."""

    held_up: int
    """Finished items that keep its slots because there is no room further on."""

    calls: int
    """Calls that began; batches, if it gathers."""

    ok: int
    """Calls that gave a value."""

    failed: int
    """Calls that failed for good, including those that timed out."""

    dropped: int
    """Calls that returned `DROP`."""

    cancelled: int
    """Calls that were cut short."""

    busy_share: float
    """The share of its slots' time that was spent in calls, from 0 to 1. Waiting for room further
    on isn't work, so the stage that is busy all the time is the one that limits the speed."""

    throughput: float
    """Items per second that came out of it with a value."""


@attrs.frozen(kw_only=True)
class PipelineStatistics(FanOutStatistics):
    """What has happened in a pipeline so far. Reads well as text."""

    stages: tuple[StageStatistics, ...]
    """The stages, in order."""

    seconds: float
    """From the start until now, or until the end."""

    @property
    def bottleneck(self) -> str | None:
        """The name of the stage that limits the speed: the busiest; None before any was busy."""
        busiest = max(self.stages, key=lambda one: one.busy_share)
        return busiest.name if busiest.busy_share > 0 else None

    def __str__(self) -> str:
        lines = [
            f"{one.name}: {one.busy_share:.0%} busy, {one.working:,} of {one.limit:,} working, "
            f"{one.waiting:,} waiting, {one.throughput:.3g} items/s"
            + (f", {one.failed:,} failed" if one.failed else "")
            + (f", {one.dropped:,} dropped" if one.dropped else "")
            + (" <- bottleneck" if one.name == self.bottleneck else "")
            for one in self.stages
        ]
        return "\n".join(lines)


@attrs.frozen(kw_only=True)
class TrackStatistics:
    """What happened on one track."""

    name: str
    """The track's name."""

    limit: int | None
    """How many items at once; None: as many as the router lets in."""

    working: int
    """Items on it now."""

    waiting: int
    """Items waiting for it now."""

    taken: int
    """Items that began on it, including escalated ones."""

    ok: int
    """Items that it gave a value for."""

    failed: int
    """Items that failed on it for good, or timed out."""

    dropped: int
    """Items that it returned `DROP` for."""

    cancelled: int
    """Items that were cut short on it."""

    escalated: int
    """Failed items that went on to another track."""

    busy_seconds: float
    """The time spent on it, summed over all items."""


@attrs.frozen(kw_only=True)
class RouterStatistics(FanOutStatistics):
    """What has happened in a router so far. Reads well as text."""

    tracks: Mapping[str, TrackStatistics]
    """By the track's name; read-only."""

    seconds: float
    """From the start until now, or until the end."""

    def __str__(self) -> str:
        return "\n".join(
            f"{one.name}: {one.taken:,} taken, {one.ok:,} ok, {one.working:,} working, "
            f"{one.waiting:,} waiting"
            + (f", {one.failed:,} failed" if one.failed else "")
            + (f", {one.escalated:,} escalated" if one.escalated else "")
            for one in self.tracks.values()
        )


def sum_of_hedges(parts: Iterable[Hedges]) -> Hedges:
    """Return the total cost and gain of the hedges of several stages or tracks."""
    found = list(parts)
    return Hedges(
        sum(one.started for one in found),
        sum(one.won for one in found),
        sum(one.seconds_saved for one in found),
    )


class Clock:
    """The time between a start and an end, or until now."""

    __slots__ = ("_ended_at", "_last_at", "_started_at")

    def __init__(self) -> None:
        self._started_at: float | None = None
        self._last_at = 0.0
        self._ended_at: float | None = None

    def start(self) -> None:
        """Start counting, unless that was done before."""
        if self._started_at is None:
            self._started_at = self._last_at = trio.current_time()

    def touch(self) -> None:
        """Note that something happened now, for whoever asks after trio has ended."""
        self._last_at = trio.current_time()

    def stop(self) -> None:
        """Stop counting."""
        self._ended_at = trio.current_time()

    def now(self) -> float:
        """Return the time; once stopped, that of the end; outside trio, the last known."""
        if self._ended_at is not None:
            return self._ended_at
        try:
            return trio.current_time()
        except RuntimeError:
            return self._last_at

    def seconds(self) -> float:
        """Return the seconds since the start; 0 before it."""
        return 0.0 if self._started_at is None else self.now() - self._started_at
