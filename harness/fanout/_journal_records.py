"""What a journaled fan-out records, and how its results wait until that is durable.

Attempts and their ends are written down many at a time. An end is only noted where it happens; the
clerk (`harness.fanout._journal_ledger`) hands everything noted in one step of trio's loop to the
journal together, and the journal calls back once for all of it. Per item this costs only a place in
a list; at a thousand items a second, more would show.

The journal calls back between two steps of trio's loop, where no user code may run. So callbacks
only take notes too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from harness._events import happened
from harness.errors import JournalError
from harness.fanout._journal import AttemptStatus, Ending, Entry, FanOutBatch, StepDone
from harness.fanout._journal_job import JournaledJob, Recorded
from harness.fanout._kept import ItemLogs
from harness.fanout._ledger import Writing
from harness.fanout._result import Result


class Records:
    """What one fan-out has on its way to a journal."""

    def __init__(self, logs: ItemLogs | None = None) -> None:
        self.logs: ItemLogs | None = logs
        """What is kept of what items say; None: only files."""
        self.batch: FanOutBatch
        """This fan-out's part of the journal, once it is open."""
        self.host: Writing
        """The fan-out, once it begins."""
        self.under_way: int = 0
        """Records the journal has not called back for yet."""
        self.failure: Exception | None = None
        """The error that ends everything: the journal, or an item in it, can't be written."""
        self.news: trio.Event = trio.Event()
        """Set when the clerk has something to do."""
        self.has_clerk = False
        """Whether there is a clerk. After a cut there is none, while items still end."""
        self._ended: list[tuple[Entry, int | None, Ending]] = []
        """Endings not yet on their way to the journal."""
        self._steps: list[tuple[Entry, StepDone]] = []
        """Steps that are done, and not yet on their way to the journal."""
        self._durable_steps: list[trio.Event] = []
        """What to set once they are durable."""
        self._decided: list[Result[Any]] = []
        """The results among them: those of items that have ended for good."""
        self._durable: list[Result[Any]] = []
        """Results ready to be handed on: they are durable, or have nothing to record."""

    @property
    def has_durable(self) -> bool:
        """Whether there are results ready to be handed on."""
        return bool(self._durable)

    def fail(self, error: Exception) -> None:
        """End everything with an error that no item is to blame for."""
        if self.failure is None:
            self.failure = error
        self.host.start_no_more()

    @enable_ki_protection  # A record that isn't counted would be awaited forever.
    def begin(
        self,
        entries: list[Entry],
        begun: Callable[[BaseException | None], None],
        *,
        alone: bool = False,
    ) -> list[int]:
        """Record an attempt at each of some items; ``begun`` is called once that is durable.

        Raises:
          JournalError: if it can't be recorded.
        """

        def then(error: BaseException | None) -> None:
            begun(error)
            self._called_back(error)

        numbers = self.batch.begin_nowait(entries, then, alone=alone)
        self.under_way += 1
        return numbers

    @enable_ki_protection
    async def begin_another(self, job: JournaledJob) -> Recorded:
        """Record one more attempt at an item, and return it once that is durable.

        Checkpoint: always.

        Cancellation: the attempt is recorded anyway; it stays open, and was not called.
        """
        _waiting_for = "its journal"
        durable = trio.Event()
        self.record_ended()  # The end of the attempt before goes first.
        try:
            [number] = self.begin([job.entry], lambda error: durable.set(), alone=job.alone)
        except JournalError as error:
            self.fail(error)
            await trio.sleep_forever()  # Until the clerk, which raises it, has ended everything.
        attempt = Recorded(number)
        job.open.append(attempt)
        await happened(durable)
        if self.failure is not None:
            await trio.sleep_forever()
        return attempt

    @enable_ki_protection
    def step(self, entry: Entry, done: StepDone, durable: trio.Event) -> None:
        """Note that a step is done; the event is set once that is durable, or can't be."""
        self._steps.append((entry, done))
        self._durable_steps.append(durable)
        self._noted()

    @enable_ki_protection
    def end_beside(self, entry: Entry, attempts: list[Recorded]) -> None:
        """Give back attempts that decided nothing: not called, or beside the one that counts."""
        for one in attempts:
            status: AttemptStatus = "cancelled" if one.called else "unstarted"
            self.end(entry, one.number, one.ending(status, final=False))

    @enable_ki_protection
    def keep(self, result: Result[Any], entry: Entry, number: int | None, ending: Ending) -> None:
        """Note an ending, and hand the result on once that is durable."""
        self._decided.append(result)
        self.host.unwritten += 1
        self.end(entry, number, ending)

    def pass_on(self, result: Result[Any]) -> None:
        """Hand on, in its turn, a result with nothing to record."""
        self._durable.append(result)

    @enable_ki_protection
    def end(self, entry: Entry, number: int | None, ending: Ending) -> None:
        """Note how an attempt ended."""
        self._ended.append((entry, number, ending))
        self._noted()

    def _noted(self) -> None:
        if self.has_clerk:
            self.news.set()
        else:
            self.record_ended()

    @enable_ki_protection
    def record_ended(self) -> None:
        """Record all that was noted."""
        if not (self._ended or self._steps):
            return
        # harness: shared (all are taken and replaced in one step)
        ended, self._ended = self._ended, []
        decided, self._decided = self._decided, []
        steps, self._steps = self._steps, []
        durable, self._durable_steps = self._durable_steps, []
        host = self.host

        def then(error: BaseException | None) -> None:
            host.unwritten -= len(decided)
            if error is None:
                self._durable += decided
            for event in durable:
                event.set()
            self._called_back(error)

        try:
            self.batch.end_nowait(ended, then, steps)
        except JournalError as error:
            host.unwritten -= len(decided)
            self.fail(error)
        else:
            self.under_way += 1

    def hand_on(self) -> None:
        """Hand on what is durable."""
        durable, self._durable = self._durable, []
        for result in durable:
            self.host.hand_on(result)

    def _called_back(self, error: BaseException | None) -> None:
        """Note that a record is durable, or can't be made so. Called outside any task."""
        self.under_way -= 1
        if error is not None and self.failure is None:
            assert isinstance(error, Exception)
            self.failure = error
        self.news.set()
