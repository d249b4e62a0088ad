"""Claim a batch's items for one of several sessions that share a journal.

An item that is asked for is answered once it is known to be done, or is this session's by a lease
(`harness.journal._leases`). Until then it is *new* (the journal hasn't been asked yet), *spare*
(nobody had it, but no more were wanted), or *held* by another session. The journal is asked about
many items in one transaction; about those held, again and again.

Each claim brings numbers that are larger than any given out before. So the order of an item's
records is that of their numbers, whoever made them: a later holder's are larger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import attrs
import outcome

from harness.errors import JournalError
from harness.fanout import Entry
from harness.journal._backend import Backend
from harness.journal._batch import Identity, JournalBatch
from harness.journal._index import Known
from harness.journal._leases import NOW, Leases
from harness.journal._queries import (
    LAST_EVENT,
    LAST_ITEM,
    items_of_batch,
    last_numbers,
    parked_in_batch,
    span_of_batch,
    steps_of_batch,
)
from harness.journal._writer import Beat

NUMBERS_PER_CLAIM = 1_000_000
"""Event numbers that come with a claim: for all attempts at its items, however many fail. They are
64 bits wide, so some are left."""

ASKED_AT_ONCE = 500

BEAT_SECONDS = 0.2
"""How often items that others hold are asked about."""

# A lease of our own on an item that is asked for can only come from a claim whose answer was lost.
CLAIM = f"""
  INSERT INTO harness_leases (digest, holder, epoch)
  SELECT w.digest, ?, nextval('harness_epochs') FROM (
    SELECT a.digest FROM unnest(?::bytea[]) WITH ORDINALITY a(digest, place)
    LEFT JOIN harness_leases l ON l.digest = a.digest
    LEFT JOIN harness_holders h ON h.token = l.holder
    WHERE h.token IS NULL OR greatest(h.until, ?) < {NOW} OR h.token = ?
    ORDER BY a.place LIMIT ?
  ) w
  ON CONFLICT (digest) DO UPDATE SET holder = excluded.holder, epoch = excluded.epoch
  RETURNING digest, epoch
"""


class Question(NamedTuple):
    """An item that isn't answered yet."""

    identity: Identity
    answer: Callable[[Entry], None]


class Claimed(NamedTuple):
    """What the journal says about some items."""

    epochs: Mapping[bytes, int]
    """The new leases, by digest."""
    known: Mapping[bytes, Known]
    """What is recorded."""
    parked: Mapping[int, int]
    steps: Sequence[Sequence[Any]]
    """The steps that are done of the items that are known."""
    last_event: int
    """If there are new leases, the numbers after these two are this session's."""
    last_item: int


@attrs.define(eq=False, kw_only=True)
class SharedJournalBatch(JournalBatch):
    """Implements `harness.fanout._journal.SharedBatch`."""

    _leases: Leases = attrs.field(alias="leases")
    _told: Callable[[BaseException | None], None] = attrs.field(init=False)
    _new: dict[bytes, Question] = attrs.field(factory=dict[bytes, Question], init=False)
    _spare: dict[bytes, Question] = attrs.field(factory=dict[bytes, Question], init=False)
    _held: dict[bytes, Question] = attrs.field(factory=dict[bytes, Question], init=False)
    _wanted: int = attrs.field(default=0, init=False)
    """How many the last claim was for."""
    _is_due: bool = attrs.field(default=False, init=False)
    """Whether to ask again about what is held."""
    _is_asking: bool = attrs.field(default=False, init=False)
    _unused: list[int] = attrs.field(factory=list[int], init=False)
    """Epochs of leases to be given back with the next claim."""
    _items: set[int] = attrs.field(factory=set[int], init=False)
    """The numbers of items claimed, and not known to have ended."""

    @property
    def held(self) -> int:
        """How many of the items asked for are held by others."""
        return len(self._held)

    @property
    def claiming(self) -> int:
        """How many items may become this session's with the answer that is awaited."""
        return self._wanted if self._is_asking else 0

    def listen(self, told: Callable[[BaseException | None], None]) -> None:
        """Have ``told`` called after each answer, with the error if there can be none."""
        self._told = told

    def ask(self, key: Any, item: Any, kept: Any, answer: Callable[[Entry], None]) -> None:
        """Ask for an item; ``answer`` is called once it is known as done, or this session's.

        Raises:
          JournalKeyError: as `find` does.
          JournalValueError: as `find` does.
        """
        identity, known = self._look_up(key, item, kept)
        if (entry := self._done(identity, known)) is not None:
            answer(entry)
        else:
            self._new[identity.digest] = Question(identity, answer)

    def claim(self, wanted: int) -> None:
        """Have up to ``wanted`` more items made this session's, if there is a question open."""
        if self._is_asking or self._closed is None:
            return
        if not (self._new or (wanted > 0 and self._spare) or (self._is_due and self._held)):
            return
        asked = chain(self._new.values(), self._spare.values())
        if self._is_due:
            asked, self._is_due = chain(asked, self._held.values()), False
        questions = list(islice(asked, ASKED_AT_ONCE))
        unused, self._unused = self._unused, []
        self._is_asking, self._wanted = True, max(0, wanted)
        self._writer.do(
            lambda backend: self._claim_in_thread(
                backend, [one.identity.digest for one in questions], max(0, wanted), unused
            ),
            lambda result: self._answered(questions, max(0, wanted), result),
        )

    def give_back(self, entry: Entry) -> None:
        """Let others have an item that has ended without being done, once that is recorded."""
        if (epoch := self._leases.epochs.get(entry.id)) is not None:
            self._writer.do(
                lambda backend: self._give_back_in_thread(backend, [epoch]), lambda _: None
            )

    def beat(self, error: BaseException | None) -> None:
        """Ask again about what is held; in trio's thread."""
        self._is_due = True
        if self._held or error is not None:
            self._told(error)

    async def close(self) -> None:
        """As in `JournalBatch`; what wasn't done is others' again."""
        if self._closed is not None and not self._writer.closed:
            epochs = [epoch for item in self._items if (epoch := self._leases.epochs.get(item))]
            self._writer.do(
                lambda backend: self._give_back_in_thread(backend, epochs), lambda _: None
            )
        await super().close()

    def _done(self, identity: Identity, known: Known | None) -> Entry | None:
        if known is None or known.status is None or known.input_hash != identity.input_hash:
            return None
        entry = self._entry(identity, known)
        return entry if entry.state in ("done", "failed") else None

    def _answered(
        self, questions: Sequence[Question], wanted: int, result: outcome.Outcome[Claimed]
    ) -> None:
        self._is_asking = False
        if isinstance(result, outcome.Error):
            self._told(result.error)
            return
        claimed = result.unwrap()
        if claimed.epochs:
            self._numbers.last_event = claimed.last_event
            self._numbers.last_item = claimed.last_item
        if claimed.parked:
            self._parked = {**self._parked, **claimed.parked}
        if self._steps is not None and claimed.known:
            items = [known.item for known in claimed.known.values()]
            try:
                self._index.learn_steps(items, claimed.steps)
            except JournalError as error:
                self._told(error)
                return
        all_wanted = len(claimed.epochs) >= wanted
        for question in questions:
            identity = question.identity
            was_held = self._held.pop(identity.digest, None) is not None
            self._new.pop(identity.digest, None)
            self._spare.pop(identity.digest, None)
            known, epoch = claimed.known.get(identity.digest), claimed.epochs.get(identity.digest)
            entry = self._done(identity, known)
            if entry is not None and epoch is not None:
                self._unused.append(epoch)
            elif epoch is not None:
                entry = self._entry(identity, known)
                self._leases.epochs[entry.id] = epoch
                self._items.add(entry.id)
            if entry is not None:
                question.answer(entry)
            elif all_wanted and not was_held:
                self._spare[identity.digest] = question
            else:
                self._held[identity.digest] = question
        if len(self._items) > 2 * len(self._leases.epochs) + ASKED_AT_ONCE:
            self._items.intersection_update(self._leases.epochs)
        self._told(None)

    # In the writer's thread -------------------------------------------------------------------

    def _claim_in_thread(
        self, backend: Backend, digests: list[bytes], wanted: int, unused: list[int]
    ) -> Claimed:
        leases = self._leases
        _, first_event, first_item = span_of_batch(backend, self._batch)

        def work() -> Claimed:
            leases.give_back(backend, unused)
            token = leases.owner.token
            given = (token, digests, leases.spares_until, token, wanted)
            rows = backend.execute(CLAIM, given).fetchall()
            epochs = {bytes(digest): int(epoch) for digest, epoch in rows}
            numbers = (0, 0)
            if epochs:
                event = _reserve(backend, LAST_EVENT, NUMBERS_PER_CLAIM)
                numbers = (event, _reserve(backend, LAST_ITEM, len(epochs)))
            query = "SELECT id FROM harness_items WHERE batch = ? AND digest = ANY(?)"
            found = backend.execute(query, (self._batch, digests)).fetchall()
            known: dict[bytes, Known] = {}
            parked: dict[int, int] = {}
            steps: list[Sequence[Any]] = []
            if items := [int(row[0]) for row in found]:
                query, arguments = items_of_batch(self._batch, first_event, first_item, items)
                for digest, *fields, _ in backend.execute(query, arguments).fetchall():
                    known[bytes(digest)] = _known(*fields)
                query, arguments = parked_in_batch(first_event, first_item, self._batch, items)
                parked = {
                    int(item): int(record)
                    for item, record in backend.execute(query, arguments).fetchall()
                }
                if self._steps is not None:
                    query, arguments = steps_of_batch(
                        self._batch,
                        first_event,
                        first_item,
                        column=self._steps.column,
                        among=self._steps.among,
                        items=items,
                    )
                    steps = backend.execute(query, arguments).fetchall()
            return Claimed(epochs, known, parked, steps, *numbers)

        return backend.transaction(work)

    def _give_back_in_thread(self, backend: Backend, epochs: Sequence[int]) -> None:
        backend.transaction(lambda: self._leases.give_back(backend, epochs))


def _reserve(backend: Backend, name: str, count: int) -> int:
    """Return the last number before the next ``count`` of them, which nobody else gets."""
    query = (
        "UPDATE harness_meta SET value = (value::bigint + ?)::text WHERE name = ? RETURNING value"
    )
    return int(backend.execute(query, (count, name)).fetchone()[0]) - count


def _known(
    item: Any, input_hash: Any, attempts: Any, lost: Any, ending: Any, status: Any, alone: Any
) -> Known:
    return Known(
        int(item),
        bytes(input_hash),
        int(attempts),
        int(lost),
        None if ending is None else int(ending),
        status,
        bool(alone),
    )


def joined_numbers(backend: Backend) -> tuple[int, int]:
    """Return the last numbers given out, and have all sessions go on from there."""
    with backend.alone():
        last = last_numbers(backend)
        put = (
            "INSERT INTO harness_meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = "
            "greatest(harness_meta.value::bigint, excluded.value::bigint)::text"
        )
        backend.change(
            [
                (put, (name, str(number)))
                for name, number in zip((LAST_EVENT, LAST_ITEM), last, strict=True)
            ]
        )
    return last


def beat_of(leases: Leases, then: Callable[[BaseException | None], None]) -> Beat:
    """Return what keeps a session's leases its own, and has it ask about what others hold."""
    beats = 0

    def renew(backend: Backend) -> None:
        nonlocal beats
        if beats % per_renewal == 0:
            with backend.translating():
                is_ours = backend.through(lambda: leases.renew(backend))
            if not is_ours:
                raise leases.lost(backend.name)
        beats += 1

    seconds = min(BEAT_SECONDS, leases.seconds / 6)
    per_renewal = max(1, int(leases.seconds / 3 / seconds))
    return Beat(seconds, renew, then)
