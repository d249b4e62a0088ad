"""Count how the items of a batch end."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from typing import Any

import attrs

from harness._tracebacks import traceback_of
from harness.cli._record_fields import misspelt_field
from harness.cli._records import Record
from harness.cli._result_line import calls_of, error_text, error_type
from harness.errors import ApprovalPending
from harness.fanout import Result

_KINDS_COUNTED = 50
"""Error types past this many are counted together; a function could make a type per item."""

_EXAMPLES_KEPT = 3

_TRACEBACKS_KEPT = 5

_ASYNCIO_WORDS = ("no running event loop", "no current event loop", "unknown async library")


@attrs.define(eq=False)
class Tally:
    """How many items have ended in which way so far."""

    ok: int = 0
    """Items with a value."""

    failed: int = 0
    """Items whose last attempt raised, and records that can't be read."""

    timed_out: int = 0
    """Items whose last attempt took too long."""

    cancelled: int = 0
    """Items that were in flight when the batch was cut short."""

    waiting: int = 0
    """Items that wait for a person to approve calls of tools."""

    skipped: int = 0
    """Items that were read and never started."""

    attempts: int = 0
    """Attempts of all items together; a record that can't be read has none."""

    kept: int = 0
    """Items whose result was in the journal."""

    kept_failures: int = 0
    """How many of those failed or timed out."""

    unreadable: int = 0
    """Records that can't be read, among those that failed."""

    running: int = 0
    """Calls of the function that are in flight now."""

    calls: int = 0
    """Calls of the function that have ended."""

    call_seconds: float = 0.0
    """How long they took, without what they waited for limits before."""

    tokens: int = 0
    """What their records say they take, where a field says so."""

    left_out: list[str] = attrs.Factory(list)
    """The keys of the first few items that were skipped or cancelled."""

    error_kinds: Counter[str] = attrs.Factory(Counter)
    """How often each type of error ended an item."""

    examples: list[tuple[int, str]] = attrs.Factory(list)
    """The first few items of the input that failed: their index and their error."""

    with_tracebacks: bool = False
    """Whether `tracebacks` are kept."""

    tracebacks: dict[str, tuple[str, str]] = attrs.Factory(dict)
    """The first few errors of each type: an item's key and its traceback."""

    missed_asyncio: bool = False
    """Whether an item failed because its function needs asyncio's event loop."""

    @property
    def done(self) -> int:
        """How many items have ended."""
        return self.ok + self.not_ok

    @property
    def done_now(self) -> int:
        """How many items have ended in this session, without those that were never started."""
        return self.done - self.kept - self.skipped

    @property
    def not_ok(self) -> int:
        """How many items have ended without a value."""
        return self.without_success + self.cancelled + self.waiting + self.skipped

    @property
    def without_success(self) -> int:
        """How many items failed or timed out."""
        return self.failed + self.timed_out

    def add(self, result: Result[Any]) -> None:
        """Count one more item that has ended."""
        self.attempts += calls_of(result)
        # What ran in this session has a run; a record that wasn't started has no attempts.
        is_kept = result.run_id is None and result.status != "skipped"
        self.kept += is_kept
        self.kept_failures += is_kept and result.failed
        if result.status == "ok":
            self.ok += 1
            return
        if isinstance(result._ended_with, ApprovalPending):
            self.waiting += 1
            return
        setattr(self, result.status, getattr(self, result.status) + 1)
        if result.status in ("cancelled", "skipped"):
            if len(self.left_out) < _EXAMPLES_KEPT:
                self.left_out.append(f"{result.key}")
            return
        kind = error_type(result.error)
        if kind not in self.error_kinds and len(self.error_kinds) >= _KINDS_COUNTED:
            kind = "other errors"
        self.error_kinds[kind] += 1
        record: Record = result.item
        self.unreadable += record.problem is not None
        if self.with_tracebacks and kind not in self.tracebacks:
            self._keep_traceback(kind, record, result.error)
        if not self.missed_asyncio and kind in ("RuntimeError", "AsyncLibraryNotFoundError"):
            text = error_text(result.error)
            self.missed_asyncio = any(words in text for words in _ASYNCIO_WORDS)
        if len(self.examples) < _EXAMPLES_KEPT or record.index < self.examples[-1][0]:
            insort(self.examples, (record.index, _example(record, result.error)))
            del self.examples[_EXAMPLES_KEPT:]

    def _keep_traceback(self, kind: str, record: Record, error: BaseException | None) -> None:
        if record.problem is not None or len(self.tracebacks) >= _TRACEBACKS_KEPT:
            return
        text = traceback_of(error)
        if text is not None:
            self.tracebacks[kind] = f"{record.key}", text


def _example(record: Record, error: BaseException | None) -> str:
    if record.problem is not None:  # Its error begins with the line as well.
        return f"line {record.line}: {error_type(error)}: {record.problem}"
    note = misspelt_field(error, record.given)
    return f"{record.key}: {error_text(error)}{'' if note is None else f' ({note})'}"
