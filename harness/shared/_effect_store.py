"""What a durable `Once` asks of the journal below it.

The journal stands floors above, so the protocol is owned here. Its order makes an effect
crash-safe: the intention is on disk before the effect begins, and the ending after it has come
back. A crash in between leaves an intention without an ending, which is what *unknown* means.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

import attrs

EffectState: TypeAlias = Literal["new", "failed", "unknown", "done"]
"""What is known of an effect when somebody intends it."""


@attrs.frozen(kw_only=True)
class RecordedEffect:
    """What a store knew of an effect when it was asked to note the intention."""

    state: EffectState
    """``"new"``: never intended before. ``"failed"``: the last attempt reported an error.
    ``"unknown"``: intended before, with no ending. ``"done"``: it has a value."""

    idempotency_key: str
    """The key of the first intention, whatever the later ones offered: it has to be the same
    after a crash, so that the receiver can tell."""

    value: Any = None
    """The value, if it is done, as it comes back from the disk."""


class DefaultKey(str):
    """An idempotency key that nobody chose, so that a store may make a different one from it.

    The effects of an item get their default keys in the order in which they ask, and that may be
    another one after a crash. Only a store knows which effect has a key from before.
    """

    __slots__ = ()


class EffectStore(Protocol):
    """Where a `Once` records its effects; implemented by the journal.

    All three return once the record is durable. They are called one after the other for one key,
    and side by side for different keys. `intend` may be cancelled, and then may have recorded the
    intention or not; the others are called shielded from cancels.

    A store that several `Once` may use has a dict ``effects_under_way``, in which they note whose
    each effect is while it goes on. Without it, an effect that is under way in another `Once` looks
    like one that a crash has cut off.
    """

    async def intend(self, key: Any, idempotency_key: str) -> RecordedEffect:
        """Record that the effect is about to begin, and return what was known of it before.

        If it was ``"new"`` the intention is stored with ``idempotency_key``; if ``"failed"``, anew
        with the stored key; if ``"unknown"`` or ``"done"`` nothing changes. A `DefaultKey` that
        another effect has is not stored, but one made from it.

        Raises:
          TypeError, ValueError: if ``key`` is none that stays the same from process to process.
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
