"""Say which item is next, of a batch that several sessions work on at once.

Every item pulled is asked for. The journal answers once it is done or this session's; until then it
waits here, while later ones are pulled: those are perhaps free. Only as many are claimed as there
are slots for, since what one session holds no other can run.

The answers come between two steps of trio's loop. What they ask for is done by the next `look`.
"""

from __future__ import annotations

from typing import Any

from harness.fanout._feed import Room
from harness.fanout._job import Job
from harness.fanout._journal import BatchIdentity, Entry, SharedBatch
from harness.fanout._journal_feed import LOOKED_UP_AT_ONCE, JournalFeed
from harness.fanout._journal_job import JournaledJob
from harness.fanout._journal_records import Records
from harness.fanout._plan import Plan
from harness.fanout._source import Source


class SharedFeed(JournalFeed):
    """Gives what isn't done and nobody else has.

    Raises:
      ValueError: if the plan has ``serial_by=``, which only one session can keep.
    """

    def __init__(
        self,
        plan: Plan,
        source: Source,
        records: Records,
        batch: BatchIdentity,
    ) -> None:
        super().__init__(plan, source, records, batch)
        if plan.order is not None and plan.order.serial_by is not None:
            raise ValueError(
                "serial_by= can't be kept in a journal that was opened with join=True: another "
                "process may run the next item of the same key meanwhile; make the items of a key "
                "one item, or give all of a key to one process"
            )
        self._glimpses = False
        self._asked: dict[int, Job] = {}
        """The items that aren't answered yet, by index."""
        self._answers: list[tuple[int, Entry]] = []
        self._given_back: list[Entry] = []
        """Items that have ended and aren't done, until that is on its way to the journal."""
        self._listens = False

    @property
    def waiting(self) -> int:
        """How many were pulled and are waiting."""
        return super().waiting + len(self._asked)

    @property
    def is_dry(self) -> bool:
        """Whether a plain source has ended and nothing waits, which `next` has yet to say."""
        return super().is_dry and not self._asked

    @property
    def waits_for_all(self) -> bool:
        """Whether all that is left starts only once nothing is in flight, or is held by others.

        What waits for more items at a stage goes on without those: their holders' may wait, too.
        """
        if super().waits_for_all:
            return True
        held = self._batch.held if self._listens else 0
        all_held = self._end is not None and len(self._asked) == held > 0
        return all_held and self.room.count == len(self.room.suspects)

    def may_pull(self, room: Room) -> bool:
        """Return whether another item may be asked for."""
        free = len(self._asked) - (self._batch.held if self._listens else 0)
        return free < LOOKED_UP_AT_ONCE and super().may_pull(room)

    def find(self, index: int, item: Any, key: Any, content: Any, kept: Any) -> None:
        """Ask for an item by its key."""
        job = Job(index, item)
        job.key = key
        self._asked[index] = job
        try:
            self._batch.ask(key, content, kept, lambda entry: self._answer(index, entry))
        except BaseException:
            del self._asked[index]
            raise

    def look(self, room: Room) -> None:
        """Take what was answered, pull what there is room for, and claim what slots are free for.

        Call in the context that items start in.
        """
        if not self._listens:
            self._batch.listen(self._told)
            self._listens = True
        self._place_answered()
        super().look(room)
        self._place_answered()
        if not room.over:
            self._batch.claim(self.room.wanted(in_flight=room.in_flight, places=room.places()))
            self._begin(room)

    def places_to_read(self, room: Room) -> float:
        """Return how many results may be read, besides those of the items claimed here.

        If others' results took their places, they would wait for the reader, and nobody else could
        run them. In input order the reader may be waiting for just those results.
        """
        places = room.places()
        if self._ordered or not self._listens:
            return places
        return places - self.room.count - self._batch.claiming

    def given_back(self, job: JournaledJob) -> None:
        """Let others have an item that has ended here and isn't done."""
        self._given_back.append(job.entry)

    def recorded(self) -> None:
        """Do what waited until everything noted so far is on its way to the journal."""
        given_back, self._given_back = self._given_back, []
        for entry in given_back:
            self._batch.give_back(entry)

    def take_waiting(self) -> list[Job]:
        """Take out all that was pulled and not started; give back what was begun."""
        asked = list(self._asked.values())
        self._asked.clear()
        return [*super().take_waiting(), *asked]

    @property
    def _batch(self) -> SharedBatch:
        batch: Any = self._records.batch
        shared: SharedBatch = batch
        return shared

    def _answer(self, index: int, entry: Entry) -> None:
        self._answers.append((index, entry))
        self._records.news.set()

    def _told(self, error: BaseException | None) -> None:
        if error is not None and self._records.failure is None:
            assert isinstance(error, Exception)
            self._records.failure = error
        self._records.news.set()

    def _place_answered(self) -> None:
        answers, self._answers = self._answers, []
        for index, entry in answers:
            job = self._asked.pop(index, None)
            if job is not None:  # Else it was given up meanwhile.
                self.place(self._new_job(index, job.item, job.key, entry))
