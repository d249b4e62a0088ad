"""Record the steps of an item of a pipeline or a router, and find those that are done.

A step's value is on disk before the next step begins: what that does may depend on a value that
would come out another way the second time. The last step has no record of its own, as the item's
ending has its value.

An output of a stage that yields several has steps of its own. They are found again by the output's
number and its content, as the stage may yield something else when it is called again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from harness._events import happened
from harness.errors import JournalError
from harness.fanout._drop import DROP
from harness.fanout._journal import Entry, LastStep, Step, StepDone
from harness.fanout._journal_job import JournaledJob, Recorded
from harness.fanout._journal_kept import ItemKeeper, keeper_of
from harness.fanout._journal_records import Records
from harness.fanout._result import ResultStatus
from harness.runs import Run, current_run
from harness.runs._accounts import add_meter
from harness.runs._keys import digest
from harness.runs._run import KEEPER, LASTING_KEY


class ItemSteps:
    """The steps of one item, or of one output of it."""

    __slots__ = (
        "_durable",
        "_entry",
        "_key",
        "_known",
        "_part",
        "_records",
        "here",
        "keeper",
        "meter",
    )

    def __init__(
        self,
        records: Records,
        entry: Entry,
        meter: Recorded,
        keeper: ItemKeeper,
        *,
        part: str = "",
        key: str = "",
    ) -> None:
        self._records = records
        self._entry = entry
        self._part = part
        self._key = key or entry.effects_key
        self._known = {one.name: one for one in entry.steps if one.part == part}
        self._durable: trio.Event | None = None
        """Set when the latest record is durable; None if there is none."""
        self.here: str | None = None
        """The step that it is at, or ended with."""
        self.keeper: ItemKeeper = keeper
        """What keeps things with its item."""
        self.meter: Recorded = meter
        """What its item's runs report their usage to."""

    @property
    def is_whole(self) -> bool:
        """Whether it is the item itself, whose ending has the value of the last step."""
        return not self._part

    def knows(self, name: str) -> Step | None:
        """Return the record of a step, if there is one."""
        return self._known.get(name)

    @enable_ki_protection
    async def text(self, step: Step) -> str:
        """Return the text of the value of a step that is done.

        Checkpoint: always.

        Cancellation: nothing is left behind.
        """
        self.here = step.name
        try:
            return await self._records.batch.read_step(step)
        except JournalError as error:
            self._records.fail(error)
            await trio.sleep_forever()  # Until the clerk, which raises it, has ended everything.
            raise

    def decode(self, name: str, text: str) -> Any:
        """Return the value of a step from its text.

        Raises:
          JournalValueError: if it can't be decoded.
        """
        return self._records.batch.decode(text, name)

    @enable_ki_protection
    async def enter(self, name: str) -> None:
        """Begin a step: everything before it is on disk, and effects get keys of this step.

        Checkpoint: if something has to be written first.

        Cancellation: nothing is left behind.
        """
        _waiting_for = "its journal"
        self.here = name
        if self._durable is not None:
            await happened(self._durable)
            self._durable = None
            if self._records.failure is not None:
                await trio.sleep_forever()  # Until the clerk has ended everything, as above.
        run = current_run()
        if run._locals is None:
            run._locals = {}
        run._locals[LASTING_KEY] = self.key(name)

    def enter_together(self, run: Run, all_of_them: Sequence[ItemSteps], name: str) -> None:
        """Have the run of a call for several items report to all, and give it a key of their keys.

        Args:
          run: The run of the call.
          all_of_them: Whose step it is.
          name: The step's name.
        """
        add_meter(run, _Shares([one.meter for one in all_of_them]))
        assert run._locals is not None
        run._locals[LASTING_KEY] = digest("together", *sorted(one.key(name) for one in all_of_them))
        run._locals[KEEPER] = _Keepers([one.keeper for one in all_of_them])
        for one in all_of_them:
            one.keeper.listen_in(run)

    def key(self, name: str) -> str:
        """Return the idempotency key of a step: the same in every session."""
        return digest("step", self._key, name)

    @enable_ki_protection
    def leave(self, name: str, value: Any, *, further: int, degraded: bool) -> Any:
        """Record that a step is done, and return its value as a later session will see it.

        Args:
          name: Its name.
          value: What it gave.
          further: Attempts beyond the first that were made up to here, in this session.
          degraded: Whether a fallback gave a value up to here.

        Raises:
          JournalValueError: if the value can't be recorded.
        """
        text, value = self.encode(name, value)
        self.leave_text(name, text, further=further, degraded=degraded)
        return value

    def leave_text(self, name: str, text: str, *, further: int, degraded: bool) -> None:
        """Record that a step is done, with its value as text."""
        self._durable = durable = trio.Event()
        done = StepDone(name, self._part, text, degraded, self._entry.further + further)
        self._records.step(self._entry, done, durable)

    def encode(self, name: str, value: Any) -> tuple[str, Any]:
        """Return the text of what a step gave, and the value that comes back from it.

        Raises:
          JournalValueError: if it can't be recorded.
        """
        return self._records.batch.encode(value, name)

    def output(self, number: int, text: str) -> ItemSteps:
        """Return the steps of an output, from its number and its text."""
        part = f"{self._part}/{number}:{digest(text)}"
        key = digest("output", self._key, part)
        return ItemSteps(self._records, self._entry, self.meter, self.keeper, part=part, key=key)


class StepJob(JournaledJob):
    """An item whose steps are recorded."""

    several: bool = False
    """Whether it ends with the values of several outputs."""

    record: ItemSteps | None = None
    """Its steps; None until its task has begun."""

    @property
    def further(self) -> int:
        """Attempts beyond the first at its steps, over all processes."""
        return self.entry.further + max(0, self.attempts - 1)

    @property
    def at(self) -> str | None:
        """The name of the step whose value it ends with; None if there is no such step."""
        return None if self.record is None or self.several else self.record.here

    def set_out(self, records: Records, attempt: Recorded) -> None:
        """Note what records its steps."""
        self.record = ItemSteps(records, self.entry, attempt, keeper_of(self, records))
        self.degraded = any(one.degraded for one in self.entry.steps if not one.part)

    def last_step(self, status: ResultStatus, value: Any) -> LastStep | None:
        """Return the step it ends with; None if it was at none."""
        here = None if self.record is None else self.record.here
        if here is None:
            return None
        return LastStep(here, status != "ok" or value is DROP, self.further)


class _Shares:
    """Divides what a call for several items used among them."""

    def __init__(self, meters: Sequence[Recorded]) -> None:
        self._meters = meters

    def spent(self, tokens: int, cost_usd: float) -> None:
        """Note what was used."""
        each, left = divmod(tokens, len(self._meters))
        for number, meter in enumerate(self._meters):
            meter.spent(each + (number < left), cost_usd / len(self._meters))

    def called_model(self, model: str, tokens: tuple[int, int, int, int]) -> None:
        """Note what a call of a model used, by kind."""
        many = len(self._meters)
        for number, meter in enumerate(self._meters):
            one, two, three, four = (of // many + (number < of % many) for of in tokens)
            meter.called_model(model, (one, two, three, four))


class _Keepers:
    """Keeps with each of several items what a call for all of them says."""

    def __init__(self, keepers: Sequence[ItemKeeper]) -> None:
        self._keepers = keepers
        self.logs = keepers[0].logs

    def keeper_of(self, run: Run) -> _Keepers:
        """Return itself: it is for one run."""
        return self

    def keep_file(self, name: str, run: str, content: bytes) -> None:
        """Keep a file."""
        for one in self._keepers:
            one.keep_file(name, run, content)

    def keep_log(self, name: str, run: str, text: str) -> None:
        """Keep a log record."""
        for one in self._keepers:
            one.keep_log(name, run, text)
