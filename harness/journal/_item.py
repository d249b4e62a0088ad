"""What a journal knows of an item, as whoever looks into it is told."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from harness.journal._codec import Codec
from harness.journal._values import Shown, shown_text

ItemStatus = Literal["ok", "failed", "timed_out", "in_flight", "waiting", "open"]
"""What an item came to: an ending; or ``"in_flight"``: an attempt has none, as it is running or its
process died; ``"waiting"``: for a person's approval, or for the session after it; or ``"open"``:
cut short, or to be tried again."""


@attrs.frozen(kw_only=True)
class JournalItem:
    """What a journal knows of an item."""

    key: str | int
    """Its key, the same in every session."""

    status: ItemStatus
    """What it came to."""

    value_text: str | None
    """The value as it was recorded: JSON, unless the journal has ``encode=``; None if the status
    isn't ok."""

    error_type: str | None
    """The name of the error's class; None if it hasn't failed."""

    error_message: str | None
    """What the error says; None if it hasn't failed."""

    error_traceback: str | None
    """Where it came from, in the user's own frames; None if it hasn't failed, or was never
    raised."""

    degraded: bool
    """Whether the value came from the fallback."""

    attempts: int
    """Attempts that count; cancelled ones don't."""

    ended_at: float | None
    """When it ended, in seconds since the epoch; None if it hasn't."""

    seconds: float
    """How long its last attempt took, in seconds."""

    tokens: int = 0
    """The tokens that its attempts used."""

    cost_usd: float = 0.0
    """What they cost, in dollars."""

    input_text: str | None = None
    """The item itself, as JSON; None if JSON has no form for it, if an older harness recorded it,
    or unless the items were read with ``details=True``. So are all below."""

    run_id: str | None = None
    """The run of the attempt it ended with; None if there was none."""

    model: str | None = None
    """The models that its last attempt to call any called, in that order; None if none did."""

    input_tokens: int | None = None
    """The tokens that models read in its attempts; None if none was called. What calls that broke
    off used isn't in it, but it is in `tokens`."""

    output_tokens: int | None = None
    """The tokens they wrote."""

    cached_input_tokens: int | None = None
    """The part of the input that was in the provider's cache."""

    cache_write_input_tokens: int | None = None
    """The part of the input that went into the provider's cache."""

    input_hash: bytes = attrs.field(default=b"", eq=False, repr=False)
    """A hash of what the item was; `is_of` compares with it."""

    def is_of(self, item: Any) -> bool:
        """Return whether it was run for an item with this content.

        Args:
          item: What the batch recorded as the content of the item.

        Raises:
          JournalValueError: if that has no visible content.
        """
        return Codec().hash_input(item) == self.input_hash

    def plain_value(self) -> Any:
        """Return the value without its classes: of objects only the fields.

        Raises:
          Exception: if it was recorded with ``encode=``, as anything but JSON.
        """
        return None if self.value_text is None else Shown().read(self.value_text)

    @property
    def started_at(self) -> float | None:
        """When it began to run, in seconds since the epoch; None if it hasn't ended."""
        return None if self.ended_at is None else self.ended_at - self.seconds

    @property
    def shown_value_text(self) -> str | None:
        """The text of the value without the names of classes; None if the status isn't ok."""
        return None if self.value_text is None else shown_text(self.value_text)

    @property
    def error(self) -> str | None:
        """What went wrong, as ``Type: message``; None if it hasn't failed."""
        if self.error_type is None:
            return None
        return f"{self.error_type}: {self.error_message or ''}"
