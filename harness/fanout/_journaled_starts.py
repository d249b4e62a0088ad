"""How the items of a journaled fan-out are met, and when they are started.

Every item that is pulled is looked up in the journal. What is done takes no slot and waits to be
read; of the others an attempt is on disk before their functions start. Where items are short, so
that the wait for the disk would be felt, attempts are recorded ahead, as many as may be in flight.

A suspect, which may have killed its process before, waits until nothing else is in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import trio

from harness._words import repr_of
from harness.errors import JournaledError, JournalKeyError
from harness.fanout._dispositions import disposition, set_aside_words
from harness.fanout._engine import plan_for
from harness.fanout._journal import Ending
from harness.fanout._journaled_item import JournaledJob
from harness.fanout._journaled_records import RecordingEngine
from harness.fanout._result import Result
from harness.fanout._source import Exhausted
from harness.policies import Attempt

LOOKED_UP_AT_ONCE = 128
"""Items that are pulled and looked up in one step of trio's loop, in a millisecond or two. All else
waits meanwhile."""

SET_ASIDE = "SetAside"
"""What stands as the type of error of an item that was ended without being run."""


class StartingEngine(RecordingEngine):
    """A `RecordingEngine` that starts what isn't done."""

    def __init__(
        self, *given: Any, content: Callable[[Any], Any] | None = None, **options: Any
    ) -> None:
        super().__init__(*given, **options)
        self._content = content
        self._pulled = 0
        self._not_durable_at_most = min(self._window, 2 * self._limit)
        self._end_of_source: Exception | None = None
        """Why the source gives no more: `Exhausted`, or the error that it raised."""

    # Meet -------------------------------------------------------------------------------------

    def start_next(self) -> None:
        """Start what has been begun, at once; the clerk sees to the rest, for many at a time."""
        if self._waiting.begun and not self._over and self._in_flight < self._limit:
            self._base.run(self._start_begun)
        self._news.set()

    def _start_begun(self) -> None:
        """Start items whose attempts are on disk. To be called in the base context."""
        suspect, begun = self._waiting.suspect, self._waiting.begun
        if suspect is not None:
            if suspect.is_begun and not self._in_flight and self._may_start():
                self._start_met(suspect)
            return
        while begun and self._in_flight < self._limit and self._may_start():
            self._start_met(begun.popleft())

    def _may_start(self) -> bool:
        """Return whether there is a place for one more result, on the disk and for the reader."""
        return (
            self._places() > 0 and self._not_durable < self._not_durable_at_most and not self._over
        )

    def _fill_journaled(self) -> None:
        """Pull, look up, begin and start while there is room. To be called in the base context."""
        self._start_begun()
        iterator = self._iterator
        if iterator is not None and self._end_of_source is None:
            try:
                for _ in range(LOOKED_UP_AT_ONCE):
                    if self._over or not self._room_to_pull():
                        break
                    self._meet(next(iterator))
                else:
                    self._news.set()
            except StopIteration:
                self._end_of_source = Exhausted()
            except Exception as error:
                # It is told in its turn: what was read before it is still run.
                self._end_of_source = error
        if self._over:
            return
        self._begin()
        if self._end_of_source is not None and not self._waiting.count and iterator is not None:
            if isinstance(self._end_of_source, Exhausted):
                self._no_more_items()
            else:
                self._source_failed(self._end_of_source)

    def _room_to_pull(self) -> bool:
        if not self._in_flight and self._waiting.to_begin >= self._limit:
            return False  # As many as there are slots: they don't wait for further look-ups.
        waiting, depth = self._waiting.count, self._waiting.depth
        under_way = waiting + self._in_flight + self._not_durable + self.unread
        # With priorities, what is read ahead counts towards the window: it is read to choose from.
        beside = 0 if self._waiting.chooses else depth
        return waiting < depth and under_way < self._window + beside

    def _places(self) -> float:
        """Return how many more items may be in flight or unread now."""
        left = self._window - self._in_flight - self._not_durable - self.unread
        if left <= 0 and self.starving and not (self._in_flight or self._records):
            # A reader waits, in input order, for one that later ones have overtaken: a suspect,
            # or one whose result is still to be read.
            return 1
        return left

    def _meet(self, item: Any) -> None:
        """Look up an item that was pulled, and put it where it belongs."""
        index = self._pulled
        self._pulled += 1
        self._waiting.count += 1
        try:
            key = self._key_of(item)
            content = item if self._content is None else self._content(item)
            entry = self.batch.find(key, content)
        except Exception as error:
            # Of any kind: an item that nobody waits for would be waited for without end.
            self._waiting.count -= 1
            self._record(self._skip(item, index))
            self.fail(error)
            return
        job = JournaledJob(index, item, key, entry)
        what = disposition(entry, max_attempts=self.batch.max_attempts)
        if what == "kept":
            self._waiting.kept.append(job)
        elif what == "set aside":
            self._set_aside(job)
        elif what == "alone":
            self._waiting.suspects.append(job)
        else:
            self._waiting.put(job)

    def _key_of(self, item: Any) -> Any:
        assert self._key is not None
        try:
            return self._key(item)
        except Exception as error:
            raise JournalKeyError(
                f"key= raised {error!r} for {repr_of(item)}; with a journal every item needs a "
                "key, by which it is found again"
            ) from error

    def _set_aside(self, job: JournaledJob) -> None:
        most = self.batch.max_attempts
        assert most is not None
        words = set_aside_words(job.entry, max_attempts=most)
        now = trio.current_time()
        error = JournaledError(SET_ASIDE, words)
        result: Result[Any] = Result(
            job.index, job.key, job.item, None, "failed", error, job.entry.attempts, now, now
        )
        self._waiting.count -= 1
        self._count_kept(result)
        ending = Ending(status="failed", error_type=SET_ASIDE, error_message=words)
        self._keep(result, job.entry, None, ending)

    def _count_kept(self, result: Result[Any]) -> None:
        """Count an item that is done without being run.

        Of a failure the policy has heard before, in another session; a quorum has to know all the
        same how many may still succeed.
        """
        self._started += 1
        if self._counts_successes:
            self._join.add(result)
            if self._join.why is not None:
                self._start_no_more()
                self._cut_soon(self._join.why)

    # Begin and start --------------------------------------------------------------------------

    def _begin(self) -> None:
        """Record attempts at the next items."""
        chosen = self._waiting.next_to_begin(in_flight=self._in_flight, places=self._places())
        if not chosen:
            return
        began_at = time.perf_counter()

        def then(error: BaseException | None) -> None:
            self._waiting.are_begun(chosen)
            self._waiting.record_seconds.add(time.perf_counter() - began_at)
            self._called_back(error)

        entries = [job.entry for job in chosen]
        alone = self._waiting.suspect is not None
        self._waiting.begin(chosen, self.batch.begin_nowait(entries, then, alone=alone))
        self._records += 1

    def _start_met(self, job: JournaledJob) -> None:
        """Start the task of an item whose attempt is on disk. To be called in the base context."""
        self._waiting.count -= 1
        self._started += 1
        self._in_flight += 1
        job.name = str(job.key)
        job.alone = job is self._waiting.suspect
        job.attempts_before = job.entry.attempts - 1
        self.jobs[job.index] = job
        each = self._each
        try:
            if job.problem is not None:
                raise job.problem
            job.plan = each if isinstance(each, Attempt) else plan_for(job.item, each)
        except Exception as error:
            # The caller's own function failed for this item: that is the item's failure.
            self._nursery.start_soon(self._items.refuse, job, error, name=job.name)
        else:
            self._nursery.start_soon(self._items.work, job, name=job.name)
