"""Keep the record of a fan-out in a journal, so that it knows which items are done.

Every item is looked up between the source and its start (`harness.fanout._journal_feed`), and its
ending is made durable between its end and its result (`harness.fanout._journal_records`). This file
puts these together and has the clerk: the one task that acts on what the items and the journal
have noted.

- An item that is done, or failed and kept, takes no slot: its result is read from the journal.
- A slot is free when the function has ended; the result is handed on once it is durable. The
  policy hears of it at once, so a failure stops the others without waiting for the disk.
- The first attempt at an item is on disk before the item starts. Every other attempt, after a
  failure or beside a late one, waits for the disk in its own run, just before the function is
  called.

Invariant: an item that was looked up waits (`WaitingRoom`), is in flight, or has ended and is not
yet durable; then it has its result.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from harness._approvals import Parked, ParkedRuns, has_answers, parked_runs
from harness._events import happened
from harness._root_errors import budget_refusals
from harness._tracebacks import traceback_of
from harness._words import told
from harness.errors import (
    ApprovalPending,
    BudgetExceeded,
    JournaledError,
    JournalValueError,
    RunTimedOut,
)
from harness.fanout._attempts import is_cancelled
from harness.fanout._job import Job
from harness.fanout._journal import (
    AttemptStatus,
    BatchIdentity,
    BatchStore,
    Ending,
    FanOutBatch,
    Stored,
)
from harness.fanout._journal_feed import JournalFeed
from harness.fanout._journal_job import Encoded, JournaledJob, Recorded, Verdict
from harness.fanout._journal_kept import ItemKeeper, keeper_of
from harness.fanout._journal_records import Records
from harness.fanout._journal_shared import SharedFeed
from harness.fanout._ledger import Writing
from harness.fanout._plan import Books, Plan
from harness.fanout._result import Result, ResultStatus
from harness.fanout._source import Source
from harness.policies import is_rate_limit
from harness.runs import Run, current_run
from harness.runs._accounts import Usage, add_meter, current_accounts, units
from harness.runs._endings import waits_still
from harness.runs._functions import forgotten_await_error, not_awaitable_error
from harness.runs._run import KEEPER, LASTING_KEY


def books_for(
    journal: BatchStore,
    plan: Plan,
    source: Source,
    batch: BatchIdentity,
    *,
    shared: bool = False,
) -> Books:
    """Return what an engine needs to write to a journal.

    Args:
      journal: The journal.
      plan: What was asked for.
      source: The items.
      batch: Which of the journal's batches it is.
      shared: Whether other sessions work on it, too; then its batches are `SharedBatch`.

    Raises:
      ValueError: if the plan asks for what the journal can't do.
    """
    records = Records(journal.logs)
    feed = (SharedFeed if shared else JournalFeed)(plan, source, records, batch)
    return Books(feed, JournalLedger(journal, batch, records, feed))


_UNUSED = Recorded(0)
"""Stands for an attempt at an item whose function was never called."""

LOOKS_PER_READ_AT_MOST = 256
"""Steps of looking for what is left to do, while there is more to look at, before some of what is
done is read: first one, then ever more. So the reader gets something at once, and what is left to
do is found soon."""

UNKEPT_AT_MOST = 20
"""If the first so many values can't be recorded, no other will be: the fan-out ends."""


class JournalLedger:
    """Records the items of one fan-out in one batch of a journal."""

    def __init__(
        self, journal: BatchStore, identity: BatchIdentity, records: Records, feed: JournalFeed
    ) -> None:
        self._journal = journal
        self._identity = identity
        self._records = records
        self._feed = feed
        self._batch: FanOutBatch
        self._opening = trio.CancelScope()
        """The scope around all that comes before the first item."""
        self._is_open = False
        """Whether the batch has to be closed."""
        self._epoch = 0.0
        """What to add to trio's clock to get seconds since the epoch."""
        self._unkept_left: float = UNKEPT_AT_MOST
        """How many more items may fail over their value; any number, once one was kept."""

    # The whole --------------------------------------------------------------------------------

    async def keep(self, host: Writing, drive: Callable[[], Awaitable[None]]) -> None:
        """Run everything within a batch of the journal; at the end all is durable."""
        self._records.host = host
        self._epoch = time.time() - trio.current_time()
        try:
            with self._opening:
                await self._open(host)
            if not self._opening.cancel_called:
                await drive()
        finally:
            if self._is_open:
                with trio.CancelScope(shield=True):
                    try:
                        await self._close_books(host)
                    finally:
                        await self._batch.close()
        if self._records.failure is not None:
            raise self._records.failure

    async def _open(self, host: Writing) -> None:
        try:
            self._batch = self._records.batch = await self._journal.open_batch(
                self._identity.name,
                target=self._identity.target,
                settings=self._identity.settings,
            )
        except BaseException:
            host.start_nothing("its journal was not opened")
            raise
        self._is_open = True
        try:
            await self._charge_earlier_sessions()
        except BaseException:
            host.start_nothing("its journal could not be read")
            raise

    async def _charge_earlier_sessions(self) -> None:
        """Charge the budgets around this fan-out with what earlier sessions used."""
        accounts, _ = current_accounts()
        work = (self._journal.name, self._identity.name)
        if accounts.not_charged(work):
            totals = await self._batch.totals()
            accounts.charge_earlier(Usage(totals.tokens, units(totals.cost_usd)), work)

    async def _close_books(self, host: Writing) -> None:
        """Give back what was begun ahead, and hand on the results once all is durable."""
        records = self._records
        records.has_clerk = True  # This is the clerk now; nothing that could end is in flight.
        left = self._feed.take_waiting()
        records.record_ended()
        while records.under_way or records.has_durable:
            records.hand_on()
            if records.under_way:
                await happened(records.news)
                records.news = trio.Event()
                left += self._feed.take_waiting()
                records.record_ended()
        for job in sorted(left, key=lambda job: job.index):
            host.hand_on(host.skip(job))

    def give_up(self) -> None:
        """Stop opening the journal: it is no longer wanted."""
        self._opening.cancel()

    # The clerk --------------------------------------------------------------------------------

    @enable_ki_protection
    def begin(self, host: Writing) -> None:
        """Start the clerk."""
        self._records.has_clerk = True
        host.nursery.start_soon(self._keep_books, host, name=f"journal of {self._identity.name}")

    @property
    def waits_for_all(self) -> bool:
        """Whether all that is left are suspects, or one of them is in flight."""
        return self._feed.waits_for_all

    def looked(self) -> None:
        """Have the clerk look too."""
        self._records.news.set()

    def is_over(self) -> None:
        """Have the clerk look, and perhaps end."""
        self._records.news.set()

    async def _keep_books(self, host: Writing) -> None:
        """Hand on what is durable, read what is kept, and start what there is room for."""
        _waiting_for: object = host.in_words
        records, feed = self._records, self._feed
        looks, looks_per_read = 0, 1
        try:
            while True:
                records.hand_on()
                if records.failure is not None:
                    raise records.failure
                if not host.over:
                    host.fill()
                    host.base.run(feed.look, host)
                    if feed.is_dry:
                        host.fill()
                    elif feed.waits_for_all:
                        host.look()
                records.record_ended()
                feed.recorded()
                host.wake_owner()
                looks += 1
                if not feed.is_full_speed:
                    looks_per_read = 1
                is_due = looks >= looks_per_read
                if is_due and feed.room.kept and not host.over and feed.places_to_read(host) > 0:
                    looks, looks_per_read = 0, min(2 * looks_per_read, LOOKS_PER_READ_AT_MOST)
                    await self._read_kept(host)
                    continue
                idle = not (host.in_flight or records.under_way or records.news.is_set())
                if host.over and idle:
                    return
                await happened(records.news)
                # Items that ended together have just been followed by others. Let these begin
                # first: the books can be kept while they wait for something.
                await trio.lowlevel.cancel_shielded_checkpoint()
                # harness: shared (only the one task that keeps the books waits for news)
                records.news = trio.Event()
        finally:
            records.has_clerk = False
            records.record_ended()

    async def _read_kept(self, host: Writing) -> None:
        """Read the results of items that are done, and hand them on."""
        # More may be looked up meanwhile. After a cancel these are still there.
        items = host.base.run(self._feed.recognized, self._feed.places_to_read(host))
        stored = await self._batch.read([entry for *_, entry in items])
        self._feed.room.reading = []
        raises = self._journal.kept == "raise"
        for (index, item, key, _), one in zip(items, stored, strict=True):
            result = self._result_of(index, item, key, one)
            host.kept(result, raises=raises)
            host.hand_on(result)

    def _result_of(self, index: int, item: Any, key: Any, stored: Stored) -> Result[Any]:
        status, value, error_type, message, traceback, degraded, attempts, _, ended_at, took = (
            stored
        )
        if status != "ok":
            value = JournaledError(error_type or "Error", message or "", traceback)
        ended_at -= self._epoch
        return Result(
            index, key, item, None, status, value, attempts, ended_at - took, ended_at, degraded
        )

    def in_words(self) -> str:
        """Return what waits for the journal, to append to other words; empty if nothing does."""
        words = ""
        if unwritten := self._records.host.unwritten:
            words += f", {unwritten:,} on their way to the journal"
        room = self._feed.room
        if suspects := len(room.suspects) + (room.suspect is not None):
            words += f", {suspects:,} to run alone, since their process died before"
        return words

    # Before a start, and between its attempts ---------------------------------------------------

    def recorded(self, function: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Any]:
        """Wrap the function: record the attempt on disk, call it, and encode its value."""
        return functools.partial(self._call, function)

    async def _call(self, function: Callable[[Any], Awaitable[Any]], item: Any) -> Encoded:
        run = current_run()
        assert run._item_index is not None
        job = self._feed.jobs[run._item_index]
        attempt = job.spare() or await self._records.begin_another(job)
        attempt.called = True
        job.owed = False
        self._mark(run, job, attempt)
        states: Parked = {}
        if job.entry.parked is not None:
            states = await self._batch.parked(job.entry)
            if not has_answers(states):  # Nobody has decided anything: there is nothing to do.
                raise waits_still(run, states)
        job.parked = ParkedRuns(states)
        parked_runs.set(job.parked)
        job.set_out(self._records, attempt)
        try:
            awaitable = function(item)
            if type(awaitable) is not CoroutineType and not isinstance(awaitable, Awaitable):
                # A mistake in the program, not a failure of the item that could be kept.
                self._records.fail(not_awaitable_error(function, awaitable))
                await trio.sleep_forever()
            value = await awaitable
            if type(value) is CoroutineType:
                raise forgotten_await_error(function, value)
            encoded = Encoded(*self._batch.encode(value, job.at))
        except Exception:
            attempt.failed = True
            raise
        attempt.answered = True
        return encoded

    def metered(self, job: Job, fallback: Callable[[Any, Exception], Any]) -> Callable[..., Any]:
        """Return the fallback; its usage counts towards the last attempt."""
        assert isinstance(job, JournaledJob)
        meter = job.by_fallback = Recorded(0)

        def call(item: Any, error: Exception) -> Any:
            self._mark(current_run(), job, meter)
            return fallback(item, error)

        return call

    def _mark(self, run: Run, job: JournaledJob, meter: Recorded) -> None:
        """Have an item's run report its usage, give its effects their keys, and keep what it says.

        The keys have to be the same in every process.
        """
        meter.run_id = run.id
        add_meter(run, meter)
        assert run._locals is not None
        run._locals[LASTING_KEY] = job.entry.effects_key
        run._locals[KEEPER] = self
        if self._records.logs is not None:
            keeper_of(job, self._records).listen_in(run)

    def keeper_of(self, run: Run) -> ItemKeeper | None:
        """Return what keeps things with the item of a run; None if it has ended."""
        job = None if run._item_index is None else self._feed.jobs.get(run._item_index)
        return None if job is None else keeper_of(job, self._records)

    def may_retry(self, job: Job, error: Exception) -> bool:
        """Return whether the item may have another attempt, over all processes."""
        assert isinstance(job, JournaledJob)
        if isinstance(error, JournalValueError):
            return False  # The function would only return such a value again.
        most = self._batch.max_attempts
        return most is None or is_rate_limit(error) or job.counted() < most

    def retries(self, job: Job, error: Exception) -> None:
        """Record how a try ended, when another one follows."""
        assert isinstance(job, JournaledJob)
        if is_rate_limit(error) and job.open:
            # The attempt goes on with the next call.
            job.open[0].called = job.open[0].failed = False
            return
        decided, beside = job.take_open("failed")
        self._records.end_beside(job.entry, beside)
        if decided is not None:
            status: AttemptStatus = "timed_out" if isinstance(error, RunTimedOut) else "failed"
            error_type, message = told(error)
            ending = decided.ending(
                status, final=False, error_type=error_type, error_message=message
            )
            self._records.end(job.entry, decided.number, ending)

    # After an end -----------------------------------------------------------------------------

    def decide(self, job: Job, status: ResultStatus, value: Any) -> tuple[ResultStatus, Any, int]:
        """Return how an item ended, its value as it comes back from the journal, its attempts."""
        assert isinstance(job, JournaledJob)
        assert status != "skipped", "an item that has a job was started"
        del self._feed.jobs[job.index]
        if job.alone:
            self._feed.room.suspect = None
        text: str | None = None
        if status == "ok":
            try:
                if type(value) is not Encoded:  # It came from the fallback.
                    value = Encoded(*self._batch.encode(value, job.at))
                text, value = value.text, value.value
            except JournalValueError as error:
                status, value, job.degraded = "failed", error, False
        decided, beside = job.take_open(status)
        if beside or job.failure is not None:
            self._records.end_beside(job.entry, beside)
            self._records.record_ended()  # What is given back no longer counts below.
        if decided is not None and job.by_fallback is not None:
            decided.spent(job.by_fallback.tokens, job.by_fallback.cost_usd)
            decided.used(job.by_fallback.usage)
        if status == "ok":
            job.owed = False
            self._unkept_left = math.inf
        elif isinstance(value, JournalValueError):
            self._unkept_left -= 1
            if not self._unkept_left:
                self._records.fail(self._none_kept(value))
        # Whatever a function raises on a cancel says nothing about its item.
        done = status == "ok" or not (
            status == "cancelled" or job.owed or is_cancelled() or self._is_out_of_budget(value)
        )
        job.verdict = Verdict(done, decided, text)
        # A cancelled attempt doesn't count in the journal; here it shows what was done.
        if done:
            return status, value, job.entry.attempts + job.further
        return status, value, job.attempts_before + job.attempts + job.entry.further

    def _none_kept(self, error: JournalValueError) -> JournalValueError:
        """Return what ends everything when no value at all can be recorded."""
        ended = JournalValueError(
            f"none of the first {UNKEPT_AT_MOST} values of the batch {self._identity.name!r} could "
            f"be recorded, so it was ended before more is spent on such: {error}. These items are "
            "kept as failed; open the journal with retry_failed=True to try them again"
        )
        ended.__cause__ = error
        return ended

    def write(self, job: Job, result: Result[Any]) -> None:
        """Record the end of an item; the result is handed on once that is durable."""
        assert isinstance(job, JournaledJob)
        assert job.verdict is not None
        done, decided, text = job.verdict
        status, value = result.status, result._ended_with
        assert status != "skipped"
        # The whole item's, even if the attempt that decided was not its first.
        seconds = result.ended_at - result.started_at
        if not done:
            self._feed.given_back(job)
            if decided is None:
                self._records.pass_on(result)
                return
            # The failed attempt counts, though it isn't the end of its item.
            how: AttemptStatus = "cancelled"
            if isinstance(value, ApprovalPending):
                states = value._states
                ending = decided.ending(
                    how,
                    final=False,
                    seconds=seconds,
                    value=json.dumps(
                        states if job.parked is None else job.parked.kept_with(states)
                    ),
                    error_type=ApprovalPending.__name__,
                    error_message=str(value),
                )
                self._records.keep(result, job.entry, decided.number, ending)
                return
            if job.owed and job.failure is not None:
                how = job.failure[0]
            ending = decided.ending(how, final=False, seconds=seconds)
            self._records.keep(result, job.entry, decided.number, ending)
            return
        error_type: str | None = None
        message: str | None = None
        traceback: str | None = None
        if status == "ok":
            self._feed.room.item_seconds.add(seconds)
        else:
            error_type, message = told(value)
            traceback = traceback_of(value)
        used = decided or job.by_fallback or _UNUSED
        # By position: keywords take twice as long, and this happens once per item.
        ending = Ending(
            status,
            True,
            job.degraded,
            seconds,
            text,
            error_type,
            message,
            used.tokens,
            used.cost_usd,
            traceback,
            used.run_id,
            used.usage,
            job.last_step(status, value),
        )
        self._records.keep(result, job.entry, None if decided is None else decided.number, ending)

    def _is_out_of_budget(self, value: Any) -> bool:
        """Return whether an item failed because a budget it shares with others was used up.

        Then it isn't done: a later session may have a larger budget.
        """
        if not isinstance(value, BudgetExceeded | BaseExceptionGroup):
            return False
        mine = f"{self._records.host.run.path}/"
        return any(mine.startswith(f"{one.run_path}/") for one in budget_refusals(value))
