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

Invariant: an item that was met waits (`WaitingRoom`), is in flight, or has ended and is not yet
durable; then it has its result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

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
from harness.fanout._result import NO_HEDGES, Hedges, Result, ResultStatus
from harness.fanout._source import AsyncSource, Exhausted
from harness.fanout._statistics import FanOutStatistics
from harness.fanout._waiting_room import Met, WaitingRoom
from harness.policies import Priority
from harness.runs._accounts import Usage, current_accounts, units

SET_ASIDE = "SetAside"
"""What stands as the type of error of an item that was ended without being run."""


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
        self._waiting = WaitingRoom(limit=self._limit, window=self._window, priority=priority)
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
            try:
                self.origin = await self.batch.origin()
                await self._charge_earlier_sessions()
            except BaseException:
                self._start_nothing("its journal could not be read")
                raise
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
            waiting=self._waiting.count,
            waiting_by_priority=self._waiting.depths(),
        )

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
        return self._places() > 0 and self._on_disk < self._on_disk_at_most and not self._over

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
        if self._end_of_source is not None and not self._waiting.count and iterator is not None:
            if isinstance(self._end_of_source, Exhausted):
                self._no_more_items()
            else:
                self._source_failed(self._end_of_source)

    def _room_to_pull(self) -> bool:
        waiting, depth = self._waiting.count, self._waiting.depth
        under_way = waiting + self._in_flight + self._on_disk + self.unread
        return waiting < depth and under_way < self._window + depth

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
        self._waiting.count += 1
        try:
            key = self._key_of(item)
            content = item if self._content is None else self._content(item)
            entry = self.batch.find(key, content)
        except (JournalKeyError, JournalValueError) as error:
            self._waiting.count -= 1
            self._record(self._skip(item, index))
            self.fail(error)
            return
        met = Met(index, item, key, entry)
        what = disposition(entry, max_attempts=self.batch.max_attempts)
        if what == "kept":
            self._waiting.kept.append(met)
        elif what == "set aside":
            self._set_aside(met)
        elif what == "alone":
            self._waiting.suspects.append(met)
        else:
            self._waiting.put(met)

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
        self._waiting.count -= 1
        self._count_kept(result)
        ending = Ending(status="failed", error_type=SET_ASIDE, error_message=words)
        self._keep(result, met.entry, None, ending)

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

        entries = [met.entry for met in chosen]
        alone = self._waiting.suspect is not None
        self._waiting.begin(chosen, self.batch.begin_nowait(entries, then, alone=alone))
        self._records += 1

    def _start_met(self, met: Met) -> None:
        """Start the task of an item whose attempt is on disk. To be called in the base context."""
        self._waiting.count -= 1
        self._started += 1
        self._in_flight += 1
        job = JournaledJob(met.index, met.item)
        job.key = met.key
        job.name = str(met.key)
        job.entry = met.entry
        job.alone = met is self._waiting.suspect
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
            self._waiting.suspect = None
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
            # The whole item's, also if this attempt was not its first.
            seconds = ended_at - job.started_at
            error_type: str | None = None
            message: str | None = None
            if status == "ok":
                self._waiting.item_seconds.add(seconds)
            else:
                error_type, message = _told(value)
            ending = Ending(
                status=status,
                degraded=job.degraded,
                seconds=seconds,
                value=text,
                error_type=error_type,
                error_message=message,
                tokens=0 if decided is None else decided.tokens,
                cost_usd=0.0 if decided is None else decided.cost_usd,
            )
            self._keep(result, job.entry, None if decided is None else decided.number, ending)
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
            if self._waiting.kept and not self._over and self._places() > 0:
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
        met_ones = self._waiting.to_read(self._places())
        stored = await self.batch.read([met.entry for met in met_ones])
        self._waiting.read()
        for met, one in zip(met_ones, stored, strict=True):
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
        suspect = self._waiting.suspect
        left = self._waiting.drain(
            suspect_started=suspect is not None and suspect.index in self.jobs
        )
        try:
            for met in left:
                if met.is_begun and self._failure is None:
                    assert met.attempt is not None
                    self._end_beside(met.entry, [met.attempt])
        except JournalError as error:
            self._failure = error
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
            while self._waiting.count and not self._over:
                await self._park()
            raise

    def _in_words(self) -> str:
        words = [super()._in_words()]
        if self._on_disk:
            words.append(f"{self._on_disk:,} on their way to the journal")
        suspects = len(self._waiting.suspects) + (self._waiting.suspect is not None)
        if suspects:
            words.append(f"{suspects:,} to run alone, since their process died before")
        return ", ".join(words)


def _told(error: BaseException) -> tuple[str, str]:
    """Return the name and the words of an error, whatever its own ``__str__`` does."""
    if isinstance(error, JournaledError):
        return error.type_name, error.message
    try:
        words = str(error)
    except Exception as broken:
        words = f"(its message can't be shown: {type(broken).__name__})"
    return type(error).__name__, words
