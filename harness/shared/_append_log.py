"""Let each run append to a log, and read it in an order that doesn't depend on who came first.

Each run has a segment of its own, so what one run appends stays together and in order. The merge
puts the segments in the order of the tree of runs: a run before those below it, the items of a
fan-out by their place in the input, other siblings by name, and what is still alike (attempts at
one item, steps of the same name) in the order they started.

So two programs that do the same have the same log, however their tasks took turns. Only time tells
apart what place and name can't: give concurrent runs different names.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar

import attrs

from harness.runs import Run, RunStatus, current_run_or_none
from harness.runs._current import no_run_error

T = TypeVar("T")

Place: TypeAlias = tuple[tuple[int, str, int], ...]
"""Where a run is in the tree, from its root down: for each run its item's index (-1 if it isn't an
attempt at an item), its name, and its number in the order of starts."""


@attrs.frozen(kw_only=True)
class Segment(Generic[T]):
    """What one run appended."""

    run_id: str
    """The run's id."""

    run_path: str
    """Where it is in the tree of runs."""

    status: RunStatus
    """The run's status when this was read."""

    entries: tuple[T, ...]
    """In the order in which the run appended them."""


@attrs.frozen(kw_only=True)
class AppendLogStatistics:
    """A log at one moment."""

    entries: int
    """Entries, of all runs."""

    segments: int
    """Runs that have appended anything."""

    running: int
    """Those of them that are still running and may append more."""


class _OpenSegment(Generic[T]):
    __slots__ = ("_below", "entries", "place", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        """Only for its facts: the handle of an ended run holds nothing else."""
        above = tuple(run._ancestors())[::-1]
        self.place: Place = tuple(_step(run) for run in (*above, run))
        self._below = tuple(run for run in above if run._item_index is not None)
        self.entries: list[T] = []

    @property
    def counts(self) -> bool:
        """Whether the run, and each attempt at an item that it is part of, hasn't failed."""
        return all(run.status in ("ok", "running") for run in (self.run, *self._below))


def _step(run: Run) -> tuple[int, str, int]:
    """Return where a run is among its siblings."""
    number = int(run.id.rpartition("-")[2])
    return (-1 if run._item_index is None else run._item_index), run.name, number


class AppendLog(Generic[T]):
    """A log that runs share: each appends, and the merge doesn't depend on the order of arrival.

    Any run can use it, even from its worker threads. It belongs to no run and keeps everything
    appended; make one where the work that shares it begins.
    """

    __slots__ = ("_lock", "_segments")

    def __init__(self) -> None:
        self._segments: dict[str, _OpenSegment[T]] = {}  # By the run's id.
        # Several threads of one run may create its segment at the same time.
        self._lock = threading.Lock()

    def append(self, entry: T) -> None:
        """Add ``entry`` to the end of the current run's segment.

        Raises:
          NoRunError: outside any run.
          RunEndedError: if the current run has ended.
        """
        run = current_run_or_none()
        if run is None:
            raise no_run_error("an entry of a log belongs to the run that appends it, and")
        run._refuse_if_ended("it can't append to a log")
        with self._lock:
            segment = self._segments.get(run.id)
            if segment is None:
                segment = self._segments[run.id] = _OpenSegment(run)
            segment.entries.append(entry)

    def segments(self, *, ok_only: bool = False) -> tuple[Segment[T], ...]:
        """Return what each run appended, in the order of the merge.

        Args:
          ok_only: Whether to leave out runs that failed, timed out or were cancelled, and
            everything below such an attempt: the attempt before a retry, the loser of a hedge. How
            far such a run got can depend on timing.
        """
        with self._lock:
            found = sorted(self._segments.values(), key=lambda segment: segment.place)
            return tuple(
                Segment(
                    run_id=segment.run.id,
                    run_path=segment.run.path,
                    status=segment.run.status,
                    entries=tuple(segment.entries),
                )
                for segment in found
                if segment.counts or not ok_only
            )

    def merged(self, *, ok_only: bool = False) -> tuple[T, ...]:
        """Return all entries, in the order of the runs that appended them.

        Args:
          ok_only: As for `segments`.
        """
        return tuple(
            entry for segment in self.segments(ok_only=ok_only) for entry in segment.entries
        )

    def __iter__(self) -> Iterator[T]:
        return iter(self.merged())

    def __len__(self) -> int:
        with self._lock:
            return sum(len(segment.entries) for segment in self._segments.values())

    def statistics(self) -> AppendLogStatistics:
        """Return the current state of the log. Frozen, and cheap."""
        with self._lock:
            segments = self._segments.values()
            return AppendLogStatistics(
                entries=sum(len(segment.entries) for segment in segments),
                segments=len(segments),
                running=sum(segment.run.status == "running" for segment in segments),
            )

    def check(self) -> None:
        """Check the log's invariants, for tests.

        Raises:
          AssertionError: if one is broken.
        """
        with self._lock:
            places = [segment.place for segment in self._segments.values()]
            assert len(set(places)) == len(places), f"{self!r} has two runs in one place"
            for run_id, segment in self._segments.items():
                assert segment.run.id == run_id, f"{self!r} took one run for another"
                assert segment.entries, f"{self!r} has an empty segment"
        assert len(self.merged()) == len(self), f"{self!r} lost an entry"

    def __repr__(self) -> str:
        return f"<AppendLog, {len(self)} entries>"
