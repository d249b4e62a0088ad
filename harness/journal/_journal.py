"""The journal as a program uses it, from `open_journal` to the end of its block."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Literal

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness._arguments import check_count, check_seconds
from harness._clock_hold import ClockHold
from harness._outside_trio import refuse_outside_trio
from harness._value_types import ValueTypes, classes_given, refusal_of
from harness.errors import (
    HarnessWarning,
    JournalError,
    JournalFormatError,
    JournalLockedError,
    JournalMismatchError,
    JournalValueError,
    NoRunError,
)
from harness.fanout import ValueForm
from harness.fanout._journal import BatchIdentity, DefaultName, batch_of, form_of
from harness.fanout._journal_ledger import books_for
from harness.fanout._kept import ItemLogs
from harness.fanout._plan import Books, Plan
from harness.fanout._source import Source
from harness.journal._backend import Backend
from harness.journal._batch import JournalBatch, Numbers
from harness.journal._claims import SharedJournalBatch, beat_of, joined_numbers
from harness.journal._codec import Codec
from harness.journal._effects import JournalEffects
from harness.journal._index import FILL, FILL_STEPS, KeyIndex
from harness.journal._leases import Leases
from harness.journal._log_handler import log_records_kept
from harness.journal._open import check_path, is_on_server, open_for_writing
from harness.journal._owner import Owner, SteadyClock, this_process
from harness.journal._queries import (
    forgotten_in,
    items_of_batch,
    last_numbers,
    origin_of,
    parked_in_batch,
    span_of_batch,
    steps_of_batch,
)
from harness.journal._source import fingerprint
from harness.journal._steps import BatchSteps, chains_of
from harness.journal._value_form import FormedCodec
from harness.journal._watch import outlook_note
from harness.journal._writer import Writer
from harness.runs import current_run

SOURCE = "source"
"""The version that means the source itself, and where its fingerprint is among the settings."""

NAMES_AT_MOST = 5
"""How many changed functions are named."""

WORDS_AT_MOST = 200
"""How much of a changed setting is quoted, in characters."""


@attrs.define(eq=False, repr=False, kw_only=True)
class Journal(JournalEffects):
    """A durable record of batches and effects. Made by `open_journal`.

    Give it to `harness.fan_out` for batches, and to `harness.shared.open_once` for effects.
    """

    name: str
    """The path of the file, or the address of the database without its password."""
    version: str | None
    """The version of the code, as given to `open_journal`."""
    max_attempts: int | None
    """How many attempts an item may have over all processes; None without a limit."""
    retry_failed: bool
    """Whether failed items are tried again."""
    force: bool
    """Whether to go on with batches from other code or settings."""
    kept: Literal["raise", "return"]
    """What becomes of failures from earlier sessions under a policy that raises failures."""

    logs: ItemLogs | None
    """What is kept of what items say; None: only files."""

    _keep_inputs: bool = attrs.field(alias="keep_inputs")
    """Whether the items themselves are kept, for exports."""
    _owner: Owner = attrs.field(alias="owner")
    _numbers: Numbers = attrs.field(alias="numbers")
    _last_event_before: int = attrs.field(alias="last_event_before")
    """The last event number before this opening."""
    _leases: Leases | None = attrs.field(alias="leases", default=None)
    """What this session has leased, if it shares the journal with others."""
    _shared: set[SharedJournalBatch] = attrs.field(factory=set[SharedJournalBatch], alias="shared")
    """Its open batches, in that case."""
    _clock: SteadyClock = attrs.field(factory=SteadyClock, init=False)
    _open_batches: set[str] = attrs.field(factory=set[str], init=False)
    _opened: set[str] = attrs.field(factory=set[str], init=False)
    """Names of the batches opened so far."""
    _opened_in: str | None = attrs.field(factory=lambda: _run_id(), init=False)
    """The run in which it was opened; None outside any."""
    _indexes: set[KeyIndex] = attrs.field(factory=set[KeyIndex], init=False)
    _digests: dict[Any, str] = attrs.field(factory=dict[Any, str], init=False)
    """The hashes of functions already looked at: each item of a fan-out may have a batch."""

    def __repr__(self) -> str:
        return f"<Journal {self.name!r}>"

    def books(self, plan: Plan, source: Source, batch: BatchIdentity | None = None) -> Books:
        """Return what the engine of a fan-out needs to write here.

        For `fan_out`, so that this is loaded only where there is a journal.

        Raises:
          JournalValueError: if the function's annotation says that it returns what can't be kept.
        """
        batch = batch_of(plan) if batch is None else batch
        source_now = fingerprint(batch.function, self._digests) or None
        steps: BatchSteps | None = None
        codec = self._codec
        if batch.steps is None:
            codec = self._codec_for(batch.function, batch.form)
        else:
            codecs: dict[str | None, Codec] = {
                name: self._codec_for(function, form_of(function))
                for name, (_, function) in batch.steps.functions.items()
            }
            codec = self._codec_for(batch.function, None)
            chains = chains_of(batch.steps, self._digests)
            among = list(chains if self.force else chains.values())
            steps = BatchSteps(
                chains, codecs, batch.steps.last, batch.steps.several, self.force, among
            )
        opened = _OpenedFor(self, codec, source_now, batch.tell, batch.opened, steps)
        return books_for(opened, plan, source, batch, shared=self._leases is not None)

    def _codec_for(self, function: Callable[..., Any], form: ValueForm | None) -> Codec:
        """Return what writes the values of a function."""
        if self._codec.is_own:
            return self._codec  # The caller's encode= and decode= handle values of every kind.
        if form is not None:
            return FormedCodec(form)
        types = ValueTypes()
        refused = types.add_returned(function)
        if refused is not None:
            raise JournalValueError(
                f"{refusal_of(refused, function)}, which can't be recorded; return plain "
                "data or a dataclass, or give open_journal() encode= and decode= for it"
            )
        return self._codec.knowing(types.classes) if types.classes else self._codec

    def identified(
        self,
        *,
        target: str,
        settings: Mapping[str, Any],
        content: Callable[[Any], Any] | None = None,
        kept: Callable[[Any], Any] | None = None,
        function: Callable[..., Any] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> IdentifiedJournal:
        """Return this journal for fan-outs whose batches aren't identified by their function.

        Args:
          target: Used in place of the function's full name.
          settings: Whatever else decides the answers; plain JSON data.
          content: Returns the part of an item that makes it the same as before; None: all of it.
          kept: Returns what is kept of an item, for exports; None: its content.
          function: What the fan-outs' function calls; its source is compared. None: their own.
          tell: Told that the source has changed; None: a `HarnessWarning` is given.
        """
        return IdentifiedJournal(
            self,
            target=target,
            settings=settings,
            content=content,
            kept=kept,
            function=function,
            tell=tell,
        )

    async def open_batch(
        self,
        name: str,
        *,
        target: str,
        settings: Mapping[str, Any],
        codec: Codec | None = None,
        source: Mapping[str, str] | None = None,
        tell: Callable[[str], None] | None = None,
        steps: BatchSteps | None = None,
    ) -> JournalBatch:
        """Open a batch, new or known. For engines: users give the journal to `fan_out`.

        Args:
          name: Its name in the journal.
          target: The full name of the function.
          settings: Whatever else decides its answers; plain JSON data.
          codec: How its values are written; None: like all values in this journal.
          source: The fingerprint of the function's source; None: it isn't compared.
          tell: Told that the source has changed; None: a `HarnessWarning` is given.
          steps: What its items go through; None: a function. With steps, only
            ``version="source"`` refuses another source or other settings: otherwise the changed
            steps are made again.

        Raises:
          JournalMismatchError: if it is known with another target, version or settings, or with
            ``version="source"`` another source, and the journal wasn't opened with ``force=True``.
          JournalLockedError: if it is open already.
          JournalError: if nobody chose its name and it could be mistaken for that of another
            fan-out, one that has ended or that belongs to another item of a fan-out around it; if
            the journal can't be read or written; or if ``name`` can't be stored as text.

        Checkpoint: always.

        Cancellation: the batch isn't open.
        """
        self._writer.check()
        try:
            name.encode()
        except UnicodeEncodeError:
            raise JournalError(
                f"name= is {name!r}, which contains half a character; a batch is found by its "
                "name, so give it one that can be written as UTF-8"
            ) from None
        if isinstance(name, DefaultName):
            self._check_default(name)
        if name in self._open_batches:
            raise JournalLockedError(
                f"the batch {name!r} of the journal {self.name!r} is being worked on by another "
                "fan-out; give one of them another name="
            )
        self._open_batches.add(name)
        try:
            version = None if self.version == SOURCE else self.version
            row = (target, version, json.dumps({**settings, SOURCE: source}, sort_keys=True))
            known = await self._writer.ask(partial(_find_batch, name=name))
            if known is not None:
                # Before anything is written: a warning may be an error.
                by_step = steps is not None and self.version != SOURCE
                before, now = (
                    (*one[:2], _without_steps(one[2]) if by_step else one[2])
                    for one in (known[1:], row)
                )
                self._compare(name, before, now, tell)
            index = KeyIndex(glimpses_failed=not self.retry_failed)
            self._indexes.add(index)
            batch, session, origin, forgotten, parked = await self._writer.ask(
                partial(
                    self._open_in_thread,
                    index=index,
                    name=name,
                    known=known,
                    row=row,
                    steps=steps,
                    next_event=self._numbers.last_event + 1,
                    next_item=self._numbers.last_item + 1,
                )
            )
        except BaseException:
            # The thread may still be filling the index; it is closed at the end.
            self._open_batches.discard(name)
            raise
        self._opened.add(name)
        make: Callable[..., JournalBatch] = JournalBatch
        if self._leases is not None:
            make = partial(SharedJournalBatch, leases=self._leases)
        opened = make(
            writer=self._writer,
            codec=self._codec if codec is None else codec,
            numbers=self._numbers,
            batch=batch,
            session=session,
            name=name,
            index=index,
            max_attempts=self.max_attempts,
            retry_failed=self.retry_failed,
            clock=self._clock,
            last_event=self._last_event_before,
            closed=partial(self._close_batch, name, index, session),
            origin=origin,
            parked_records=parked,
            forgotten=forgotten,
            steps=steps,
            keep_inputs=self._keep_inputs,
        )
        if isinstance(opened, SharedJournalBatch):
            self._shared.add(opened)
        return opened

    def _compare(
        self,
        name: str,
        before: tuple[Any, ...],
        now: tuple[Any, ...],
        tell: Callable[[str], None] | None,
    ) -> None:
        """Refuse a batch of other code or settings, and tell if its source is another."""
        if before == now or self.force:
            return
        differences, changed = _differences(before, now)
        if changed and self.version == SOURCE:
            differences.append(changed)
        if differences:
            raise JournalMismatchError(
                f"the batch {name!r} of the journal {self.name!r} was recorded by other code "
                f"or with other settings: {'; '.join(differences)}. Its results may not be "
                "what this one would give: use another name= or file, or open the journal "
                "with force=True to keep them"
            )
        if changed:
            words = (
                f"the batch {name!r} of the journal {self.name!r} was recorded by other code: "
                f"{changed}; what it has is kept, and may not be what this code would give"
            )
            if tell is None:
                warnings.warn(words, HarnessWarning, stacklevel=2)
            else:
                tell(words)

    def _check_default(self, given: DefaultName) -> None:
        """Refuse a name that nobody chose if a fan-out could get another one's results by it."""
        name = str(given)
        # A journal opened within the item belongs to that item.
        if given.inside and self._opened_in not in given.inside:
            raise JournalError(
                f"the batch {name!r} is inside an item of another fan-out and was given no "
                f"name=: the next item's batch would be taken for it and get its results; give "
                f"it a name with that item's key in it, such as name=f{f'{name} of {{item.id}}'!r}"
            )
        if name in self._opened and name not in self._open_batches:
            raise JournalError(
                f"the batch {name!r} was already worked on in this block of open_journal(), and "
                "was given no name=, so nobody can tell whether this fan-out continues it; write "
                f"name={name!r} if it does, and another name if it doesn't"
            )

    def _close_batch(self, name: str, index: KeyIndex, session: int) -> None:
        self._open_batches.discard(name)
        self._shared -= {one for one in self._shared if one.session == session}
        self._indexes.discard(index)
        index.close()

    def _beat(self, error: BaseException | None) -> None:
        for batch in self._shared:
            batch.beat(error)

    async def _close(self) -> None:
        """Close everything; called at the end of the block."""
        await self._writer.close()
        for index in self._indexes:
            index.close()

    def _open_in_thread(
        self,
        backend: Backend,
        *,
        index: KeyIndex,
        name: str,
        known: tuple[Any, ...] | None,
        row: tuple[Any, ...],
        steps: BatchSteps | None,
        next_event: int,
        next_item: int,
    ) -> tuple[int, int, str, dict[str, str], dict[int, int]]:
        """Find or make the batch, note the session, and fill the index.

        Returns:
          Their numbers, the journal's origin, how often what was forgotten, and which items wait
          for approvals, each with the number of the record that says so.
        """
        with backend.alone():
            return self._open_alone(
                backend,
                index=index,
                name=name,
                # Another session that shares the journal may have made it since.
                known=known or _find_batch(backend, name=name),
                row=row,
                steps=steps,
                next_event=next_event,
                next_item=next_item,
            )

    def _open_alone(
        self,
        backend: Backend,
        *,
        index: KeyIndex,
        name: str,
        known: tuple[Any, ...] | None,
        row: tuple[Any, ...],
        steps: BatchSteps | None,
        next_event: int,
        next_item: int,
    ) -> tuple[int, int, str, dict[str, str], dict[int, int]]:
        now = self._clock.now()
        changes: list[tuple[str, tuple[Any, ...]]] = []
        if known is not None:
            batch, *before = known
            if tuple(before) != row:
                update = "UPDATE harness_batches SET target = ?, version = ?, settings = ?"
                changes.append((f"{update} WHERE id = ?", (*row, batch)))
        else:
            batch = backend.fetch("SELECT coalesce(max(id), 0) + 1 FROM harness_batches")[0][0]
            insert = (
                # A commit whose answer is lost is made again.
                "INSERT INTO harness_batches (id, name, target, version, settings, created_at) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING"
            )
            changes.append((insert, (batch, name, *row, now)))
        session = backend.fetch("SELECT coalesce(max(id), 0) + 1 FROM harness_sessions")[0][0]
        changes.append(
            (
                "INSERT INTO harness_sessions (id, batch, first_event, first_item, started_at, "
                "pid, host) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (session, batch, next_event, next_item, now, self._owner.pid, self._owner.host),
            )
        )
        origin, noted = origin_of(backend)
        backend.change(changes + noted)
        if noted:
            origin, _ = origin_of(backend)  # Another one's, if that came first.
        parked: dict[int, int] = {}
        if known is not None:
            _, first_event, first_item = span_of_batch(backend, batch)
            query, arguments = items_of_batch(batch, first_event, first_item)
            backend.fill(index.connection, FILL, query, arguments)
            index.filled()
            if steps is not None:
                query, arguments = steps_of_batch(
                    batch, first_event, first_item, column=steps.column, among=steps.among
                )
                backend.fill(index.connection, FILL_STEPS, query, arguments)
            rows = backend.fetch(*parked_in_batch(first_event, first_item, batch))
            parked = {int(item): int(record) for item, record in rows}
        return int(batch), int(session), origin, forgotten_in(backend), parked


def _run_id() -> str | None:
    try:
        return current_run().id
    except NoRunError:
        return None


def _find_batch(backend: Backend, *, name: str) -> tuple[Any, ...] | None:
    """Return the number, target, version and settings of a batch; None if there is none."""
    query = "SELECT id, target, version, settings FROM harness_batches WHERE name = ?"
    found = backend.fetch(query, (name,))
    return tuple(found[0]) if found else None


@attrs.frozen
class _OpenedFor:
    """A journal as seen by the engine of one function."""

    _journal: Journal
    _codec: Codec
    _source: Mapping[str, str] | None
    _tell: Callable[[str], None] | None
    _opened: Callable[[int], None] | None
    _steps: BatchSteps | None

    @property
    def name(self) -> str:
        return self._journal.name

    @property
    def kept(self) -> Literal["raise", "return"]:
        return self._journal.kept

    @property
    def logs(self) -> ItemLogs | None:
        return self._journal.logs

    async def open_batch(
        self, name: str, *, target: str, settings: Mapping[str, Any]
    ) -> JournalBatch:
        batch = await self._journal.open_batch(
            name,
            target=target,
            settings=settings,
            codec=self._codec,
            source=self._source,
            tell=self._tell,
            steps=self._steps,
        )
        if self._opened is not None:
            self._opened(batch.kept)
        return batch


@attrs.frozen
class IdentifiedJournal:
    """A journal whose batches have a given identity; see `Journal.identified`."""

    journal: Journal
    target: str = attrs.field(kw_only=True)
    settings: Mapping[str, Any] = attrs.field(kw_only=True)
    content: Callable[[Any], Any] | None = attrs.field(kw_only=True)
    kept: Callable[[Any], Any] | None = attrs.field(kw_only=True)
    function: Callable[..., Any] | None = attrs.field(kw_only=True)
    tell: Callable[[str], None] | None = attrs.field(kw_only=True)
    opened: Callable[[int], None] | None = attrs.field(default=None, kw_only=True)

    @property
    def name(self) -> str:
        """Where the journal is kept."""
        return self.journal.name

    async def note_outlook(
        self,
        batch: str,
        *,
        expected: int | None,
        limits: str | None,
        forecast: str | None = None,
        timings: Sequence[Sequence[float | None]] = (),
    ) -> None:
        """Leave a note of how a batch goes on, for whoever watches the journal.

        Args:
          batch: Its name.
          expected: How many items it will have; None if nobody knows.
          limits: How far its limits are used now, in words; None without limits.
          forecast: When it will be over, in words; None if nobody knows.
          timings: What some of its items took, for the forecast of a later session, which gets it
            from `JournalReader.timings`.

        Raises:
          JournalError: if it can't be written, or the journal is closed.

        Checkpoint: always.

        Cancellation: it is written anyway; only the wait ends.
        """
        note = outlook_note(
            batch,
            {
                "expected": expected,
                "limits": limits,
                "forecast": forecast,
                "timings": [list(one) for one in timings],
            },
        )
        await self.journal._writer.ask(lambda backend: backend.change(note))

    def books(self, plan: Plan, source: Source) -> Books:
        """Return what the engine of a fan-out needs to write here."""
        batch = batch_of(plan, self.function)
        identified = attrs.evolve(
            batch,
            target=self.target,
            settings={**batch.settings, **self.settings},
            content=self.content,
            kept=self.kept,
            tell=self.tell,
            opened=self.opened,
        )
        return self.journal.books(plan, source, identified)


def _without_steps(text: str) -> str:
    """Return the settings of a batch without the source, and without those of its steps."""
    settings: dict[str, Any] = json.loads(text)
    left = {name: one for name, one in settings.items() if name != SOURCE and ": " not in name}
    return json.dumps(left, sort_keys=True)


def _differences(before: tuple[Any, ...], now: tuple[Any, ...]) -> tuple[list[str], str]:
    """Return, in words, what has changed.

    Args:
      before, now: Target, version and settings.

    Returns:
      The differences among those, and what is different in the source; empty if nothing is, or if
      there was none to compare.
    """
    found = [
        f"{what} {_was_and_is(was, now_is)}"
        for what, was, now_is in zip(("the function", "version="), before, now, strict=False)
        if was != now_is
    ]
    try:
        then, today = json.loads(before[2]), json.loads(now[2])
    except (ValueError, TypeError) as error:
        raise JournalFormatError(
            f"the journal is damaged (the settings of a batch read {before[2]!r}); nothing was "
            "repaired or overwritten: keep a copy"
        ) from error
    source_then, source_now = then.pop(SOURCE, None), today.pop(SOURCE, None)
    for name in sorted({*then, *today}):
        if then.get(name) != today.get(name):
            found.append(f"{name} {_was_and_is(then.get(name), today.get(name))}")
    if source_then is None or source_now is None:
        return found, ""
    names = sorted({*source_then, *source_now})
    changed = [one for one in names if source_then.get(one) != source_now.get(one)]
    if not changed:
        return found, ""
    more = f" and {len(changed) - NAMES_AT_MOST} more" if len(changed) > NAMES_AT_MOST else ""
    return found, f"the source has changed in {', '.join(changed[:NAMES_AT_MOST])}{more}"


def _was_and_is(was: object, now_is: object) -> str:
    before, now = ("" if one is None else repr(one) for one in (was, now_is))
    if max(len(before), len(now)) > WORDS_AT_MOST:
        # What is the same in front says nothing.
        pairs = zip(before, now, strict=False)
        same = next((at for at, (one, other) in enumerate(pairs) if one != other), 0)
        before, now = (
            f"...{one[max(0, same - 20) :][:WORDS_AT_MOST]}" if one else "" for one in (before, now)
        )
    return f"was {before or 'not given'} and is {now or 'not given'}"


def open_journal(
    path: str | os.PathLike[str],
    *,
    version: str | None = None,
    max_attempts: int | None = None,
    retry_failed: bool = False,
    kept: Literal["raise", "return"] = "raise",
    force: bool = False,
    join: bool = False,
    lease: float = 30.0,
    types: Iterable[type] = (),
    encode: Callable[[Any], str | bytes] | None = None,
    decode: Callable[[str], Any] | None = None,
    logs: ItemLogs | None = None,
    keep_inputs: bool = True,
) -> AbstractAsyncContextManager[Journal]:
    """Open a durable record of batches, for ``fan_out(..., journal=journal, key=...)``.

    What `fan_out` yields or returns with a journal is *journaled*: on disk, and after a crash taken
    from there instead of being computed again. One process at a time writes to a journal; any
    number may read meanwhile.

    Args:
      path: A file, created if there is none; or ``postgresql://...`` for a database on a server,
        which needs the extra ``postgres``.
      version: The version of your code, in any words. A batch recorded by another version is
        refused; with ``"source"``, also one whose function, or what it uses of its module, has
        changed since. Otherwise that is told in a `HarnessWarning`.
      max_attempts: How often an item may fail, time out or take its process down, over all
        processes, before it is set aside as failed. None: without limit.
      retry_failed: Whether to try items again that failed in an earlier session.
      kept: What becomes of items that failed in an earlier session and aren't tried again.
        ``"raise"``: under `FailFast`, or if they are critical, a `FanOutError` has them, once
        everything still to do has run. ``"return"``: they are among the results.
      force: Go on with a batch even if it was recorded by other code or with other settings.
      join: Whether to share the journal with other processes, on this machine or others, that join
        it too: each item runs in one of them, and each of them gets all results. Needs a server.
      lease: With ``join``, how many seconds after its last sign of life the items of a process are
        given to the others. A process that is stopped for longer can record nothing more.
      types: Classes that values may be of, where no function's annotation says so: dataclasses,
        enumerations, and the classes of attrs, msgspec and pydantic.
      encode: Writes a value as text, if that should be anything but JSON.
      decode: Reads what ``encode`` wrote.
      logs: What of each item's log records, notes and messages is stored with it, for ``harness
        journal show FILE KEY``; by default nothing. Files of `harness.Run.keep` always are.
      keep_inputs: Whether to keep the items themselves, for exports; else only their hashes.

    Returns:
      An async context manager that gives the `Journal`. Leaving its block waits until everything
      recorded is on disk.

    Raises:
      TypeError: if an argument has the wrong type, only one of encode and decode is given, or
        ``types`` are given beside them.
      ValueError: if ``join`` is given for a file, ``lease`` is less than 1 second, ``max_attempts``
        is less than 1, ``kept`` is another word, or ``path`` is empty
        or the address of another kind of database.
      ImportError: if the server's driver is not installed.
      JournalLockedError: on entry, if another process writes to it; the message names it.
      JournalFormatError: on entry, if the file is something else, damaged, or from a newer version.
      JournalError: on entry, if it can't be written to, for any other reason.

    Checkpoint: always, on entry and on exit.

    Cancellation: on entry the journal isn't open; the exit is shielded for up to a minute.
    """
    name = os.fspath(path)
    if not isinstance(name, str):
        raise TypeError(f"open_journal(path=...) takes a string or a Path, not {path!r}")
    if not name:
        raise ValueError("open_journal(path=...) is empty; give the journal a file")
    check_path(name)
    if version is not None and not isinstance(version, str):
        raise TypeError(
            f"open_journal(version=...) takes a string, not {version!r}; None is for no version"
        )
    if max_attempts is not None:
        check_count("open_journal(max_attempts=...)", max_attempts, advice="None sets no bound")
    if join and not is_on_server(name):
        raise ValueError(
            f"open_journal({name!r}, join=True) needs a server, since one process at a time writes "
            "to a file; give postgresql://..., or have one process do the whole batch"
        )
    check_seconds("open_journal(lease=...)", lease, advice="30 suits most")
    if lease < 1:
        raise ValueError(
            f"open_journal(lease=...) is {lease:g}, and a process that is alive can't say so more "
            "often; give 1 or more seconds"
        )
    if kept not in ("raise", "return"):
        raise ValueError(
            f'open_journal(kept=...) takes "raise" or "return", not {kept!r}: "return" has earlier '
            "failures among the results and raises nothing for them"
        )
    if logs is not None and not isinstance(logs, ItemLogs):
        raise TypeError(
            f"open_journal(logs=...) takes an ItemLogs, not {logs!r}; write logs=ItemLogs()"
        )
    own_logs = None if logs is None else attrs.evolve(logs)  # Its items are told by this object.
    classes = classes_given(types).classes
    if classes and encode is not None:
        raise TypeError(
            "open_journal() was given types= beside encode= and decode=, which write values of "
            "every kind; leave types= out"
        )
    if (encode is None) != (decode is None):
        given, missing = ("encode", "decode") if decode is None else ("decode", "encode")
        raise TypeError(
            f"open_journal() was given {given}= and no {missing}=, but they belong together: one "
            "reads what the other writes; give both, or neither"
        )
    for what, function in (("encode", encode), ("decode", decode)):
        if function is not None and not callable(function):
            raise TypeError(
                f"open_journal({what}=...) takes a function, not {function!r}; None is for JSON"
            )
    codec = Codec(encode, decode, classes=classes)

    @asynccontextmanager
    @enable_ki_protection  # Or this process would keep the lock.
    async def opened() -> AsyncGenerator[Journal]:
        refuse_outside_trio("open_journal() was called")
        owner = this_process()
        hold = ClockHold()
        hold.begin()
        try:
            # Not abandoned when cancelled: whoever opens must close, and it takes milliseconds.
            backend, numbers = await trio.to_thread.run_sync(
                _open_in_thread, name, owner, lease if join else None
            )
        finally:
            hold.end(1)
        beat, leases = None, backend.leases
        if leases is not None:
            beat = beat_of(leases, lambda error: journal._beat(error))
        journal = Journal(
            name=backend.name,
            writer=Writer(backend, beat),
            leases=leases,
            codec=codec,
            version=version,
            max_attempts=max_attempts,
            retry_failed=retry_failed,
            force=force,
            kept=kept,
            logs=own_logs,
            owner=owner,
            numbers=numbers,
            last_event_before=numbers.last_event,
            keep_inputs=keep_inputs,
        )
        try:
            with log_records_kept(own_logs):
                yield journal
        except BaseException:
            # Report what ended the block, not that the same disk can't be written to either.
            with contextlib.suppress(Exception):
                await journal._close()
            raise
        else:
            await journal._close()

    return opened()


def _open_in_thread(
    name: str, owner: Owner, lease_seconds: float | None
) -> tuple[Backend, Numbers]:
    """Open the database; return it with the last event and item numbers."""
    backend = open_for_writing(name, owner, lease_seconds)
    try:
        numbers = last_numbers(backend) if backend.leases is None else joined_numbers(backend)
        return backend, Numbers(*numbers)
    except BaseException:
        backend.close()
        raise
