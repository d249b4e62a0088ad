"""Run many items at once, with a journal that knows which of them are done.

The engine with a journal on both sides: between the source and the start every item is looked up,
and between its end and its result the ending is made durable. What changes for an item:

- One that is done, or failed and kept, takes no slot: its result is read from the journal.
- An attempt is on disk before its function starts. Where items are short, so that the wait for the
  disk would be felt, attempts are recorded ahead, as many as may be in flight.
- A slot is free when the function has ended, and the result is handed on once it is durable. The
  policy hears of it at once, so a failure stops the others without waiting for the disk.
- A suspect, which may have killed its process before, waits until nothing else is in flight.

The journal calls back between two steps of trio's loop, where no code of the user's may run. So
callbacks only take notes, and one task, the clerk, acts on them.

Invariant: an item that was met is in exactly one place (to be read, to be begun, being begun,
begun, suspected, in flight, ended and not yet durable); `_waiting` counts those before the start.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import trio

from harness._words import repr_of
from harness.errors import (
    BudgetExceeded,
    JournaledError,
    JournalError,
    JournalKeyError,
    JournalValueError,
)
from harness.fanout._dispositions import disposition, set_aside_words
from harness.fanout._engine import Engine, plan_for
from harness.fanout._item import ItemWork, Job
from harness.fanout._journal import AttemptStatus, Batch, Ending, Entry, Journal, Stored
from harness.fanout._journaled_item import Encoded, JournaledJob, JournaledWork, Recorded
from harness.fanout._lookahead import Lookahead
from harness.fanout._result import NO_HEDGES, Hedges, Result, ResultStatus
from harness.fanout._source import AsyncSource, Exhausted
from harness.fanout._statistics import FanOutStatistics
from harness.policies import Priority
from harness.runs._accounts import Usage, current_accounts, units

READ_AHEAD_AT_LEAST = 64
"""Items that may be looked up before their turn, so that what is done is read many at a time."""

AHEAD_AT_MOST = 4
"""Items that may be looked up, and begun, before their turn: so many times those in flight."""

WORTH_BEGINNING_AHEAD = 1 / 50
"""Attempts are recorded ahead if a record takes more than this part of an item's time. One that was
recorded ahead counts if the process dies, so it isn't done where it gains nothing."""

READ_AT_ONCE = 1_000
"""Results that are read from the journal, and handed on, in one step."""

RECORDS_AHEAD = 3
"""How many records' time is covered by what is begun ahead: one may be under way when an attempt is
added to the queue, and takes as long as its own; and some are slower than the mean."""

SET_ASIDE = "SetAside"
"""What stands as the type of error of an item that was ended without being run."""


@attrs.define(eq=False)
class Met:
    """An item that was pulled and looked up. Not frozen only since one is made per item."""

    index: int
    item: Any
    key: Any
    entry: Entry
    attempt: Recorded | None = None
    is_begun: bool = False
    """Whether the attempt at a suspect is on disk."""
    problem: Exception | None = None
    """What the priority's function raised for it, if it did."""


class JournaledEngine(Engine):
    """An `Engine` that asks a journal what is done, and tells it what is."""

    item_work: type[ItemWork] = JournaledWork
    job: type[Job] = JournaledJob

    def __init__(
        self,
        *given: Any,
        journal: Journal,
        batch_name: str,
        target: str,
        settings: Mapping[str, Any],
        content: Callable[[Any], Any] | None = None,
        priority: Priority | None = None,
        **options: Any,
    ) -> None:
        """Run items with a journal.

        Args:
          given, options: As for `Engine`.
          journal: Where to look up and record.
          batch_name, target, settings: What to open a batch of it with.
          content: Returns what of an item makes it the same as before; None: all of it.
          priority: Which of the items read ahead is next.
        """
        super().__init__(*given, **options)
        self._content = content
        self._journal = journal
        self._batch_name = batch_name
        self._target = target
        self._settings = settings
        self.batch: Batch
        """The journal's part for this fan-out, since `drive`."""
        self.origin: str = ""
        """What the batch is called in every session."""
        self.jobs: dict[int, JournaledJob] = {}
        """The items in flight, by index."""
        self._pulled = 0
        self._waiting = 0
        """Items that were met, and neither started nor ended."""
        self._kept: deque[Met] = deque()
        self._reading: list[Met] = []
        self._to_begin: deque[Met] = deque()
        self._by_priority = None if priority is None else Lookahead(_of_met(priority))
        self._depth = min(self._window, max(AHEAD_AT_MOST * self._limit, READ_AHEAD_AT_LEAST))
        """Items that may be between the source and the start, beside the window."""
        if priority is not None:
            self._depth = priority.lookahead
        self._beginning = 0
        self._begun: deque[Met] = deque()
        self._suspects: deque[Met] = deque()
        self._suspect: Met | None = None
        """The one that is being begun or in flight, and nothing else is then."""
        self._on_disk = 0
        """Results that wait until they are durable."""
        self._on_disk_at_most = min(self._window, 2 * self._limit)
        self._durable: list[Result[Any]] = []
        self._records = 0
        """Records that the journal has not called back for."""
        self._end_of_source: Exception | None = None
        """Why the source gives no more: `Exhausted`, or the error that it raised."""
        self._failure: Exception | None = None
        """What ends everything: the journal can't be written, or an item can't be kept in it."""
        self._news = trio.Event()
        self._item_seconds = _Mean()
        self._record_seconds = _Mean()
        self._epoch = 0.0
        """What to add to trio's clock for seconds since the epoch."""

    # The whole --------------------------------------------------------------------------------

    async def drive(self) -> None:
        """Do what `Engine.drive` does, within a batch of the journal; in the end all is durable."""
        self._epoch = time.time() - trio.current_time()
        try:
            self.batch = await self._journal.open_batch(
                self._batch_name, target=self._target, settings=self._settings
            )
        except BaseException:
            self._start_nothing("its journal was not opened")
            raise
        try:
            self.origin = await self.batch.origin()
            await self._charge_earlier_sessions()
            await super().drive()
        finally:
            with trio.CancelScope(shield=True):
                try:
                    await self._close_books()
                finally:
                    await self.batch.close()
        if self._failure is not None:
            raise self._failure

    async def _charge_earlier_sessions(self) -> None:
        """Have the budgets around this fan-out go on with what earlier sessions left of them."""
        accounts, _ = current_accounts()
        work = (self._journal.name, self._batch_name)
        if accounts.not_charged(work):
            totals = await self.batch.totals()
            accounts.charge_earlier(Usage(totals.tokens, units(totals.cost_usd)), work)

    @property
    def hedges(self) -> Hedges:
        """The attempts that were started beside another one, and what they brought."""
        return self._items.hedges if self._has_begun else NO_HEDGES

    @property
    def _has_begun(self) -> bool:
        return hasattr(self, "_items")

    def _stop(self) -> None:
        if self._has_begun:  # Else `drive`, which still opens the batch, looks for itself.
            super()._stop()

    def _begin_work(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._keep_books, name=f"journal of {self._batch_name}")
        super()._begin_work(nursery)

    def fail(self, error: Exception) -> None:
        """End everything with an error that no item is to blame for."""
        if self._failure is None:
            self._failure = error
        self._start_no_more()

    def skipped(self) -> Iterator[Result[Any]]:
        """Yield a result for each item of a sized source that was never pulled."""
        if isinstance(self._source, AsyncSource) or self._source.size is None:
            return
        while self._pulled < self._source.size:
            try:
                item = next(self._source.iterator)
            except Exception:  # At its end, or it can't be read further.
                return
            self._pulled += 1
            yield self._skip(item, self._pulled - 1)

    def statistics(self) -> FanOutStatistics:
        """Return how many items are where."""
        return FanOutStatistics(
            in_flight=self._in_flight,
            unread=self.unread,
            waiting=self._waiting,
            waiting_by_priority={} if self._by_priority is None else self._by_priority.depths(),
        )

    # Meet -------------------------------------------------------------------------------------

    def start_next(self) -> None:
        """Start what has been begun, at once; the clerk sees to the rest, for many at a time."""
        if self._begun and not self._over and self._in_flight < self._limit:
            self._base.run(self._start_begun)
        self._news.set()

    def _start_begun(self) -> None:
        """Start items whose attempts are on disk. To be called in the base context."""
        if self._suspect is not None:
            if self._suspect.is_begun and not self._in_flight:
                self._start_met(self._suspect)
            return
        while (
            self._begun
            and self._in_flight < self._limit
            and self._places() > 0
            and self._on_disk < self._on_disk_at_most
            and not self._over
        ):
            self._start_met(self._begun.popleft())

    def _start_no_more(self) -> None:
        super()._start_no_more()
        self._news.set()

    def _fill_journaled(self) -> None:
        """Pull, look up, begin and start while there is room. To be called in the base context."""
        self._start_begun()
        iterator = self._iterator
        if iterator is not None and self._end_of_source is None:
            try:
                while self._room_to_pull() and not self._over:
                    self._meet(next(iterator))
            except StopIteration:
                self._end_of_source = Exhausted()
            except Exception as error:
                # It is told in its turn: what was read before it is still run.
                self._end_of_source = error
        if self._over:
            return
        self._begin()
        if self._end_of_source is not None and not self._waiting and iterator is not None:
            if isinstance(self._end_of_source, Exhausted):
                self._no_more_items()
            else:
                self._source_failed(self._end_of_source)

    def _room_to_pull(self) -> bool:
        waiting = self._waiting
        under_way = waiting + self._in_flight + self._on_disk + self.unread
        return waiting < self._depth and under_way < self._window + self._depth

    def _places(self) -> int:
        """Return how many more items may be in flight or unread now."""
        left = min(self._window, sys.maxsize) - self._in_flight - self._on_disk - self.unread
        if left <= 0 and self.starving and not (self._in_flight or self._records):
            # A reader waits, in input order, for one that later ones have overtaken: a suspect,
            # or one whose result is still to be read.
            return 1
        return int(left)

    def _meet(self, item: Any) -> None:
        """Look up an item that was pulled, and put it where it belongs."""
        index = self._pulled
        self._pulled += 1
        self._waiting += 1
        try:
            key = self._key_of(item)
            content = item if self._content is None else self._content(item)
            entry = self.batch.find(key, content)
        except (JournalKeyError, JournalValueError) as error:
            self._waiting -= 1
            self._record(self._skip(item, index))
            self.fail(error)
            return
        met = Met(index, item, key, entry)
        what = disposition(entry, max_attempts=self.batch.max_attempts)
        if what == "kept":
            self._kept.append(met)
        elif what == "set aside":
            self._set_aside(met)
        elif what == "alone":
            self._suspects.append(met)
        elif self._by_priority is None:
            self._to_begin.append(met)
        else:
            self._by_priority.put(met)

    def _key_of(self, item: Any) -> Any:
        assert self._key is not None
        try:
            return self._key(item)
        except Exception as error:
            raise JournalKeyError(
                f"key= raised {error!r} for {repr_of(item)}; with a journal every item needs a "
                "key, by which it is found again"
            ) from error

    def _set_aside(self, met: Met) -> None:
        most = self.batch.max_attempts
        assert most is not None
        words = set_aside_words(met.entry, max_attempts=most)
        now = trio.current_time()
        error = JournaledError(SET_ASIDE, words)
        result: Result[Any] = Result(
            met.index, met.key, met.item, None, "failed", error, met.entry.attempts, now, now
        )
        self._waiting -= 1
        self._count_kept(result)
        ending = Ending(status="failed", error_type=SET_ASIDE, error_message=words)
        self._keep(result, met.entry, None, ending)

    # Begin and start --------------------------------------------------------------------------

    def _begin(self) -> None:
        """Record attempts at the next items: for the free slots, and ahead if that is worth it."""
        if self._suspect is not None:
            return
        room = min(self._limit - self._in_flight, max(0, self._places()))
        count = room + self._ahead() - self._beginning - len(self._begun)
        chosen: list[Met] = []
        while len(chosen) < count and (met := self._next_to_begin()) is not None:
            chosen.append(met)
        if chosen:
            self._record_begin(chosen)
            return
        idle = not (self._in_flight or self._beginning)
        if idle and self._suspects and (not self._begun or self._places() <= 0):
            self._suspect = self._suspects.popleft()
            self._record_begin([self._suspect])

    def _next_to_begin(self) -> Met | None:
        if self._by_priority is None:
            return self._to_begin.popleft() if self._to_begin else None
        if not self._by_priority.waiting:
            return None
        waiting = self._by_priority.take()
        met: Met = waiting.item
        met.problem = waiting.problem
        return met

    def _ahead(self) -> int:
        """Return how many attempts to record before there is a slot for them."""
        # With priorities the choice is made when an attempt is recorded, so that is made late.
        if self._by_priority is not None:
            return 0
        item, record = self._item_seconds.value, self._record_seconds.value
        if not record > item * WORTH_BEGINNING_AHEAD:  # Also if nothing has ended, and it is nan.
            return 0
        return math.ceil(min(AHEAD_AT_MOST, RECORDS_AHEAD * record / max(item, 1e-6)) * self._limit)

    def _record_begin(self, chosen: list[Met]) -> None:
        began_at = time.perf_counter()
        alone = self._suspect is not None

        def then(error: BaseException | None) -> None:
            self._beginning -= len(chosen)
            if alone:
                chosen[0].is_begun = True
            else:
                self._begun.extend(chosen)
            self._record_seconds.add(time.perf_counter() - began_at)
            self._called_back(error)

        entries = [met.entry for met in chosen]
        numbers = self.batch.begin_nowait(entries, then, alone=alone)
        self._records += 1
        for met, number in zip(chosen, numbers, strict=True):
            met.attempt = Recorded(number)
        self._beginning += len(chosen)

    def _start_met(self, met: Met) -> None:
        """Start the task of an item whose attempt is on disk. To be called in the base context."""
        self._waiting -= 1
        self._started += 1
        self._in_flight += 1
        job = JournaledJob(met.index, met.item)
        job.key = met.key
        job.name = str(met.key)
        job.entry = met.entry
        job.alone = met is self._suspect
        job.owed = False
        job.attempts_before = met.entry.attempts - 1
        assert met.attempt is not None
        job.open = [met.attempt]
        self.jobs[met.index] = job
        try:
            if met.problem is not None:
                raise met.problem
            job.plan = plan_for(met.item, self._each)
        except Exception as error:
            # The caller's own function failed for this item: that is the item's failure.
            self._nursery.start_soon(self._items.refuse, job, error, name=job.name)
        else:
            self._nursery.start_soon(self._items.work, job, name=job.name)

    async def begin_another(self, job: JournaledJob) -> Recorded:
        """Record one more attempt at an item, and return it once that is durable.

        Checkpoint: always.

        Cancellation: the attempt is recorded all the same; it stays open, and was not called.
        """
        waiting_for = "its journal"  # noqa: F841 (read by `dump`)
        durable = trio.Event()

        def then(error: BaseException | None) -> None:
            durable.set()
            self._called_back(error)

        try:
            [number] = self.batch.begin_nowait([job.entry], then, alone=job.alone)
        except JournalError as error:
            self.fail(error)
            await trio.sleep_forever()  # Until the clerk, which raises it, has ended everything.
        self._records += 1
        attempt = Recorded(number)
        job.open.append(attempt)
        await durable.wait()
        if self._failure is not None:
            await trio.sleep_forever()
        return attempt

    # End --------------------------------------------------------------------------------------

    def end_try(self, job: JournaledJob, status: AttemptStatus, error: Exception) -> None:
        """Record how a try ended that another one follows."""
        decided, beside = job.take_open("failed")
        self._end_beside(job.entry, beside)
        if decided is not None:
            told = _told(error)
            ending = decided.ending(status, final=False, error_type=told[0], error_message=told[1])
            self._record_end(job.entry, decided.number, ending, self._called_back)

    def end(self, job: Job, status: ResultStatus, value: Any, ended_at: float) -> bool:
        """Take an item's result, and let the next one start; it is handed on once it is durable.

        Returns:
          Whether this decided the fan-out: the caller's task then has to `settle`.
        """
        assert isinstance(job, JournaledJob)
        assert status != "skipped", "an item that has a job was started"
        self._in_flight -= 1
        del self.jobs[job.index]
        if job.alone:
            self._suspect = None
        text: str | None = None
        if status == "ok":
            try:
                if type(value) is not Encoded:  # It is the fallback's.
                    value = Encoded(*self.batch.encode(value))
                text, value = value.text, value.value
            except JournalValueError as error:
                status, value, job.degraded = "failed", error, False
        decided, beside = job.take_open(status)
        self._end_beside(job.entry, beside)
        owed = job.owed and status != "ok"
        done = not (status == "cancelled" or owed or self._is_out_of_budget(value))
        # What was cancelled doesn't count in the journal; here it says what was done.
        attempts = job.entry.attempts
        if not done:
            attempts = job.attempts_before + job.attempts
        result: Result[Any] = Result(
            job.index,
            job.key,
            job.item,
            job.run_id,
            status,
            value,
            attempts,
            job.started_at,
            ended_at,
            job.degraded,
        )
        if status != "ok" or self._counts_successes:
            self._judge(result)
        if done:
            error_type, message = (None, None) if status == "ok" else _told(value)
            more = {
                "degraded": job.degraded,
                # The whole item's, also if this attempt was not its first.
                "seconds": result.seconds,
                "value": text,
                "error_type": error_type,
                "error_message": message,
            }
            if status == "ok":
                self._item_seconds.add(result.seconds)
            number = None if decided is None else decided.number
            self._keep(result, job.entry, number, (decided or NO_ATTEMPT).ending(status, **more))
        elif decided is not None:
            # The failed attempt counts, though it isn't the end of its item.
            how: AttemptStatus = status if owed else "cancelled"
            ending = decided.ending(how, final=False, seconds=result.seconds)
            self._keep(result, job.entry, decided.number, ending)
        else:
            self._durable.append(result)
        if self._join.why is None:
            # At once, not by the clerk: that comes when all that ended in this step have been
            # heard, and items that once ended together would do so for ever.
            self.start_next()
            return False
        return self._is_first_to_decide()

    def _is_out_of_budget(self, value: Any) -> bool:
        """Return whether an item found a budget used up that it shares with others.

        Then it isn't done: a later session may have a larger one.
        """
        if not isinstance(value, BudgetExceeded):
            return False
        return f"{self._run.path}/".startswith(f"{value.run_path}/")

    def _end_beside(self, entry: Entry, attempts: list[Recorded]) -> None:
        """Give back attempts that decided nothing: not called, or beside the one that counts."""
        for one in attempts:
            status: AttemptStatus = "cancelled" if one.called else "unstarted"
            ending = one.ending(status, final=False)
            self._record_end(entry, one.number, ending, self._called_back)

    def _keep(self, result: Result[Any], entry: Entry, number: int | None, ending: Ending) -> None:
        """Record an ending, and hand the result on once that is durable."""

        def then(error: BaseException | None) -> None:
            self._on_disk -= 1
            if error is None:
                self._durable.append(result)
            self._called_back(error)

        self._record_end(entry, number, ending, then)
        self._on_disk += 1

    def _record_end(
        self,
        entry: Entry,
        number: int | None,
        ending: Ending,
        then: Callable[[BaseException | None], None],
    ) -> None:
        self.batch.end_nowait(entry, number, ending, then)
        self._records += 1

    def _called_back(self, error: BaseException | None) -> None:
        """Note that a record is durable, or can't be made so. Called outside of any task."""
        self._records -= 1
        if error is not None and self._failure is None:
            assert isinstance(error, Exception)
            self._failure = error
        self._news.set()

    # The clerk --------------------------------------------------------------------------------

    async def _keep_books(self) -> None:
        """Hand on what is durable, read what is kept, and start what there is room for."""
        waiting_for: object = self._in_words  # noqa: F841 (read by `dump`)
        while True:
            self._hand_on()
            if self._failure is not None:
                raise self._failure
            if not self._over:
                self._base.run(self._fill_journaled)
            if self._kept and not self._over and self._places() > 0:
                await self._read_kept()
                continue
            self._wake_owner()
            idle = not (self._in_flight or self._records or self._news.is_set())
            if self._over and idle:
                return
            await self._news.wait()
            # harness: shared (only the one task that keeps the books waits for news)
            self._news = trio.Event()

    def _hand_on(self) -> None:
        durable, self._durable = self._durable, []
        for result in durable:
            self._sink(result)

    async def _read_kept(self) -> None:
        """Read the results of items that are done, and hand them on."""
        # More may be met meanwhile. Cancelled, these are still there.
        count = min(len(self._kept), self._places(), READ_AT_ONCE)
        self._reading = [self._kept.popleft() for _ in range(count)]
        stored = await self.batch.read([met.entry for met in self._reading])
        read, self._reading = self._reading, []
        for met, one in zip(read, stored, strict=True):
            self._waiting -= 1
            result = self._result_of(met, one)
            self._count_kept(result)
            self._sink(result)

    def _result_of(self, met: Met, stored: Stored) -> Result[Any]:
        value = stored.value
        if stored.status != "ok":
            value = JournaledError(stored.error_type or "Error", stored.error_message or "")
        ended_at = stored.ended_at - self._epoch
        return Result(
            met.index,
            met.key,
            met.item,
            None,
            stored.status,
            value,
            stored.attempts,
            ended_at - stored.seconds,
            ended_at,
            stored.degraded,
        )

    def _count_kept(self, result: Result[Any]) -> None:
        """Count an item that is done without being run. Of a failure the policy has heard before,
        in another session; a quorum has to know all the same how many may still succeed."""
        self._started += 1
        if self._counts_successes:
            self._join.add(result)
            if self._join.why is not None:
                self._start_no_more()
                self._cut_soon(self._join.why)

    async def _close_books(self) -> None:
        """Give back what was begun ahead, and hand on what there is once all is durable."""
        left = self._take_waiting()
        while self._records or self._durable:
            self._hand_on()
            if self._records:
                await self._news.wait()
                self._news = trio.Event()
                left += self._take_waiting()
        for met in sorted(left, key=lambda met: met.index):
            self._sink(self._skip(met.item, met.index))

    def _take_waiting(self) -> list[Met]:
        """Take out all that was met and not started, and give back what of it was begun."""
        suspect = self._suspect
        if suspect is not None and suspect.is_begun and suspect.index not in self.jobs:
            self._begun.append(suspect)
            self._suspect = None
        left = [*self._reading, *self._kept, *self._to_begin, *self._begun, *self._suspects]
        if self._by_priority is not None:
            left += [one.item for one in self._by_priority.drain()]
        try:
            for met in self._begun:
                assert met.attempt is not None
                if self._failure is None:
                    self._end_beside(met.entry, [met.attempt])
        except JournalError as error:
            self._failure = error
        self._reading = []
        for places in (self._kept, self._to_begin, self._begun, self._suspects):
            places.clear()
        self._waiting -= len(left)
        return left

    # An async source --------------------------------------------------------------------------

    async def _pull_all(self, source: AsyncSource, scope: trio.CancelScope) -> None:
        """Pull items as there is room, and stay until all that came has been started."""
        try:
            while await self._room():
                self._pulling = scope
                item = await source.next()
                self._pulling = None
                if self._over:
                    self._pulled += 1
                    self._record(self._skip(item, self._pulled - 1))
                else:
                    self._base.run(self._meet, item)
                    self._news.set()
        except Exception as end:
            self._pulling = None
            self._end_of_source = end
            self._news.set()
            while self._waiting and not self._over:
                await self._park()
            raise

    def _in_words(self) -> str:
        return f"{super()._in_words()}, {self._on_disk:,} on their way to the journal"


NO_ATTEMPT = Recorded(0)
"""Stands for the attempt of an ending that no attempt led to, such as a refusal by ``each=``."""


def _of_met(priority: Priority) -> Priority:
    """Return the priority of items for what was met of them."""
    function = priority.function
    return attrs.evolve(priority, function=lambda met: function(met.item))


class _Mean:
    """A mean that forgets: of late values, the latest counting most."""

    def __init__(self) -> None:
        self.value = math.nan

    def add(self, value: float) -> None:
        self.value = value if math.isnan(self.value) else self.value + (value - self.value) / 8


def _told(error: BaseException) -> tuple[str, str]:
    """Return the name and the words of an error, whatever its own ``__str__`` does."""
    if isinstance(error, JournaledError):
        return error.type_name, error.message
    try:
        words = str(error)
    except Exception as broken:
        words = f"(its message can't be shown: {type(broken).__name__})"
    return type(error).__name__, words
