"""A journal in memory: what the engine of a journaled fan-out is tested with on a virtual clock.

It keeps what a file would keep, so a second session finds it. A crash is a session that isn't
closed: what has no ending then never gets one. Records become durable one step later, or when the
test says so.
"""

from __future__ import annotations

import copy
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs
import trio

from harness._approvals import Parked
from harness.errors import JournalError, JournalKeyError, JournalMismatchError, JournalValueError
from harness.fanout._journal import (
    Acknowledge,
    BatchIdentity,
    Ending,
    Entry,
    Step,
    StepDone,
    Stored,
    Totals,
    batch_of,
)
from harness.fanout._journal_ledger import books_for
from harness.fanout._kept import ItemLogs, Kept
from harness.fanout._plan import Books, Plan
from harness.fanout._source import Source

FIRST = 1_000_000
"""The attempts of the n-th session are numbered from n times that."""


@attrs.define(eq=False)
class KeptAttempt:
    number: int
    item: int
    alone: bool
    begun_at: float
    ending: Ending | None = None
    ended_at: float = 0.0


@attrs.define(eq=False)
class KeptItem:
    number: int
    input_hash: str
    attempts: list[KeptAttempt] = attrs.field(factory=list)
    ending: Ending | None = None
    ended_at: float = 0.0


class MemoryJournal:
    """A journal whose file is an object."""

    def __init__(self, *, max_attempts: int | None = None, retry_failed: bool = False) -> None:
        self.max_attempts = max_attempts
        self.retry_failed = retry_failed
        self.items: dict[tuple[type, Any], KeptItem] = {}
        self.order: list[KeptItem] = []
        self.name = "memory"
        self.kept: Literal["raise", "return"] = "raise"
        self.logs: ItemLogs | None = None
        self.target: str | None = None
        self.begun: list[str | int] = []
        """The keys of the attempts that were recorded, in order."""
        self.log: list[tuple[str, Any]] = []
        """What became durable, in order."""
        self.hold: Literal["nothing", "endings", "all"] = "nothing"
        """What doesn't become durable until `release`."""
        self.held: list[Callable[[], None]] = []
        self.disk_error: Exception | None = None
        self.sessions = 0
        self.open_batches = 0

    async def open_batch(
        self, name: str, *, target: str, settings: Mapping[str, Any]
    ) -> MemoryBatch:
        await trio.lowlevel.checkpoint()
        if self.target not in (None, target):
            raise JournalMismatchError(f"the batch {name!r} was begun with {self.target}")
        self.target = target
        self.sessions += 1
        self.open_batches += 1
        return MemoryBatch(self)

    def books(self, plan: Plan, source: Source, batch: BatchIdentity | None = None) -> Books:
        return books_for(self, plan, source, batch_of(plan) if batch is None else batch)

    def after_a_crash(self) -> MemoryJournal:
        """Return what another process would find if this one were killed now."""
        found = MemoryJournal(max_attempts=self.max_attempts, retry_failed=self.retry_failed)
        found.order, found.items = copy.deepcopy((self.order, self.items))
        found.target = self.target
        found.sessions = self.sessions
        return found

    def unended(self) -> list[int]:
        """Return the numbers of the attempts that have no ending."""
        return [one.number for kept in self.order for one in kept.attempts if one.ending is None]

    def unended_of_session(self) -> list[int]:
        """Return those of them that the latest session made."""
        return [number for number in self.unended() if number // FIRST == self.sessions]

    async def slow_disk(self, seconds: float) -> None:
        """Act as a disk that takes what there is once in so many seconds; for a task of its own."""
        self.hold = "all"
        while True:
            await trio.sleep(seconds)
            self.release(hold="all")

    def release(self, *, hold: Literal["nothing", "all"] = "nothing") -> None:
        self.hold = hold
        held, self.held = self.held, []
        for write in held:
            trio.lowlevel.current_trio_token().run_sync_soon(write)


class MemoryBatch:
    """One session."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal
        self._found: set[tuple[type, Any]] = set()
        self._entries: dict[int, Entry] = {}
        self._token = trio.lowlevel.current_trio_token()
        self.items = len(journal.items)

    @property
    def max_attempts(self) -> int | None:
        return self._journal.max_attempts

    def find(self, key: Any, item: Any, kept: Any = None) -> Entry:
        if type(key) not in (str, int) or key == "":
            raise JournalKeyError(f"{key!r} is no key")
        place = (type(key), key)
        if place in self._found:
            raise JournalKeyError(f"the key {key!r} is there twice")
        self._found.add(place)
        digest = hashlib.sha256(json.dumps(item, sort_keys=True).encode()).hexdigest()
        kept = self._journal.items.get(place)
        if kept is None or kept.input_hash != digest:
            kept = KeptItem(len(self._journal.order), digest)
            self._journal.order.append(kept)
            self._journal.items[place] = kept
        unended = [one for one in kept.attempts if one.ending is None]
        counted = sum(
            one.ending is None or one.ending.status in ("ok", "failed", "timed_out")
            for one in kept.attempts
        )
        state = "open" if kept.attempts else "new"
        if kept.ending is not None:
            state = "done" if kept.ending.status == "ok" else "failed"
        elif unended:
            state = "in_flight"
        if state == "failed" and self._journal.retry_failed:
            # Lost when it was tried again, maybe by what a neighbour did.
            state = "in_flight" if kept.attempts and kept.attempts[-1].ending is None else "open"
        entry = Entry(
            id=kept.number,
            key=key,
            state=state,  # type: ignore[arg-type]
            attempts=counted,
            alone=bool(unended) and unended[-1].alone,
            effects_key=f"memory:{kept.number}",
        )
        self._entries[kept.number] = entry
        return entry

    def glimpse(self, key: Any) -> tuple[Any, ...] | None:
        place = (type(key), key)
        kept = self._journal.items.get(place)
        if kept is None or kept.ending is None or place in self._found:
            return None
        if kept.ending.status != "ok" and self._journal.retry_failed:
            return None
        self._found.add(place)
        return ("glimpsed", key)

    def kept_entry(self, key: Any, glimpse: Any, item: Any, kept: Any = None) -> Entry:
        assert glimpse == ("glimpsed", key)
        self._found.remove((type(key), key))
        return self.find(key, item, kept)

    def encode(self, value: Any, step: str | None = None) -> tuple[str, Any]:
        try:
            text = json.dumps(value)
        except TypeError as error:
            raise JournalValueError(f"{value!r} has no JSON") from error
        return text, json.loads(text)

    def decode(self, text: str, step: str | None = None) -> Any:
        return json.loads(text)

    async def read_step(self, step: Step) -> str:
        raise NotImplementedError("only what is one function is kept here")

    def keep_nowait(self, entry: Entry, kept: Kept) -> None:
        raise NotImplementedError("nothing but results is kept here")

    async def read(self, entries: Sequence[Entry]) -> list[Stored]:
        await trio.lowlevel.checkpoint()
        found = []
        for entry in entries:
            kept = self._journal.order[entry.id]
            assert kept.ending is not None
            end = kept.ending
            found.append(
                Stored(
                    status=end.status,  # type: ignore[arg-type]
                    value=None if end.value is None else json.loads(end.value),
                    error_type=end.error_type,
                    error_message=end.error_message,
                    error_traceback=end.error_traceback,
                    degraded=end.degraded,
                    attempts=entry.attempts,
                    started_at=kept.ended_at - end.seconds,
                    ended_at=kept.ended_at,
                    seconds=end.seconds,
                )
            )
        return found

    async def parked(self, entry: Entry) -> Parked:
        await trio.lowlevel.checkpoint()
        return {}

    async def begin(self, entries: Sequence[Entry], *, alone: bool = False) -> list[int]:
        done = trio.Event()
        numbers = self.begin_nowait(entries, lambda _: done.set(), alone=alone)
        await done.wait()
        return numbers

    def begin_nowait(
        self, entries: Sequence[Entry], then: Acknowledge, *, alone: bool = False
    ) -> list[int]:
        numbers: list[int] = []
        written: list[KeptAttempt] = []
        for entry in entries:
            number = FIRST * self._journal.sessions + len(self._journal.begun)
            self._journal.begun.append(entry.key)
            entry.attempts += 1
            written.append(KeptAttempt(number, entry.id, alone, time.time()))
            numbers.append(number)

        def write() -> None:
            for one in written:
                self._journal.order[one.item].attempts.append(one)
                key = self._entries[one.item].key
                self._journal.log.append(("begun alone" if alone else "begun", key))

        self._soon(write, then, held=self._journal.hold == "all")
        return numbers

    async def end(self, entry: Entry, attempt: int | None, ending: Ending) -> None:
        done = trio.Event()
        self.end_nowait([(entry, attempt, ending)], lambda _: done.set())
        await done.wait()

    def end_nowait(
        self,
        ended: Sequence[tuple[Entry, int | None, Ending]],
        then: Acknowledge,
        steps: Sequence[tuple[Entry, StepDone]] = (),
    ) -> None:
        for entry, _, ending in ended:
            if ending.status in ("cancelled", "unstarted"):
                entry.attempts -= 1

        def write() -> None:
            for entry, attempt, ending in ended:
                kept = self._journal.order[entry.id]
                for one in kept.attempts:
                    if one.number == attempt:
                        assert one.ending is None, "an attempt ended twice"
                        one.ending, one.ended_at = ending, time.time()
                if ending.final and ending.status in ("ok", "failed", "timed_out"):
                    kept.ending, kept.ended_at = ending, time.time()
                self._journal.log.append((ending.status, entry.key))

        self._soon(write, then, held=self._journal.hold != "nothing")

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()

    async def totals(self) -> Totals:
        await trio.lowlevel.checkpoint()
        ended = [one.ending for kept in self._journal.order for one in kept.attempts if one.ending]
        statuses = [kept.ending.status for kept in self._journal.order if kept.ending is not None]
        return Totals(
            items=len(self._journal.items),
            ok=statuses.count("ok"),
            failed=statuses.count("failed"),
            timed_out=statuses.count("timed_out"),
            open=len(self._journal.items) - len(statuses),
            waiting=0,
            degraded=0,
            attempts=len(ended),
            cancelled_attempts=0,
            lost_attempts=len(self._journal.unended()),
            tokens=sum(one.tokens for one in ended),
            cost_usd=sum(one.cost_usd for one in ended),
            run_seconds=0.0,
            sessions=self._journal.sessions,
            seconds=0.0,
        )

    async def close(self) -> None:
        self._journal.open_batches -= 1
        await trio.lowlevel.checkpoint()

    def _soon(self, write: Callable[[], None], then: Acknowledge, *, held: bool) -> None:
        def commit() -> None:
            error = self._journal.disk_error
            if error is None:
                write()
            then(error)

        if held:
            self._journal.held.append(commit)
        else:
            self._token.run_sync_soon(commit)


def disk_is_full() -> JournalError:
    return JournalError("the journal could not be written: no space left on device")
