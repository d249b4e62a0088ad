"""Run many items at once, with a journal that knows which of them are done.

The engine with a journal on both sides: between the source and the start every item is looked up
(`harness.fanout._journaled_starts`), and between its end and its result the ending is made durable
(`harness.fanout._journaled_records`). This file is the whole, and the clerk: the one task that acts
on what the items and the journal have noted.

- An item that is done, or failed and kept, takes no slot: its result is read from the journal.
- A slot is free when the function has ended, and the result is handed on once it is durable. The
  policy hears of it at once, so a failure stops the others without waiting for the disk.

Invariant: an item that was met waits (`WaitingRoom`), is in flight, or has ended and is not yet
durable; then it has its result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import trio

from harness.errors import JournaledError
from harness.fanout._journal import FanOutBatch, FanOutJournal, Stored
from harness.fanout._journaled_item import JournaledJob
from harness.fanout._journaled_starts import StartingEngine
from harness.fanout._result import NO_HEDGES, Hedges, Result
from harness.fanout._snapshot import FanOutStatistics
from harness.fanout._source import AsyncSource
from harness.policies import Priority
from harness.runs._accounts import Usage, current_accounts, units


class JournaledEngine(StartingEngine):
    """An `Engine` that asks a journal what is done, and tells it what is."""

    def __init__(
        self,
        *given: Any,
        journal: FanOutJournal,
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
        super().__init__(*given, content=content, priority=priority, **options)
        self._journal = journal
        self._batch_name = batch_name
        self._target = target
        self._settings = settings
        self.origin: str = ""
        """What the batch is called in every session."""
        self._opening = trio.CancelScope()
        """Around all that comes before the first item."""
        self._is_open = False
        """Whether the batch is to be closed."""
        self._epoch = 0.0
        """What to add to trio's clock for seconds since the epoch."""

    # The whole --------------------------------------------------------------------------------

    async def drive(self) -> None:
        """Do what `Engine.drive` does, within a batch of the journal; in the end all is durable."""
        self._epoch = time.time() - trio.current_time()
        try:
            with self._opening:
                await self._open()
            if not self._opening.cancel_called:
                await super().drive()
        finally:
            if self._is_open:
                with trio.CancelScope(shield=True):
                    try:
                        await self._close_books()
                    finally:
                        await self.batch.close()
        if self._failure is not None:
            raise self._failure

    async def _open(self) -> None:
        try:
            self.batch: FanOutBatch = await self._journal.open_batch(
                self._batch_name, target=self._target, settings=self._settings
            )
        except BaseException:
            self._start_nothing("its journal was not opened")
            raise
        self._is_open = True
        try:
            self.origin = await self.batch.origin()
            await self._charge_earlier_sessions()
        except BaseException:
            self._start_nothing("its journal could not be read")
            raise

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

    def _cancel_items(self, why: str) -> None:
        if self._has_begun:
            super()._cancel_items(why)
        else:  # A reader may leave while the journal is read, for seconds if it is large.
            self._opening.cancel()

    def _begin_work(self, nursery: trio.Nursery) -> None:
        self._has_clerk = True
        nursery.start_soon(self._keep_books, name=f"journal of {self._batch_name}")
        super()._begin_work(nursery)

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

    # The clerk --------------------------------------------------------------------------------

    async def _keep_books(self) -> None:
        """Hand on what is durable, read what is kept, and start what there is room for."""
        _waiting_for: object = self._in_words
        try:
            while True:
                self._hand_on()
                if self._failure is not None:
                    raise self._failure
                if not self._over:
                    self._base.run(self._fill_journaled)
                self._record_ended()
                if self._waiting.kept and not self._over and self._places() > 0:
                    await self._read_kept()
                    continue
                self._wake_owner()
                idle = not (self._in_flight or self._records or self._news.is_set())
                if self._over and idle:
                    return
                await self._news.wait()
                # Items that ended together have just been followed by others. These begin first:
                # the books can be kept while they wait for something, and not before they do.
                await trio.lowlevel.cancel_shielded_checkpoint()
                # harness: shared (only the one task that keeps the books waits for news)
                self._news = trio.Event()
        finally:
            self._has_clerk = False
            self._record_ended()

    def _hand_on(self) -> None:
        durable, self._durable = self._durable, []
        for result in durable:
            self._sink(result)

    async def _read_kept(self) -> None:
        """Read the results of items that are done, and hand them on."""
        # More may be met meanwhile. Cancelled, these are still there.
        jobs = self._waiting.to_read(self._places())
        stored = await self.batch.read([job.entry for job in jobs])
        self._waiting.read()
        for job, one in zip(jobs, stored, strict=True):
            result = self._result_of(job, one)
            self._count_kept(result)
            self._sink(result)

    def _result_of(self, job: JournaledJob, stored: Stored) -> Result[Any]:
        value = stored.value
        if stored.status != "ok":
            value = JournaledError(stored.error_type or "Error", stored.error_message or "")
        ended_at = stored.ended_at - self._epoch
        return Result(
            job.index,
            job.key,
            job.item,
            None,
            stored.status,
            value,
            stored.attempts,
            ended_at - stored.seconds,
            ended_at,
            stored.degraded,
        )

    async def _close_books(self) -> None:
        """Give back what was begun ahead, and hand on what there is once all is durable."""
        self._has_clerk = True  # This; and nothing that could end is in flight any more.
        left = self._take_waiting()
        self._record_ended()
        while self._records or self._durable:
            self._hand_on()
            if self._records:
                await self._news.wait()
                self._news = trio.Event()
                left += self._take_waiting()
                self._record_ended()
        for job in sorted(left, key=lambda job: job.index):
            self._sink(self._skip(job.item, job.index))

    def _take_waiting(self) -> list[JournaledJob]:
        """Take out all that was met and not started, and give back what of it was begun."""
        suspect = self._waiting.suspect
        left = self._waiting.drain(
            suspect_started=suspect is not None and suspect.index in self.jobs
        )
        for job in left:
            if job.is_begun and self._failure is None:
                self._end_beside(job.entry, job.open)
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
        if self._not_durable:
            words.append(f"{self._not_durable:,} on their way to the journal")
        suspects = len(self._waiting.suspects) + (self._waiting.suspect is not None)
        if suspects:
            words.append(f"{suspects:,} to run alone, since their process died before")
        return ", ".join(words)
