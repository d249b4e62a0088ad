"""Define what a durable `Once` needs from the journal.

The journal is on a higher floor, so the protocol is owned here. Its order makes an effect
crash-safe: the intention is on disk before the effect begins, and the ending is recorded after it
has come back. A crash in between leaves an intention without an ending, which is what *unknown*
means.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

import attrs

EffectState: TypeAlias = Literal["new", "failed", "unknown", "done"]
"""What is known about an effect when somebody intends it."""


@attrs.frozen(kw_only=True)
class RecordedEffect:
    """What a store knew about an effect when asked to note the intention."""

    state: EffectState
    """``"new"``: never intended before. ``"failed"``: the last attempt reported an error.
    ``"unknown"``: intended before, with no ending. ``"done"``: it has a value."""

    idempotency_key: str
    """The key of the first intention, whatever later ones offered: it must be the same after a
    crash, so that the receiver can tell."""

    value: Any = None
    """The value, if it is done, as read back from disk."""


class DefaultKey(str):
    """An idempotency key that nobody chose, so a store may derive a different one from it.

    The effects of an item get their default keys in the order in which they ask, which may differ
    after a crash. Only a store knows which effect already has a key.
    """

    __slots__ = ()


class EffectStore(Protocol):
    """Where a `Once` records its effects; implemented by the journal.

    All three return once the record is durable. They are called one after the other for one key,
    and concurrently for different keys. `intend` may be cancelled, and may then have recorded the
    intention or not; the others are called shielded from cancels.

    A store that several `Once` may use has a dict ``effects_under_way``, in which they note whose
    each effect is while it goes on. Without it, an effect in progress in another `Once` looks like
    one cut off by a crash.
    """

    async def intend(self, key: Any, idempotency_key: str) -> RecordedEffect:
        """Record that the effect is about to begin, and return what was known about it before.

        If it was ``"new"``, the intention is stored with ``idempotency_key``; if ``"failed"``,
        again with the stored key; if ``"unknown"`` or ``"done"``, nothing changes. If another
        effect has the same `DefaultKey`, one derived from it is stored instead.

        Raises:
          TypeError, ValueError: if ``key`` wouldn't be the same from process to process.
        """
        ...

    async def complete(self, key: Any, value: Any) -> Any:
        """Record that the effect came back with ``value``.

        Returns:
          The value as a later session will see it.

        Raises:
          TypeError, ValueError: if the value can't be stored.
        """
        ...

    async def fail(self, key: Any, error: Exception) -> None:
        """Record that the effect reported ``error``, so that the next call may try again."""
        ...
