"""What a journaled fan-out records, and how its results wait until that is durable.

Attempts and their ends are written down by many at a time. An end is only noted where it happens;
the clerk (`harness.fanout._journaled`) hands all that was noted in one step of trio's loop to the
journal together, and the journal calls back once for them. Per item this is nothing but a place in
a list, and at a thousand items a second more than that is felt.

The journal calls back between two steps of trio's loop, where no code of the user's may run. So
callbacks only take notes, too.
"""

from __future__ import annotations

from typing import Any

import trio

from harness._root_errors import budget_refusals
from harness.errors import BudgetExceeded, JournaledError, JournalError, JournalValueError
from harness.fanout._engine import Engine
from harness.fanout._item import ItemWork, Job, is_cancelled
from harness.fanout._journal import AttemptStatus, Ending, Entry, FanOutBatch
from harness.fanout._journaled_item import Encoded, JournaledJob, JournaledWork, Recorded
from harness.fanout._result import Result, ResultStatus
from harness.fanout._waiting_room import WaitingRoom
from harness.policies import Priority


class RecordingEngine(Engine):
    """An `Engine` that records what it does."""

    item_work: type[ItemWork] = JournaledWork

    def __init__(self, *given: Any, priority: Priority | None, **options: Any) -> None:
        super().__init__(*given, **options)
        self.batch: FanOutBatch
        """The journal's part for this fan-out, since `drive`."""
        self.jobs: dict[int, JournaledJob] = {}
        """The items in flight, by index."""
        self._waiting = WaitingRoom(limit=self._limit, window=self._window, priority=priority)
        self._ended: list[tuple[Entry, int | None, Ending]] = []
        """What has ended and is not on its way to the journal yet."""
        self._decided: list[Result[Any]] = []
        """The results among it: those of items that have ended for good."""
        self._not_durable = 0
        """How many results wait until they are durable, those of `_decided` included."""
        self._durable: list[Result[Any]] = []
        """Results that are to be handed on: they are durable, or have nothing that could be."""
        self._records = 0
        """Records that the journal has not called back for."""
        self._failure: Exception | None = None
        """What ends everything: the journal can't be written, or an item can't be kept in it."""
        self._news = trio.Event()
        """Set when there is something to do for the clerk."""
        self._has_clerk = False
        """Whether there is one. After a cut there is none, while items still end."""

    def fail(self, error: Exception) -> None:
        """End everything with an error that no item is to blame for."""
        if self._failure is None:
            self._failure = error
        self._start_no_more()

    def _start_no_more(self) -> None:
        super()._start_no_more()
        self._news.set()

    async def begin_another(self, job: JournaledJob) -> Recorded:
        """Record one more attempt at an item, and return it once that is durable.

        Checkpoint: always.

        Cancellation: the attempt is recorded all the same; it stays open, and was not called.
        """
        _waiting_for = "its journal"
        durable = trio.Event()

        def then(error: BaseException | None) -> None:
            durable.set()
            self._called_back(error)

        self._record_ended()  # How the attempt before ended comes before this one.
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
            self._note_end(job.entry, decided.number, ending)

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
        if beside or job.failure is not None:
            self._end_beside(job.entry, beside)
            self._record_ended()  # What is given back counts no more, below.
        used = decided or job.by_fallback
        if decided is not None and job.by_fallback is not None:
            decided.spent(job.by_fallback.tokens, job.by_fallback.cost_usd)
        owed = job.owed and status != "ok"
        # What a function makes of a cancel says nothing about its item, whatever it raises.
        done = status == "ok" or not (
            status == "cancelled" or owed or is_cancelled() or self._is_out_of_budget(value)
        )
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
            tokens, cost_usd = 0, 0.0
            if used is not None:
                tokens, cost_usd = used.tokens, used.cost_usd
            # By position: with names it takes twice as long, and there is one per item.
            ending = Ending(
                status,
                True,
                job.degraded,
                seconds,
                text,
                error_type,
                message,
                tokens,
                cost_usd,
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
        if not isinstance(value, BudgetExceeded | BaseExceptionGroup):
            return False
        mine = f"{self._run.path}/"
        return any(mine.startswith(f"{one.run_path}/") for one in budget_refusals(value))

    def _end_beside(self, entry: Entry, attempts: list[Recorded]) -> None:
        """Give back attempts that decided nothing: not called, or beside the one that counts."""
        for one in attempts:
            status: AttemptStatus = "cancelled" if one.called else "unstarted"
            self._note_end(entry, one.number, one.ending(status, final=False))

    def _keep(self, result: Result[Any], entry: Entry, number: int | None, ending: Ending) -> None:
        """Note an ending, and hand the result on once that is durable."""
        self._decided.append(result)
        self._not_durable += 1
        self._note_end(entry, number, ending)

    def _note_end(self, entry: Entry, number: int | None, ending: Ending) -> None:
        self._ended.append((entry, number, ending))
        if self._has_clerk:
            self._news.set()
        else:
            self._record_ended()

    def _record_ended(self) -> None:
        """Record all that was noted."""
        if not self._ended:
            return
        # harness: shared (both are taken and replaced in one step)
        ended, self._ended = self._ended, []
        decided, self._decided = self._decided, []

        def then(error: BaseException | None) -> None:
            self._not_durable -= len(decided)
            if error is None:
                self._durable += decided
            self._called_back(error)

        try:
            self.batch.end_nowait(ended, then)
        except JournalError as error:
            self._not_durable -= len(decided)
            self.fail(error)
        else:
            self._records += 1

    def _called_back(self, error: BaseException | None) -> None:
        """Note that a record is durable, or can't be made so. Called outside of any task."""
        self._records -= 1
        if error is not None and self._failure is None:
            assert isinstance(error, Exception)
            self._failure = error
        self._news.set()


def _told(error: BaseException) -> tuple[str, str]:
    """Return the name and the words of an error, whatever its own ``__str__`` does."""
    if isinstance(error, JournaledError):
        return error.type_name, error.message
    try:
        words = str(error)
    except Exception as broken:
        words = f"(its message can't be shown: {type(broken).__name__})"
    return type(error).__name__, words
