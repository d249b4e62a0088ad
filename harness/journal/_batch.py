"""One fan-out's part of a journal: which items it has, and what is recorded of them.

Items get their numbers here, in trio's thread: there is one writer, so the database needn't be
asked. Their rows are written with their first attempt.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import attrs
import trio

from harness._approvals import Parked
from harness._words import repr_of
from harness.errors import JournalClosedError, JournalError, JournalKeyError
from harness.fanout import Ending, Entry, Stored, Totals
from harness.fanout._journal import THE_ITEM, Glimpse, LastStep, Step, StepDone
from harness.fanout._kept import Kept
from harness.journal._backend import Backend, Row, Rows
from harness.journal._codec import Codec, digest_of_key, key_to_json, words_to_text
from harness.journal._index import KeyIndex, Known, KnownStep
from harness.journal._kept_bytes import is_kept_apart, put_together
from harness.journal._owner import SteadyClock
from harness.journal._queries import forgotten_name, stored
from harness.journal._steps import BatchSteps
from harness.journal._totals import totals_of
from harness.journal._writer import GROUP_CHARACTERS_AT_MOST, Acknowledge, Writer
from harness.runs._keys import item_key

T = TypeVar("T")

READ_AT_ONCE = 1_000
"""Endings fetched in one query."""


_TOKENS_AT_MOST = 10**15
"""More is a mistake, and the sum of a few such would be more than a database can count to."""

_GIVEN_BACK = ("cancelled", "unstarted")

Ended = tuple[Entry, int | None, Ending]
"""An item, the number of the attempt at it, and how that ended."""


@attrs.define(eq=False)
class _Entry(Entry):
    row: Row | None = None
    """Its row, until it is written."""
    input: str | None = None
    """What is kept of it, until that is written."""
    again: LastStep | None = None
    """The step it ended with under today's code, if other code has recorded a later ending."""


class Identity(NamedTuple):
    """What an item is known by."""

    key: Any
    key_json: str
    digest: bytes
    input_hash: bytes
    text: str | None
    """What is to be kept of it if it is new."""


@attrs.define(eq=False)
class Numbers:
    """Gives out the growing numbers of items and events."""

    last_event: int
    last_item: int

    def next_item(self) -> int:
        """Return a number that no item has had."""
        self.last_item += 1
        return self.last_item

    def next_event(self) -> int:
        """Return a number that no attempt and no ending has had."""
        self.last_event += 1
        return self.last_event


@attrs.define(eq=False, kw_only=True)
class JournalBatch:
    """Implements `harness.fanout.FanOutBatch` on a writer. Made by `Journal.open_batch`."""

    name: str
    max_attempts: int | None
    """How many attempts an item may have over all processes; None without a limit."""
    _writer: Writer = attrs.field(alias="writer")
    _codec: Codec = attrs.field(alias="codec")
    _numbers: Numbers = attrs.field(alias="numbers")
    _batch: int = attrs.field(alias="batch")
    session: int
    """The number of this session."""
    _index: KeyIndex = attrs.field(alias="index")
    _retry_failed: bool = attrs.field(alias="retry_failed")
    _clock: SteadyClock = attrs.field(alias="clock")
    _last_event: int = attrs.field(alias="last_event")
    """The last event number before the journal was opened."""
    _closed: Callable[[], None] | None = attrs.field(alias="closed")
    _origin: str = attrs.field(alias="origin")
    """The journal's name, the same in every session and every copy."""
    _parked: Mapping[int, int] = attrs.field(alias="parked_records")
    """For items that wait for approvals: the number of the record that says so."""
    _forgotten: Mapping[str, str] = attrs.field(alias="forgotten")
    """How often items were forgotten, by `forgotten_name`."""
    _steps: BatchSteps | None = attrs.field(alias="steps")
    """What its items go through; None if that is one function."""
    _keep_inputs: bool = attrs.field(alias="keep_inputs")

    @property
    def items(self) -> int:
        """How many items earlier sessions left."""
        return self._index.items

    @property
    def kept(self) -> int:
        """How many of them are done."""
        return self._index.kept

    # What is known ----------------------------------------------------------------------------

    def find(self, key: Any, item: Any, kept: Any = THE_ITEM) -> Entry:
        """Look an item up, and refuse any later item with its key.

        Args:
          key: What names it.
          item: What makes it the same as before.
          kept: What is kept of it, for exports; by default ``item``.

        Raises:
          JournalKeyError: if the key is neither text nor a whole number, is empty, or was already
            used in this session.
          JournalValueError: if the item has no content that can be compared with an earlier one.
          JournalClosedError: if the batch is closed.
        """
        return self._entry(*self._look_up(key, item, kept))

    def glimpse(self, key: Any) -> Glimpse | None:
        """Return what is kept under a key, without a look at the item; `kept_entry` takes it.

        It is meant for many items that come in the order in which they were recorded: it takes a
        tenth of the time of `find`, and refuses any later item with the key likewise.

        Returns:
          None: nothing may be kept, and `find` says what is known.

        Raises:
          JournalKeyError: if the key is neither text nor a whole number, or is empty.
          JournalClosedError: if the batch is closed.
        """
        if self._closed is None or self._steps is not None:
            return None  # `find` says why, or how far its steps have come.
        return self._index.glimpse(key_to_json(key))

    def kept_entry(self, key: Any, glimpse: Glimpse, item: Any, kept: Any = THE_ITEM) -> Entry:
        """Return the entry of an item that was glimpsed; a new one if it isn't what was recorded.

        Args:
          key, item, kept: As for `find`.
          glimpse: What `glimpse` gave for the key.

        Raises:
          JournalValueError: if the item has no content that can be compared with an earlier one.
        """
        number, recorded_hash, attempts, ending, status = self._index.glimpsed(glimpse)
        input_hash = self._codec.hash_input(item)
        if input_hash == recorded_hash:
            return _Entry(number, key, "done" if status == "ok" else "failed", attempts, ending)
        key_json = key_to_json(key)
        digest = digest_of_key(self._batch, key_json)
        text: str | None = None
        if self._keep_inputs:
            text = self._codec.input_text(item if kept is THE_ITEM else kept)
        return self._entry(Identity(key, key_json, digest, input_hash, text), None)

    def _look_up(self, key: Any, item: Any, kept: Any) -> tuple[Identity, Known | None]:
        """Return what identifies an item, and what earlier sessions recorded of it."""
        self._writer.check()
        if self._closed is None:
            raise JournalClosedError(f"the batch {self.name!r} is closed; open it again")
        key_json = key_to_json(key)
        input_hash = self._codec.hash_input(item)
        digest = digest_of_key(self._batch, key_json)
        is_first, known = self._index.find(digest)
        if not is_first:
            raise JournalKeyError(
                f"two items of batch {self.name!r} have the key {repr_of(key)}; with a journal "
                "every item needs a key of its own, by which it is known in the next session"
            )
        text = None
        if self._keep_inputs and (known is None or known.input_hash != input_hash):
            text = self._codec.input_text(item if kept is THE_ITEM else kept)
        return Identity(key, key_json, digest, input_hash, text), known

    def _entry(self, identity: Identity, known: Known | None) -> Entry:
        key, key_json, digest, input_hash, text = identity
        if known is None or known.input_hash != input_hash:
            number = self._numbers.next_item()
            row = (number, self._batch, digest, key_json, input_hash)
            entry = _Entry(number, key, "new", row=row, input=text)
            entry.effects_key = self._effects_key(key_json, input_hash)
            return entry
        done: Sequence[KnownStep] = ()
        latest = known.ending
        if self._steps is not None:
            done = self._index.steps(known.item)
            known = self._steps.as_of_now(known, done)
        entry = _Entry(known.item, key, "open", known.attempts, known.ending)
        if self._steps is not None and done:
            entry.further = max(one.further for one in done)
            entry.steps = self._steps.with_values(done)
            if known.ending is not None:
                end = [one for one in done if not one.part][-1]
                if not self._steps.several:
                    entry.last_step = end.name
                if known.ending != latest:
                    entry.again = LastStep(end.name, end.for_good, end.further)
        if known.status == "ok":
            entry.state = "done"
        elif known.status in ("failed", "timed_out") and not self._is_retried(known):
            entry.state = "failed"
        elif known.lost:
            entry.state = "in_flight"
            entry.alone = bool(known.alone)
        # Otherwise an item to be tried again is as open as if it had been cut short.
        if entry.state not in ("done", "failed"):
            entry.effects_key = self._effects_key(key_json, input_hash)
            record = self._parked.get(known.item)
            if record is not None and record > (known.ending or 0):
                entry.parked = record
        return entry

    def _is_retried(self, failed: Known) -> bool:
        # Not what another session failed at while this one is open: all would try all in turn.
        return self._retry_failed and (failed.ending or 0) <= self._last_event

    def _effects_key(self, key_json: str, input_hash: bytes) -> str:
        """Return the idempotency key of an item that is going to run.

        It contains no counter, so it is the same in a copy of the journal that an older session
        left. A forgotten item starts a new life, with a new key.
        """
        times = ""
        if self._forgotten:  # Almost never.
            whole = self._forgotten.get(forgotten_name(self.name), "0")
            alone = self._forgotten.get(forgotten_name(self.name, key_json), "0")
            times = "" if whole == alone == "0" else f" {whole} {alone}"
        return item_key(self._origin, self.name, key_json, f"{input_hash.hex()}{times}")

    def encode(self, value: Any, step: str | None = None) -> tuple[str, Any]:
        """Return the value's text for the journal, and the value that comes back from it.

        Args:
          value: The value of an item, or of a step.
          step: The name of the step that gave it; None for an item without steps.

        Raises:
          JournalValueError: if it has no text, or doesn't come back from it.
        """
        return self._codec_of(step).encode(value)

    def decode(self, text: str, step: str | None = None) -> Any:
        """Return the value of a text that `encode` gave.

        Raises:
          JournalValueError: if it can't be decoded.
        """
        return self._codec_of(step).decode(text)

    def _codec_of(self, step: str | None) -> Codec:
        return self._codec if self._steps is None else self._steps.codecs.get(step, self._codec)

    async def read_step(self, step: Step) -> str:
        """Return the text of the value of a step that is done.

        Raises:
          JournalError: if it can't be read.

        Checkpoint: always.

        Cancellation: nothing is left behind.
        """
        table, number = (
            ("harness_steps", step.record)
            if step.ending is None
            else ("harness_endings", step.ending)
        )

        def fetch(backend: Backend) -> str:
            rows = backend.fetch(f"SELECT value FROM {table} WHERE id = ?", (number,))
            if not rows:
                raise JournalError(f"batch {self.name!r} has no value of {step.name} for an item")
            return put_together(backend, rows[0][0])

        return await self._writer.ask(fetch)

    async def read(self, entries: Sequence[Entry]) -> list[Stored]:
        """Return what each of the entries ended with, in their order.

        Raises:
          JournalError: if one of them has no ending, or the journal can't be read.
          JournalValueError: if a value can't be decoded.

        Checkpoint: always, unless there are no entries.

        Cancellation: nothing is left behind.
        """
        found: dict[int, Row] = {}
        for start in range(0, len(entries), READ_AT_ONCE):
            numbers = tuple(
                entry.ending for entry in entries[start : start + READ_AT_ONCE] if entry.ending
            )

            def fetch(backend: Backend, numbers: Row = numbers) -> list[Row]:
                rows = backend.fetch(stored(len(numbers)), numbers)
                return [
                    (*row[:2], put_together(backend, row[2]), *row[3:])
                    if is_kept_apart(row[2])
                    else row
                    for row in rows
                ]

            for number, *fields in await self._writer.ask(fetch):
                found[number] = tuple(fields)
        results = [self._stored(entry, found.get(entry.ending or 0)) for entry in entries]
        self._end_again(entries, found)
        return results

    def _end_again(self, entries: Sequence[Entry], found: Mapping[int, Row]) -> None:
        """Record once more the endings of code that is back, which other code's have followed.

        Whoever looks into the journal takes the last for what the item came to.
        """
        again: list[Ended] = []
        for entry in entries:
            if isinstance(entry, _Entry) and entry.again is not None:
                status, text, kind, message, traceback, degraded, _, seconds, _ = found[
                    entry.ending or 0
                ]
                ending = Ending(
                    status=status,
                    degraded=bool(degraded),
                    seconds=seconds,
                    value=text,
                    error_type=kind,
                    error_message=message,
                    error_traceback=traceback,
                    step=entry.again,
                )
                again.append((entry, None, ending))
                entry.again = None
        if again:
            self.end_nowait(again, _nobody_waits)

    def _stored(self, entry: Entry, row: Row | None) -> Stored:
        if row is None:
            raise JournalError(
                f"batch {self.name!r} has no ending for the item {repr_of(entry.key)}"
            )
        status, text, error_type, error_message, traceback, degraded, *times = row
        ended_at, seconds, begun_at = times
        if entry.ending is not None and entry.ending <= self._last_event:
            # From an earlier session, whatever its machine's clock said.
            ended_at = min(ended_at, self._clock.made_at)
            begun_at = min(begun_at, ended_at)
        # By position: keywords take twice as long, and there may be a million of these.
        return Stored(
            status,
            self.decode(text, entry.last_step) if status == "ok" else None,
            error_type,
            error_message,
            traceback,
            bool(degraded),
            entry.attempts + entry.further,
            begun_at,
            ended_at,
            seconds,
        )

    async def parked(self, entry: Entry) -> Parked:
        """Return what is kept of the runs of an item that wait for approvals.

        Raises:
          JournalError: if it can't be read.

        Checkpoint: always.

        Cancellation: nothing is left behind.
        """
        rows = await self._writer.ask(
            lambda backend: backend.fetch(
                "SELECT value FROM harness_endings WHERE id = ?", (entry.parked,)
            )
        )
        states: Parked = json.loads(rows[0][0])
        return states

    # What is recorded -------------------------------------------------------------------------

    async def begin(self, entries: Sequence[Entry], *, alone: bool = False) -> list[int]:
        """Record an attempt at each, and return their numbers once that is durable.

        Raises:
          JournalError: if it can't be made durable.

        Checkpoint: always.

        Cancellation: the attempts are recorded anyway, and count until they are ended.
        """
        rows, numbers = self._begin(entries, alone)
        await self._writer.recorded(rows)
        return numbers

    def begin_nowait(
        self, entries: Sequence[Entry], then: Acknowledge, *, alone: bool = False
    ) -> list[int]:
        """Record an attempt at each; ``then`` is called in trio's thread once that is durable.

        Args:
          entries: The items.
          then: Called once, with the error if it can't be made durable. It must not raise.
          alone: Whether nothing else is in flight.
        """
        numbers: list[int] = []
        *parts, last = _parts(entries, [_characters(entry) for entry in entries])
        for part in parts:
            rows, begun = self._begin(part, alone)
            # If that fails, what comes after it fails too, and says so.
            self._writer.record(rows, _nobody_waits)
            numbers += begun
        rows, begun = self._begin(last, alone)
        self._writer.record(rows, then)
        return numbers + begun

    async def end(self, entry: Entry, attempt: int | None, ending: Ending) -> None:
        """Record how an attempt ended, and return once that is durable.

        Args:
          entry: The item.
          attempt: The attempt's number; None for an ending that no attempt led to.
          ending: How it ended.

        Raises:
          JournalError: if it can't be made durable.

        Checkpoint: always.

        Cancellation: the ending is recorded anyway; only the wait ends.
        """
        await self._writer.recorded(self._end([(entry, attempt, ending)]))

    def end_nowait(
        self,
        ended: Sequence[Ended],
        then: Acknowledge,
        steps: Sequence[tuple[Entry, StepDone]] = (),
    ) -> None:
        """Record how attempts ended; ``then`` is called in trio's thread once that is durable.

        Args:
          ended: For each, what `end` takes.
          then: Called once, with the error if it can't be made durable. It must not raise.
          steps: Steps that are done, with their items; recorded first.
        """
        for some in _parts(steps, [len(one[1].text) for one in steps]):
            if some:
                rows = [value for one in some for value in self._step(*one)]
                self._writer.record({"harness_steps": rows}, _nobody_waits)
        *parts, last = _parts(ended, [len(one[2].value or "") for one in ended])
        for part in parts:
            self._writer.record(self._end(part), _nobody_waits)
        self._writer.record(self._end(last), then)

    def keep_nowait(self, entry: Entry, kept: Kept) -> None:
        """Keep something with an item; nobody is told when it is durable."""
        self._writer.check()
        row: list[Any] = [self._numbers.next_event(), entry.id, self.session, self._clock.now()]
        row += kept.kind, *map(words_to_text, (kept.name, kept.run, kept.text)), kept.content
        self._writer.record({"harness_kept": row}, _nobody_waits)

    async def flush(self) -> None:
        """Wait until everything recorded before is durable.

        Raises:
          JournalError: if it can't be made durable.

        Checkpoint: always.

        Cancellation: only the wait ends.
        """
        await self._writer.flush()

    async def totals(self) -> Totals:
        """Return what the batch came to, over all its sessions so far.

        Checkpoint: always.

        Cancellation: nothing is left behind.
        """
        return await self._writer.ask(lambda backend: totals_of(backend, self._batch))

    async def close(self) -> None:
        """Wait until all that was recorded is durable, and let another fan-out open the batch.

        Raises:
          JournalError: if it can't be made durable.

        Checkpoint: always.

        Cancellation: the batch is closed anyway; only the wait ends.
        """
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()
        if closed is None or self._writer.closed:
            await trio.lowlevel.checkpoint()
        else:
            await self._writer.flush()

    def _step(self, entry: Entry, step: StepDone) -> list[Any]:
        assert self._steps is not None
        self._writer.check()
        row = [self._numbers.next_event(), entry.id, step.name, step.part]
        row += [self._steps.chains[step.name], None, 0, int(step.degraded), step.further]
        return [*row, self._clock.now(), step.text]

    def _begin(self, entries: Sequence[Entry], alone: bool) -> tuple[Rows, list[int]]:
        self._writer.check()
        now = self._clock.now()
        rows: Rows = {"harness_items": [], "harness_inputs": [], "harness_attempts": []}
        attempts = rows["harness_attempts"]
        numbers: list[int] = []
        for entry in entries:
            number = self._numbers.next_event()
            _add_item(entry, rows)
            attempts += number, entry.id, self.session, int(alone), now
            numbers.append(number)
            entry.attempts += 1
        return rows, numbers

    def _end(self, ended: Sequence[Ended]) -> Rows:
        self._writer.check()
        now = self._clock.now()
        names = (
            "harness_items",
            "harness_inputs",
            "harness_endings",
            "harness_usage",
            "harness_steps",
        )
        rows: Rows = {name: [] for name in names}
        endings = rows["harness_endings"]
        steps = rows["harness_steps"]
        for entry, attempt, ending in ended:
            number = self._numbers.next_event()
            is_final = ending.final and ending.status not in _GIVEN_BACK
            _add_item(entry, rows)
            endings += (
                number,
                entry.id,
                attempt,
                self.session,
                ending.status,
                int(is_final),
                int(ending.degraded),
                now,
                ending.seconds,
                ending.value,
                words_to_text(ending.error_type),
                words_to_text(ending.error_message),
                min(ending.tokens, _TOKENS_AT_MOST),
                # Databases don't take nan as a number, and one item's must not cost the journal.
                ending.cost_usd if math.isfinite(ending.cost_usd) else 0.0,
                words_to_text(ending.error_traceback),
                ending.run_id,
            )
            if ending.usage is not None:
                models, tokens = ending.usage
                named = words_to_text(", ".join(models))
                counts = (min(count, _TOKENS_AT_MOST) for count in tokens)
                rows["harness_usage"] += number, entry.id, named, *counts
            if is_final:
                entry.ending = number
                if ending.step is not None and self._steps is not None:
                    name, for_good, further = ending.step
                    steps += self._numbers.next_event(), entry.id, name, ""
                    steps += self._steps.chains[name], number, int(for_good), int(ending.degraded)
                    steps += further, now, None
            elif attempt is not None and ending.status in _GIVEN_BACK:
                entry.attempts -= 1
        return rows


def _parts(records: Sequence[T], characters: list[int]) -> Iterator[Sequence[T]]:
    """Yield the records in parts that aren't too long for one transaction; at least one."""
    start = total = 0
    if sum(characters) > GROUP_CHARACTERS_AT_MOST:
        for place, count in enumerate(characters):
            total += count
            if place > start and total > GROUP_CHARACTERS_AT_MOST:
                yield records[start:place]
                start, total = place, count
    yield records[start:]


def _characters(entry: Entry) -> int:
    return len(entry.input or "") if isinstance(entry, _Entry) else 0


def _nobody_waits(_: BaseException | None) -> None:
    pass


def _add_item(entry: Entry, rows: Rows) -> None:
    assert isinstance(entry, _Entry), "an entry comes from `find`"
    if entry.row is not None:
        rows["harness_items"].extend(entry.row)
        if entry.input is not None:
            rows["harness_inputs"].extend((entry.id, entry.input))
        entry.row = entry.input = None
