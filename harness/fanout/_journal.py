"""What a fan-out asks of a journal: protocols and plain values, so that no store is imported here.

The fan-out drives it with two calls, each for many items at once: `JournalBatch.look_up` before
items start, and `JournalBatch.record`, which returns when all it was given is durable. One task
per fan-out makes these calls, so there is never more than one of each under way for a batch.

What counts as an attempt: whatever was begun and not given back. An item's *ending* is final; a
try that is followed by a retry has none. So in a file whose process was killed, an item is either
ended, or has attempts *begun* and *unended*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeAlias

import attrs

JournalKey: TypeAlias = str | int

KeptStatus: TypeAlias = Literal["ok", "failed", "timed_out"]
"""The endings that are kept. Cancelled and skipped items are not done."""


@attrs.frozen(kw_only=True)
class Kept:
    """The final ending of an item, as the file has it, or as it is to be written there."""

    status: KeptStatus
    value: str | None = None
    """What `JournalBatch.encode` made of the value; None unless the status is ok."""
    error_type: str | None = None
    error_message: str | None = None
    degraded: bool = False
    run_id: str | None = None
    started_at: float
    """Seconds since the epoch, like the next."""
    ended_at: float


@attrs.frozen(kw_only=True)
class Known:
    """What the journal has of one item, for the very input that was asked about."""

    item: int
    """The item's number in the file, by which it is recorded. It has one from the look-up on, but
    nothing is written before `JournalBatch.record`."""
    attempts: int = 0
    """Attempts over all processes, without those that were given back. After a change of the
    input they begin from 0."""
    unended: int = 0
    """Those of them that have no ending of any kind: their process died, or they are the first
    tries of an item whose process died before its last."""
    alone: bool = False
    """Whether the latest of the unended ones was begun with nothing else in flight."""
    kept: Kept | None = None
    """How it ended; None if it is not done."""


@attrs.frozen(kw_only=True)
class Begun:
    """An attempt that is about to begin, or one begun ahead."""

    item: int
    alone: bool = False


@attrs.frozen(kw_only=True)
class Ended:
    """What an item's attempts of this process came to."""

    item: int
    kept: Kept | None
    """None: cancelled, or never started. The item is not done."""
    given_back: int = 0
    """How many of the attempts that were begun don't count: cancelled, never started, refused by
    a rate limit, a hedge that lost counts."""
    tokens: int = 0
    """What they used, given back or not: it is spent."""
    cost_usd: float = 0.0


@attrs.frozen(kw_only=True)
class Spent:
    """What a batch used in the sessions before this one."""

    tokens: int = 0
    cost_usd: float = 0.0


class JournalBatch(Protocol):
    """One batch of a journal, open for one fan-out."""

    @property
    def max_attempts(self) -> int | None:
        """After how many attempts an item is set aside."""
        ...

    @property
    def retry_failed(self) -> bool:
        """Whether items that failed or timed out are not done."""
        ...

    @property
    def spent_before(self) -> Spent:
        """What was used before this session."""
        ...

    def hash_of(self, item: Any) -> bytes:
        """Return the hash of an input.

        Raises:
          JournalValueError: if it can't be encoded.
        """
        ...

    def encode(self, value: Any) -> str:
        """Return the text that is kept of a value.

        Raises:
          JournalValueError: if it can't be encoded.
        """
        ...

    def decode(self, text: str) -> Any:
        """Return the value that such a text stands for."""
        ...

    async def look_up(self, inputs: Sequence[tuple[JournalKey, bytes]]) -> list[Known]:
        """Return what is known of items, by key and hash of the input, in the order given.

        Raises:
          JournalKeyError: if a key is none, or was looked up before in this session.
          JournalError: if the file can't be read.
        """
        ...

    async def record(self, begun: Sequence[Begun], ended: Sequence[Ended]) -> None:
        """Write it down; on return it is durable.

        Cancellation: none. It is written all the same; a cancel is heard afterwards.
        """
        ...


class Journal(Protocol):
    """A journal that is open."""

    def open_batch(
        self, name: str, *, target: str, settings: Mapping[str, Any]
    ) -> AbstractAsyncContextManager[JournalBatch]:
        """Open a batch for one fan-out, for the time of a block.

        Raises:
          JournalMismatchError: if it was begun with another target or other settings.
          JournalError: if it is open already.
        """
        ...
