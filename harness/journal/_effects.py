"""The journal's record of effects: what was intended, and what came back.

Implements `harness.shared.EffectStore`. An effect is *intended* on disk before it begins, and
*done* or *failed* after it came back. If it is intended and has no ending, its outcome is unknown:
its process died in between, or the record of its ending was lost.

One row per effect, updated in place. All questions that arrive during a commit are looked up with
one statement, recorded with another, and share the next commit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Hashable
from functools import cache, partial
from hashlib import blake2b
from typing import Any

import attrs
import outcome

from harness._words import error_in_words, repr_of
from harness.errors import JournalError, JournalKeyError
from harness.journal._backend import Backend, Row
from harness.journal._codec import Codec, words_to_text
from harness.journal._kept_bytes import is_kept_apart, keep_apart, put_together
from harness.journal._writer import Writer
from harness.shared import DefaultKey, RecordedEffect

COLUMNS = ("id", "key", "idempotency_key", "state", "value", "intended_at", "done_at")

EFFECTS_PER_STATEMENT = 64


@attrs.define(eq=False, kw_only=True)
class JournalEffects:
    """Records effects through a journal's writer."""

    _writer: Writer = attrs.field(alias="writer")
    _codec: Codec = attrs.field(alias="codec")
    effects_under_way: dict[Hashable, object] = attrs.field(factory=dict, init=False)
    """For each effect under way, which `Once` has it; see `EffectStore`."""
    _taken: set[int] | None = attrs.field(default=None, init=False)
    """Hashes of all idempotency keys, from the first new effect on. For the writer's thread."""
    _last_effect: int = attrs.field(default=0, init=False)
    """The number of the latest effect; known when the hashes are."""

    async def intend(self, key: Any, idempotency_key: str) -> RecordedEffect:
        """Record that the effect is about to begin, and return what was known of it before.

        Args:
          key: Names the effect.
          idempotency_key: The key it gets if it is new. If this is a `DefaultKey` that another
            effect has, a new one is made from it.

        Raises:
          JournalKeyError: if ``key`` would not stay the same from process to process.
          JournalError: if the intention can't be made durable.

        Checkpoint: always.

        Cancellation: the intention may be recorded or not.
        """
        text = effect_key_to_json(key)
        state, stored_key, value = await self._writer.share(
            self._answer, _Intention(text, idempotency_key)
        )
        if state == "done":
            if is_kept_apart(value):
                value = await self._writer.ask(partial(put_together, text=value))
            value = self._codec.decode(value)
        return RecordedEffect(state=state, idempotency_key=stored_key, value=value)

    async def complete(self, key: Any, value: Any) -> Any:
        """Record that the effect came back with ``value``.

        Returns:
          The value as a later session will see it.

        Raises:
          JournalValueError: if the value can't be stored.
          JournalError: if the record can't be made durable.

        Checkpoint: always.

        Cancellation: the record is made nevertheless; only the wait ends.
        """
        text, value = self._codec.encode(value)
        await self._end(key, "done", text)
        return value

    async def fail(self, key: Any, error: Exception) -> None:
        """Record that the effect reported ``error``, so that the next call may try again.

        Raises:
          JournalError: if the record can't be made durable.

        Checkpoint: always.

        Cancellation: the record is made nevertheless; only the wait ends.
        """
        words = words_to_text(error_in_words(error))
        await self._end(key, "failed", json.dumps(words))

    async def _end(self, key: Any, state: str, text: str) -> None:
        asked = _End(effect_key_to_json(key), repr_of(key), state, text)
        await self._writer.share(self._answer, asked, characters=len(text))

    # In the writer's thread -------------------------------------------------------------------

    def _answer(
        self, backend: Backend, asked: list[_Intention | _End]
    ) -> list[outcome.Outcome[Any]]:
        """Answer each with what is now known of its effect; record all in one transaction."""
        known = self._writer.kept_bytes
        asked = [
            attrs.evolve(one, text=keep_apart(backend, one.text, known))
            if isinstance(one, _End)
            else one
            for one in asked
        ]
        if self._taken is None:
            rows = backend.fetch("SELECT id, idempotency_key FROM harness_effects")
            self._last_effect = max((int(number) for number, _ in rows), default=0)
            self._taken = {hash(taken) for _, taken in rows}
        book = _Book(self._taken, self._last_effect)
        answers: list[outcome.Outcome[Any]] = []

        def work() -> list[outcome.Outcome[Any]]:
            nonlocal answers
            before = {key: book.known[key] for key in book.changed}
            book.begin()
            keys = list(dict.fromkeys(one.key for one in asked))
            for start in range(0, len(keys), EFFECTS_PER_STATEMENT):
                part = keys[start : start + EFFECTS_PER_STATEMENT]
                for row in backend.execute(_look_up(len(part)), part).fetchall():
                    book.known[row[1]] = tuple(row)
            if backend.leases is not None:
                # Other sessions have effects, too; none of them answers while this one does.
                [[last]] = backend.execute("SELECT max(id) FROM harness_effects").fetchall()
                book.last = int(last or 0)
                offered = [one.offered for one in asked if isinstance(one, _Intention)]
                query = "SELECT idempotency_key FROM harness_effects WHERE idempotency_key = ANY(?)"
                taken = backend.execute(query, (offered,)).fetchall()
                book.offered |= {hash(row[0]) for row in taken}
            if before and before.items() <= book.known.items():
                # A server had it, but the connection was lost before it could say so.
                book.offered = {hash(row[2]) for row in before.values()}
                book.last = max(book.last, *(row[0] for row in before.values()))
                return answers
            answers = [outcome.capture(one.answer, book) for one in asked]
            changed = [book.known[key] for key in book.changed]
            for start in range(0, len(changed), EFFECTS_PER_STATEMENT):
                rows = changed[start : start + EFFECTS_PER_STATEMENT]
                backend.execute(_put(len(rows)), [value for row in rows for value in row])
            return answers

        answers = backend.transaction(work)
        self._taken |= book.offered
        self._last_effect = book.last
        return answers


class _Book:
    """What is known of some effects, and what of it has changed."""

    def __init__(self, taken: set[int], last: int) -> None:
        self._taken = taken
        self._last = last
        self.begin()

    def begin(self) -> None:
        """Forget what was changed; a transaction may begin a second time."""
        self.known: dict[str, Row] = {}
        """The rows by key, in the order of `COLUMNS`."""
        self.changed: dict[str, None] = {}
        self.offered: set[int] = set()
        """Hashes of the idempotency keys of new effects."""
        self.last = self._last
        """The number of the latest effect."""

    def is_taken(self, idempotency_key: str) -> bool:
        """Return whether an effect has the idempotency key."""
        hashed = hash(idempotency_key)
        return hashed in self._taken or hashed in self.offered

    def put(self, row: Row) -> None:
        """Note the new state of a row."""
        self.known[row[1]] = row
        self.changed[row[1]] = None


@attrs.frozen
class _Intention:
    """Asks whether an effect may begin."""

    key: str
    offered: str

    def answer(self, book: _Book) -> tuple[Any, str, Any]:
        """Return the earlier state, its idempotency key, and the text of its value."""
        if self.key in book.known:
            number, key, idempotency_key, state, value, _, _ = book.known[self.key]
            if state == "intended":
                return "unknown", idempotency_key, None
            if state == "failed":
                book.put((number, key, idempotency_key, "intended", None, time.time(), None))
                return "failed", idempotency_key, None
            return "done", idempotency_key, value
        idempotency_key = str(self.offered)
        if isinstance(self.offered, DefaultKey) and book.is_taken(idempotency_key):
            # An item's first effect to ask gets the item's own key. Another one asked first in a
            # process that has ended; with its key this would look like a repeat to the receiver.
            idempotency_key += f":{blake2b(self.key.encode(), digest_size=4).hexdigest()}"
        book.last += 1
        book.offered.add(hash(idempotency_key))
        book.put((book.last, self.key, idempotency_key, "intended", None, time.time(), None))
        return "new", idempotency_key, None


@attrs.frozen
class _End:
    """Says how an effect ended."""

    key: str
    words: str
    state: str
    text: str

    def answer(self, book: _Book) -> None:
        """Note it.

        Raises:
          JournalError: if the effect was never intended.
        """
        if self.key not in book.known:
            raise JournalError(
                f"the effect {self.words} has an ending, but was never intended in this journal; "
                "call intend() before the effect begins"
            )
        number, key, idempotency_key, _, _, intended_at, _ = book.known[self.key]
        now = time.time()
        book.put((number, key, idempotency_key, self.state, self.text, intended_at, now))


@cache
def _look_up(keys: int) -> str:
    places = ", ".join("?" * keys)
    return f"SELECT {', '.join(COLUMNS)} FROM harness_effects WHERE key IN ({places})"


@cache
def _put(rows: int) -> str:
    row = f"({', '.join('?' * len(COLUMNS))})"
    changes = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[3:])
    return (
        f"INSERT INTO harness_effects ({', '.join(COLUMNS)}) VALUES {', '.join([row] * rows)} "
        f"ON CONFLICT (key) DO UPDATE SET {changes}"
    )


def effect_key_to_json(key: Any) -> str:
    """Return the text of an effect's key: plain data, such as a text or a tuple of texts.

    Raises:
      JournalKeyError: if it is anything else.
    """
    try:
        text = json.dumps(key, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise JournalKeyError(
            f"the key {repr_of(key)} of an effect isn't the same in every process; use a string, a "
            'number, or a tuple of them, such as ("refund", order.id)'
        ) from error
    if text in ("null", '""', "[]", "{}"):
        raise JournalKeyError(
            f"{repr_of(key)} is no key: every effect without one would be taken for the same; "
            'use what names the effect, such as ("refund", order.id)'
        )
    return text
