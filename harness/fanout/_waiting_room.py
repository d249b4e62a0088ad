"""Hold the items between their look-up in a journal and their start, and say which is next.

Plain bookkeeping for `JournalFeed`, without an `await`. Some leave without being started: an item
already done waits here only until its result has been read.

Invariant: an item is in exactly one place (to be read, being read, to be begun, being begun, begun,
or suspected), and `count` is how many there are in all but the first two.
"""

from __future__ import annotations

import math
from collections import deque

import attrs

from harness.fanout._glimpsed import GlimpsedItems, Recognized
from harness.fanout._journal_job import JournaledJob, Recorded
from harness.fanout._lookahead import Lookahead
from harness.policies import Priority

READ_AHEAD_AT_LEAST = 64
"""Items that may be looked up before their turn, so that what is done is read many at a time."""

AHEAD_AT_MOST = 4
"""Items that may be looked up and begun before their turn, as a multiple of those in flight."""

WORTH_BEGINNING_AHEAD = 1 / 50
"""Attempts are recorded ahead if a record takes more than this share of an item's time. One
recorded ahead counts if the process dies, so it isn't done where it gains nothing."""

AHEAD_OF_AN_EMPTY_SLOT = 32
"""Attempts recorded ahead along with those that slots wait for; more would hold these up."""

CLAIMED_AT_ONCE = 256
"""Items claimed in one transaction, if others share the batch."""

RECORDS_AHEAD = 3
"""How many records' time the attempts begun ahead cover: one record may be under way when an
attempt joins the queue, its own takes as long again, and some are slower than the mean."""

READ_AT_ONCE = 1_000
"""Results read from the journal and handed on in one step."""


class WaitingRoom:
    """The items of one fan-out that wait."""

    def __init__(
        self, *, limit: int, window: float, priority: Priority | None, kept: GlimpsedItems
    ) -> None:
        self.limit = limit
        """How many items may be in flight, as of the last look."""
        self._to_begin: deque[JournaledJob] = deque()
        self._lookahead = None if priority is None else Lookahead(_of_met(priority))
        self._serial = priority is not None and priority.serial_by is not None
        self._numbers: dict[int, int] = {}
        """What the look-ahead calls those taken from it, by index; with keys only."""
        self._beginning = 0
        self.depth = min(window, max(AHEAD_AT_MOST * limit, READ_AHEAD_AT_LEAST))
        """How many may wait at most; without priorities, on top of the window."""
        if priority is not None:
            self.depth = priority.lookahead
        self.count = 0
        """How many wait to be run."""
        self.kept = kept
        """Those that are done: their results have still to be read."""
        self.reading: list[Recognized] = []
        """Those of them whose results are being read."""
        self.begun: deque[JournaledJob] = deque()
        """Those whose attempts are on disk."""
        self.suspects: deque[JournaledJob] = deque()
        """Those that must run with nothing else in flight."""
        self.suspect: JournaledJob | None = None
        """The suspect whose turn it is: being begun, begun, or in flight."""
        self.item_seconds = Mean()
        """How long an item takes."""
        self.record_seconds = Mean()
        """How long it takes to get an attempt on disk."""

    @property
    def chooses(self) -> bool:
        """Whether priorities say which is next."""
        return self._lookahead is not None

    @property
    def all_count(self) -> int:
        """How many wait, to be run or to be read."""
        return self.count + len(self.kept) + len(self.reading)

    def is_overtaking(self) -> bool:
        """Return whether the next to start comes after one whose result is still to be read."""
        following = self.begun or self._to_begin
        return bool(following and self.kept and following[0].index > self.kept.next_index)

    @property
    def to_begin(self) -> int:
        """How many wait for an attempt to be recorded; 0 with priorities, which need them all."""
        return len(self._to_begin)

    def depths(self) -> dict[float, int]:
        """Return how many wait by priority, the largest first; nothing without priorities."""
        return {} if self._lookahead is None else self._lookahead.depths()

    # What is to run ---------------------------------------------------------------------------

    def put(self, job: JournaledJob) -> None:
        """Add an item that is to run; it is already counted."""
        if self._lookahead is None:
            self._to_begin.append(job)
        else:
            self._lookahead.put(job)

    def next_to_begin(self, *, in_flight: int, places: float) -> list[JournaledJob]:
        """Take the items whose attempts should be recorded now.

        For the free slots, and ahead where that is worth it; or a suspect, if it is the turn of
        one: `suspect` says so.

        Args:
          in_flight: How many items are in flight.
          places: How many more may be in flight or unread.
        """
        if self.suspect is not None:
            return []
        room = min(self.limit - in_flight, max(0, places))
        ahead = self._ahead()
        if room > len(self.begun):
            ahead = min(ahead, AHEAD_OF_AN_EMPTY_SLOT)
        count = room + ahead - self._beginning - len(self.begun)
        chosen: list[JournaledJob] = []
        while len(chosen) < count and (job := self._next()) is not None:
            chosen.append(job)
        idle = not (in_flight or self._beginning or chosen)
        if idle and self.suspects and (not self.begun or places <= 0):
            self.suspect = self.suspects.popleft()
            chosen = [self.suspect]
        return chosen

    def wanted(self, *, in_flight: int, places: float) -> int:
        """Return how many more items to claim, if others share the batch; less than 0: too many.

        As many as slots are free, and those to be recorded ahead: what is claimed and waits, nobody
        else can run.
        """
        free = min(self.limit - in_flight, max(0, places))
        # None without a place for its result: it would wait here for whoever reads the results.
        ready = min(free + self._ahead(), places)
        return int(min(ready - self.count, CLAIMED_AT_ONCE))

    def begin(self, chosen: list[JournaledJob], attempts: list[int]) -> None:
        """Note that attempts are being recorded, with their numbers."""
        for job, number in zip(chosen, attempts, strict=True):
            job.open.append(Recorded(number))
        self._beginning += len(chosen)

    def are_begun(self, chosen: list[JournaledJob]) -> None:
        """Note that their attempts are on disk."""
        self._beginning -= len(chosen)
        for job in chosen:
            job.is_begun = True
            if job is not self.suspect:
                self.begun.append(job)

    def ended(self, index: int) -> None:
        """Let the next one of an item's key go ahead; only with keys."""
        if self._lookahead is not None and index in self._numbers:
            self._lookahead.ended(self._numbers.pop(index))

    def drain(self, *, suspect_started: bool) -> list[JournaledJob]:
        """Take out all that wait to be run, except what is being begun.

        Args:
          suspect_started: Whether the suspect, if it is the turn of one, has been started.
        """
        left = [*self._to_begin, *self.begun, *self.suspects]
        if self.suspect is not None and self.suspect.is_begun and not suspect_started:
            left.append(self.suspect)
            self.suspect = None
        if self._lookahead is not None:
            left += [one.item for one in self._lookahead.drain()]
        for places in (self._to_begin, self.begun, self.suspects):
            places.clear()
        self.count -= len(left)
        return left

    def _next(self) -> JournaledJob | None:
        if self._lookahead is None:
            return self._to_begin.popleft() if self._to_begin else None
        if not self._lookahead.ready:
            return None
        waiting = self._lookahead.take()
        job: JournaledJob = waiting.item
        if self._serial:
            self._numbers[job.index] = waiting.index
        job.problem = waiting.problem
        return job

    def _ahead(self) -> int:
        """Return how many attempts to record before there is a slot for them."""
        # With priorities, recording an attempt makes the choice, so it is done late.
        if self._lookahead is not None:
            return 0
        item, record = self.item_seconds.value, self.record_seconds.value
        if not record > item * WORTH_BEGINNING_AHEAD:  # Also if nothing has ended and it is nan.
            return 0
        return math.ceil(min(AHEAD_AT_MOST, RECORDS_AHEAD * record / max(item, 1e-6)) * self.limit)


class Mean:
    """A mean that forgets: the latest values weigh most."""

    def __init__(self) -> None:
        self.value = math.nan

    def add(self, value: float) -> None:
        """Take a value into account."""
        self.value = value if math.isnan(self.value) else self.value + (value - self.value) / 8


def _of_met(priority: Priority) -> Priority:
    """Return a priority of items as one of the jobs made of them."""
    function, serial_by = priority.function, priority.serial_by
    return attrs.evolve(
        priority,
        function=None if function is None else lambda job: function(job.item),
        serial_by=None if serial_by is None else lambda job: serial_by(job.item),
    )
