"""Give the outcome of one call to any number of callers: one value to all, an error to each."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import attrs

from harness._error_copies import own_copy


@attrs.frozen(eq=False)
class Landed:
    """The outcome of a call, for any number of callers."""

    value: Any
    error: Exception | None = None
    traceback: TracebackType | None = None
    """The error's own traceback, before anybody raised it again."""

    def get(self) -> Any:
        """Return the value, or raise a copy of the error for this caller."""
        if self.error is None:
            return self.value
        raise own_copy(self.error).with_traceback(self.traceback)
