"""Say which item is next, of those a journal doesn't know as done.

Every item pulled is looked up in the journal. What is done takes no slot and waits to be read; the
others have an attempt on disk before their functions start. Where items are so short that waiting
for the disk would show, attempts are recorded ahead, as many as may be in flight.

A suspect, which may have killed its process before, waits until nothing else is in flight.

The feed pulls when the clerk calls `look`, many at a time; `next` only gives what has been begun.

What is done is only *glimpsed* at first, by its key, and waits apart from the rest. Whether its
input has changed is looked at when its result is to be read; if so, it is run after all. Priorities
choose among all that has come, so with these each item is looked up as a whole.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import trio

from harness._words import repr_of
from harness.errors import JournaledError, JournalKeyError
from harness.fanout._dispositions import KEPT, disposition, set_aside_words
from harness.fanout._feed import Room
from harness.fanout._glimpsed import GATHERED_AT_MOST, Glimpsed, GlimpsedItems, Recognized
from harness.fanout._job import Job
from harness.fanout._journal import BatchIdentity, Ending, Entry
from harness.fanout._journal_job import JournaledJob
from harness.fanout._journal_records import Records
from harness.fanout._plan import Plan
from harness.fanout._result import Result
from harness.fanout._source import AsyncSource, Exhausted, Source, SyncSource, ended
from harness.fanout._waiting_room import READ_AT_ONCE, WaitingRoom

LOOKED_UP_AT_ONCE = 128
"""Items pulled and looked up in one step of trio's loop, in a millisecond or two. Everything else
waits meanwhile."""

GLIMPSES_PER_LOOK_UP = 8
"""How many items are glimpsed in the time that one takes to be looked up."""

SET_ASIDE = "SetAside"
"""The error type recorded for an item that was ended without being run."""


class JournalFeed:
    """Gives what isn't done."""

    def __init__(
        self,
        plan: Plan,
        source: Source,
        records: Records,
        batch: BatchIdentity,
    ) -> None:
        assert plan.key is not None
        self._key = plan.key
        self._iterator = source.iterator if isinstance(source, SyncSource) else None
        self._records = records
        self._new_job = JournaledJob if plan.steps is None else plan.steps.new_job
        self._content = batch.content
        self._kept = batch.kept
        self.pulled = 0
        sequence = source.sequence if isinstance(source, SyncSource) else None
        self.room = WaitingRoom(
            limit=plan.first_limit,
            window=plan.room,
            priority=plan.order,
            kept=GlimpsedItems(sequence)
            if plan.streamed
            else GlimpsedItems(at_most=GATHERED_AT_MOST),
        )
        """The items between look-up and start."""
        self._glimpses = plan.order is None
        self._ordered = plan.ordered
        self._left = 0
        """How many more glimpses fit into this step of trio's loop."""
        self.is_full_speed = False
        """Whether there is more to pull soon: then results can wait a little."""
        self._is_fast = isinstance(source, AsyncSource) and source.is_fast
        self.jobs: dict[int, JournaledJob] = {}
        """The items in flight, by index."""
        self._room_at_most = plan.room
        self._end: Exception | None = None
        """Why the source gives no more: `Exhausted`, or the error it raised."""

    @property
    def waiting(self) -> int:
        """How many were looked up and are waiting."""
        return self.room.all_count

    @property
    def waits_for_all(self) -> bool:
        """Whether all that is left starts only once nothing is in flight."""
        room, suspect = self.room, self.room.suspect
        if suspect is not None and suspect.index in self.jobs:
            return True
        suspects = len(room.suspects) + (suspect is not None)
        reads_no_more = self._end is not None or room.count >= room.depth
        return reads_no_more and 0 < room.all_count == suspects

    @property
    def is_dry(self) -> bool:
        """Whether a plain source has ended and nothing waits, which `next` has yet to say."""
        return self._end is not None and not self.room.all_count and self._iterator is not None

    def next(self, room: Room) -> Job | None:
        """Return an item whose attempt is on disk."""
        waiting = self.room
        suspect = waiting.suspect
        if (suspect is not None or waiting.begun) and (
            room.unwritten < min(self._room_at_most, 2 * room.limit) and self._places(room) > 0
        ):
            if suspect is None:
                return self._met(waiting.begun.popleft())
            if suspect.is_begun and not room.in_flight:
                return self._met(suspect)
        if self.is_dry:
            assert self._end is not None
            raise ended(self._end)
        return None

    def may_pull(self, room: Room) -> bool:
        """Return whether another item may be looked up."""
        waiting = self.room
        if self._left <= 0 or waiting.kept.is_full:
            return False
        if not room.in_flight and waiting.to_begin >= room.limit:
            return False  # As many as there are slots: they don't wait for further look-ups.
        under_way = waiting.count + room.in_flight + room.unwritten + room.unread
        # With priorities, what is read ahead counts towards the window: there is the choice.
        beside = 0 if waiting.chooses else waiting.depth
        return waiting.count < waiting.depth and under_way < room.window + beside

    def put(self, items: deque[Any], room: Room) -> None:
        """Look items up, and put them where they belong."""
        with suppress(StopIteration):
            self._pull(_taken_from(items), room)

    def _look_up(self, index: int, item: Any, key: Any) -> None:
        self._left -= GLIMPSES_PER_LOOK_UP
        content, kept = self._contents(item)
        self.find(index, item, key, content, kept)

    def places_to_read(self, room: Room) -> float:
        """Return how many results of items that are done may be read now."""
        return room.places()

    def recognized(self, count: float) -> list[Recognized]:
        """Take the items whose results should be read next, so many at most.

        Call in the context that items start in.
        """
        batch = self._records.batch
        done: list[Recognized] = []
        for index, item, key, known in self.room.kept.take(int(min(count, READ_AT_ONCE))):
            if not isinstance(known, Entry):
                try:
                    content, kept = self._contents(item)
                    known = batch.kept_entry(key, known, content, kept)
                except Exception as error:
                    self._refuse(index, item, error)
                    continue
            if known.state in KEPT:
                done.append((index, item, key, known))
            else:
                self.place(self._new_job(index, item, key, known))
        self.room.reading = done
        return done

    def _contents(self, item: Any) -> tuple[Any, Any]:
        """Return what makes an item the same as before, and what is kept of it."""
        content = item if self._content is None else self._content(item)
        return content, content if self._kept is None else self._kept(item)

    def _refuse(self, index: int, item: Any, error: Exception) -> None:
        """End everything over an item that can't be looked up."""
        host = self._records.host
        host.hand_on(host.skip(Job(index, item)))
        self._records.fail(error)

    def find(self, index: int, item: Any, key: Any, content: Any, kept: Any) -> None:
        """Look an item up by its key."""
        entry = self._records.batch.find(key, content, kept)
        self.place(self._new_job(index, item, key, entry))

    def place(self, job: JournaledJob) -> None:
        """Put an item that was looked up where it belongs."""
        what = disposition(job.entry, max_attempts=self._records.batch.max_attempts)
        if what == "kept":
            self.room.kept.put((job.index, job.item, job.key, job.entry))
            return
        self.room.count += 1
        if what == "set aside":
            self._set_aside(job)
        elif what == "alone":
            self.room.suspects.append(job)
        else:
            self.room.put(job)

    def came(self, room: Room) -> None:
        """Have the clerk begin it."""
        self._records.news.set()

    def ended(self, job: Job) -> None:
        """Let the next one with its key go ahead."""
        self.room.ended(job.index)

    def end(self, why: Exception) -> None:
        """Note why an async source gives no more; what it gave is still started."""
        self._end = why

    def look(self, room: Room) -> None:
        """Pull what there is room for, and record attempts at what is next.

        Call in the context that items start in.
        """
        iterator = self._iterator
        at_once = LOOKED_UP_AT_ONCE * GLIMPSES_PER_LOOK_UP
        self._glimpses = self._glimpses and bool(self._records.batch.items)
        more = self._left < at_once  # An async source has given something since.
        self._left = at_once
        if iterator is not None and self._end is None:
            try:
                while not room.over and self.may_pull(room):
                    self._pull(iterator, room)
            except StopIteration:
                self._end = Exhausted()
            except Exception as error:
                # Its turn comes later: what was read before it still runs.
                self._end = error
            more = self._left <= 0
        if more:
            self._records.news.set()
        self.is_full_speed = more or (
            self._is_fast and self._end is None and not room.over and self.may_pull(room)
        )
        if not room.over:
            self._begin(room)

    def _pull(self, iterator: Iterator[Any], room: Room) -> None:
        """Pull items up to the first that isn't done, which is looked up.

        Raises:
          StopIteration: if there are no more.
        """
        key_of, glimpse = self._key_of, self._records.batch.glimpse
        glimpses = self._glimpses
        glimpsed: list[Glimpsed] = []
        try:
            for _ in range(min(self._left, LOOKED_UP_AT_ONCE)):
                item = next(iterator)
                index = self.pulled
                self.pulled = index + 1
                try:
                    key = key_of(item)
                    if not glimpses or (found := glimpse(key)) is None:
                        break
                    glimpsed.append((index, item, key, found))
                except Exception as error:
                    self._refuse(index, item, error)
                if room.over:
                    return
            else:
                return
        finally:
            self._left -= len(glimpsed)
            self.room.kept.extend(glimpsed)
        try:
            self._look_up(index, item, key)
        except Exception as error:
            self._refuse(index, item, error)

    def take_waiting(self) -> list[Job]:
        """Take out all that was looked up and not started; give back those that were begun."""
        suspect = self.room.suspect
        left = self.room.drain(suspect_started=suspect is not None and suspect.index in self.jobs)
        for job in left:
            if job.is_begun and self._records.failure is None:
                self._records.end_beside(job.entry, job.open)
        reading, self.room.reading = self.room.reading, []
        return [*left, *(Job(index, item) for index, item, *_ in reading)]

    def given_back(self, job: JournaledJob) -> None:
        """Note that an item has ended here and isn't done."""

    def recorded(self) -> None:
        """Hear that everything noted so far is on its way to the journal."""

    def left_over(self) -> Iterable[Job]:
        """Take out, in input order, what is done and was not read."""
        for index, item in self.room.kept.drain():
            yield Job(index, item)

    def depths(self) -> dict[float, int]:
        """Return how many wait by priority, the largest first; nothing without priorities."""
        return self.room.depths()

    def _key_of(self, item: Any) -> Any:
        try:
            return self._key(item)
        except Exception as error:
            raise JournalKeyError(
                f"key= raised {error!r} for {repr_of(item)}; with a journal every item needs a "
                "key, by which it is found again"
            ) from error

    def _set_aside(self, job: JournaledJob) -> None:
        most = self._records.batch.max_attempts
        assert most is not None
        words = set_aside_words(job.entry, max_attempts=most)
        now = trio.current_time()
        error = JournaledError(SET_ASIDE, words)
        result: Result[Any] = Result(
            job.index, job.key, job.item, None, "failed", error, job.entry.attempts, now, now
        )
        self.room.count -= 1
        self._records.host.kept(result, raises=True)  # Nobody has heard of it before.
        ending = Ending(status="failed", error_type=SET_ASIDE, error_message=words)
        self._records.keep(result, job.entry, None, ending)

    def _begin(self, room: Room) -> None:
        """Record attempts at the next items."""
        waiting = self.room
        waiting.limit = room.limit
        chosen = waiting.next_to_begin(in_flight=room.in_flight, places=self._places(room))
        if not chosen:
            return
        began_at = time.perf_counter()

        def begun(error: BaseException | None) -> None:
            waiting.are_begun(chosen)
            waiting.record_seconds.add(time.perf_counter() - began_at)

        entries = [job.entry for job in chosen]
        alone = waiting.suspect is not None
        waiting.begin(chosen, self._records.begin(entries, begun, alone=alone))

    def _places(self, room: Room) -> float:
        """Return how many more items may be in flight, unwritten or unread.

        If results are read in input order, items ahead of what is kept get half the window only:
        else there might be no room for the results that the reader waits for.
        """
        places = room.places()
        if self._ordered and self.room.is_overtaking():
            places -= room.window // 2
        return places

    def _met(self, job: JournaledJob) -> JournaledJob:
        """Return an item, now being started."""
        self.room.count -= 1
        job.alone = job is self.room.suspect
        job.attempts_before = job.entry.attempts - 1
        self.jobs[job.index] = job
        return job


def _taken_from(items: deque[Any]) -> Iterator[Any]:
    while items:
        yield items.popleft()
