"""The journal's record of effects: what was intended, and what came back.

Implements `harness.shared.EffectStore`. An effect is *intended* on disk before it begins, and
*done* or *failed* after it came back. What is intended without an ending is unknown: its process
died in between, or the record of its ending was lost.

One row per effect, updated in place: effects are mails and payments, and come by the thousand, not
by the million.
"""

from __future__ import annotations

import json
import time
from collections.abc import Hashable
from hashlib import blake2b
from typing import Any

from harness._words import error_in_words, repr_of
from harness.errors import JournalError, JournalKeyError
from harness.journal._backend import Backend, Row
from harness.journal._codec import Codec
from harness.journal._writer import Writer
from harness.shared import DefaultKey, RecordedEffect


class JournalEffects:
    """Records effects through a journal's writer."""

    def __init__(self, writer: Writer, codec: Codec) -> None:
        self._writer = writer
        self._codec = codec
        self.effects_under_way: dict[Hashable, object] = {}
        """For each effect that goes on now, which `Once` has it; see `EffectStore`."""
        self._taken: set[int] | None = None
        """Hashes of all idempotency keys, since the first new effect. For the writer's thread."""

    async def intend(self, key: Any, idempotency_key: str) -> RecordedEffect:
        """Record that the effect is about to begin, and return what was known of it before.

        Args:
          key: Names the effect.
          idempotency_key: What it is to have if it is new. If it is a `DefaultKey`, and another
            effect has it, one is made from it.

        Raises:
          JournalKeyError: if ``key`` is none that stays the same from process to process.
          JournalError: if the intention can't be made durable.

        Checkpoint: always.

        Cancellation: the intention may be recorded or not.
        """
        text = effect_key_to_json(key)
        state, stored_key, value = await self._writer.ask(
            lambda backend: self._intend(backend, text, idempotency_key)
        )
        if state == "done":
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
        await self._end(key, "failed", json.dumps(error_in_words(error)))

    async def _end(self, key: Any, state: str, text: str) -> None:
        change = (
            "UPDATE harness_effects SET state = ?, value = ?, done_at = ? WHERE key = ?",
            (state, text, time.time(), effect_key_to_json(key)),
        )
        [count] = await self._writer.ask(lambda backend: backend.change([change]))
        if not count:
            raise JournalError(
                f"the effect {repr_of(key)} has an ending, but was never intended in this journal; "
                "call intend() before the effect begins"
            )

    def _intend(self, backend: Backend, key: str, offered: str) -> tuple[Any, str, Any]:
        """Return the state that was there, its idempotency key, and the text of its value."""
        rows = backend.fetch(
            "SELECT state, idempotency_key, value FROM harness_effects WHERE key = ?", (key,)
        )
        if rows:
            return _intend_again(backend, key, *rows[0])
        if self._taken is None:
            rows = backend.fetch("SELECT idempotency_key FROM harness_effects")
            self._taken = {hash(taken) for (taken,) in rows}
        idempotency_key = str(offered)
        if isinstance(offered, DefaultKey) and hash(idempotency_key) in self._taken:
            # The effect of an item that asks first gets the item's own key. Another one asked
            # first in a process that has ended: to the receiver this would be a repetition of that.
            idempotency_key += f":{blake2b(key.encode(), digest_size=4).hexdigest()}"
        change: tuple[str, Row] = (
            "INSERT INTO harness_effects (id, key, idempotency_key, state, intended_at) "
            "SELECT coalesce(max(id), 0) + 1, ?, ?, 'intended', ? FROM harness_effects",
            (key, idempotency_key, time.time()),
        )
        backend.change([change])
        self._taken.add(hash(idempotency_key))
        return "new", idempotency_key, None


def _intend_again(
    backend: Backend, key: str, state: str, idempotency_key: str, value: str | None
) -> tuple[Any, str, Any]:
    """Return the state that was there, with its idempotency key and the text of its value."""
    if state == "intended":
        return "unknown", idempotency_key, None
    if state == "failed":
        change: tuple[str, Row] = (
            "UPDATE harness_effects SET state = 'intended', value = NULL, intended_at = ?, "
            "done_at = NULL WHERE key = ?",
            (time.time(), key),
        )
        backend.change([change])
        return "failed", idempotency_key, None
    return "done", idempotency_key, value


def effect_key_to_json(key: Any) -> str:
    """Return the text of an effect's key: of plain data, such as a text or a tuple of texts.

    Raises:
      JournalKeyError: if it is none.
    """
    try:
        text = json.dumps(key, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise JournalKeyError(
            f"the key {repr_of(key)} of an effect isn't the same in every process; use a text, a "
            'number, or a tuple of them, such as ("refund", order.id)'
        ) from error
    if text in ("null", '""', "[]", "{}"):
        raise JournalKeyError(
            f"{repr_of(key)} is no key: every effect without one would be taken for the same; "
            'use what names the effect, such as ("refund", order.id)'
        )
    return text
