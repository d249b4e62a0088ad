"""Remember effects for the length of a block, when no journal keeps them longer.

It has the journal's protocol, so a `Once` works the same way with either. Its functions never wait.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import attrs

from harness.shared._effect_store import RecordedEffect


class EffectsInMemory:
    """Every effect of one `Once`, by key."""

    def __init__(self) -> None:
        self._effects: dict[Hashable, RecordedEffect] = {}

    def find(self, key: Hashable) -> RecordedEffect | None:
        """Return what is known about the effect, if it was ever intended."""
        return self._effects.get(key)

    async def intend(self, key: Hashable, idempotency_key: str) -> RecordedEffect:
        """Note that the effect is about to begin, and return what was known about it before."""
        known = self._effects.get(key)
        if known is None:
            known = RecordedEffect(state="new", idempotency_key=idempotency_key)
        if known.state in ("new", "failed"):
            self._effects[key] = attrs.evolve(known, state="unknown")
        return known

    async def complete(self, key: Hashable, value: Any) -> Any:
        """Note that the effect came back with ``value``."""
        self._effects[key] = attrs.evolve(self._effects[key], state="done", value=value)
        return value

    async def fail(self, key: Hashable, error: Exception) -> None:
        """Note that the effect reported ``error``."""
        self._effects[key] = attrs.evolve(self._effects[key], state="failed")

    def check(self) -> None:
        """Check that whatever is remembered makes sense.

        Raises:
          AssertionError: if something doesn't.
        """
        for key, effect in self._effects.items():
            assert effect.state != "new", f"the effect {key!r} was intended, and isn't new"
            assert effect.state == "done" or effect.value is None, f"{key!r} has an early value"
