"""Look into a journal from outside, and change what the next session will do.

`read_journal` opens it for reading, even while a batch writes to it. `edit_journal` takes the
writer's lock, to have items tried again or forgotten. Both are plain synchronous code, for the
command line and notebooks.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import chain
from typing import Any, BinaryIO

import attrs

from harness._approvals import Answer, Parked, WaitingCall, answered, waiting_in
from harness._frames import WHOLE_AT_MOST, to_pandas, to_polars
from harness._words import repr_of
from harness.errors import JournalError, JournalFormatError
from harness.fanout import Totals
from harness.fanout._kept import KeptKind
from harness.journal._backend import Backend, OlderJournalError, Row
from harness.journal._codec import digest_of_key, key_from_json, key_to_json
from harness.journal._export import (
    EXPORTED,
    ExportForm,
    form_of,
    row_of,
    write_items,
    written_whole,
)
from harness.journal._item import ItemStatus, JournalItem
from harness.journal._kept_bytes import drop_unused, is_kept_apart, put_together
from harness.journal._open import open_for_reading, open_for_writing
from harness.journal._owner import this_process
from harness.journal._queries import (
    forget_again,
    forgotten_name,
    keep_last_numbers,
    last_numbers,
    views_of_items,
)
from harness.journal._schema import COLUMNS
from harness.journal._totals import totals_of
from harness.journal._values import shown_text, shown_value
from harness.journal._watch import (
    BatchProgress,
    forget_outlook,
    latest_batch,
    outlook_of,
    progress_of,
)

ROWS_PER_CHANGE = 500
"""Keys handled in one statement."""

_ITEM_COLUMNS = (
    "v.key, v.status, v.value, v.error_type, v.error_message, v.error_traceback, v.degraded, "
    "v.attempts, v.ended_at, v.seconds, v.tokens, v.cost_usd, v.input_hash"
)
_DETAILS = (
    "v.input, v.run_id, v.model, v.input_tokens, v.output_tokens, v.cached_input_tokens, "
    "v.cache_write_input_tokens"
)


@attrs.frozen(kw_only=True)
class BatchInfo:
    """A batch of a journal, as it was first recorded."""

    name: str
    """What it is called in this journal: the ``name=`` of its fan-out."""

    target: str
    """The full name of the function."""

    version: str | None
    """The version of the code, as given to `open_journal`; None if none was."""

    settings: dict[str, Any]
    """What else decided its answers, such as command-line options."""

    created_at: float
    """When it was first opened, in seconds since the epoch."""

    last_session_at: float
    """When it was last opened, in seconds since the epoch."""

    sessions: int
    """How often it was opened."""


@attrs.frozen(kw_only=True)
class WaitingItem:
    """An item some of whose tool calls wait for a person's approval."""

    key: str | int
    """Its key, the same in every session."""

    calls: tuple[WaitingCall, ...]
    """The calls that nobody has answered yet."""


def _settings_shown(text: str) -> dict[str, Any]:
    """Return the settings, without the fingerprint of the source."""
    settings: dict[str, Any] = json.loads(text)
    settings.pop("source", None)
    return settings


@attrs.frozen(kw_only=True)
class KeptRecord:
    """What an item said, or a file that it kept."""

    kind: KeptKind
    """A log record, a note, a message of an agent, or a file; or ``"cut"``: what was left out."""

    name: str
    """The logger, the class of the note, the role of the message, or the name of the file."""

    run_path: str
    """The run it came from."""

    kept_at: float
    """When that was, in seconds since the epoch."""

    text: str | None
    """What it says; None for a file."""

    content: bytes | None
    """The content of a file."""


@attrs.frozen(kw_only=True)
class StepRecord:
    """A step of an item of a pipeline or a router that is done."""

    name: str
    """What it is called, such as ``stage 'parse'``."""

    part: str
    """Which output took it, if a stage yields several; empty for the item itself."""

    done_at: float
    """When it was done, in seconds since the epoch."""

    value_text: str | None
    """Its value as it was recorded; None for the last step, whose value is the item's."""

    of_earlier_code: bool = False
    """Whether other code has done the same step of the item since."""


class JournalReader:
    """Reads a journal. Made by `read_journal`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name: str = backend.name
        """The path of the file, or the address of the database without its password."""
        self.format_version: int | None = backend.version()
        """The version of its tables."""

    def batches(self) -> list[BatchInfo]:
        """Return the batches, in the order they were made."""
        rows = self._backend.fetch(
            """
            SELECT b.name, b.target, b.version, b.settings, b.created_at, l.started_at,
              coalesce(n.sessions, 0)
            FROM harness_batches b
            LEFT JOIN (SELECT batch, count(*) AS sessions, max(id) AS last FROM harness_sessions
              GROUP BY batch) n ON n.batch = b.id
            LEFT JOIN harness_sessions l ON l.id = n.last
            ORDER BY b.id
            """
        )
        return [
            BatchInfo(
                name=name,
                target=target,
                version=version,
                settings=self._read_json(settings, _settings_shown),
                created_at=created_at,
                last_session_at=created_at if last is None else last,
                sessions=sessions,
            )
            for name, target, version, settings, created_at, last, sessions in rows
        ]

    def totals(self, batch: str) -> Totals:
        """Return what a batch came to, over all its sessions.

        Raises:
          JournalError: if there is no such batch.
        """
        return totals_of(self._backend, self._number_of(batch))

    def progress(self, batch: str | None = None) -> BatchProgress:
        """Return how far a batch has come, and whether it is running; also of a large one, soon.

        Args:
          batch: Its name; the one that was opened last by default.

        Raises:
          JournalError: if there is no such batch, or none at all.
        """
        name = latest_batch(self._backend) if batch is None else batch
        if name is None:
            raise JournalError(f"the journal {self.name!r} has no batches")
        return progress_of(self._backend, self._number_of(name), name)

    def timings(self, batch: str) -> list[list[float | None]]:
        """Return what some items of a batch took, as its last session noted; empty if it hasn't.

        Raises:
          JournalError: if there is no such batch.
        """
        self._number_of(batch)
        timings: list[list[float | None]] = outlook_of(self._backend, batch).get("timings", [])
        return timings

    def counts(self, batch: str) -> dict[ItemStatus, int]:
        """Return how many items came to what, without zeros.

        Raises:
          JournalError: if there is no such batch.
        """
        counts: Counter[ItemStatus] = Counter()
        for status, count in self._items(
            "v.status, count(*)", self._number_of(batch), end="GROUP BY v.status"
        ):
            counts[status] += int(count)
        return dict(counts)

    def items(
        self,
        batch: str,
        statuses: Iterable[ItemStatus] | None = None,
        *,
        details: bool = False,
    ) -> Iterator[JournalItem]:
        """Yield a batch's items in the order they were first begun.

        Args:
          batch: Its name.
          statuses: Only items that came to one of these; all by default.
          details: Whether to read what they were, their runs, and what models used for them, too.
            That takes longer.

        Raises:
          JournalError: if there is no such batch.
        """
        number = self._number_of(batch)
        wanted = None if statuses is None else tuple(statuses)
        end = "ORDER BY v.id"
        if wanted is not None:
            places = ", ".join("?" * len(wanted)) or "NULL"
            end = f"WHERE v.status IN ({places}) {end}"
        columns = f"{_ITEM_COLUMNS}, {_DETAILS}" if details else _ITEM_COLUMNS
        rows = self._items(columns, number, wanted or (), end=end, details=details)
        return self._yield_items(rows)

    def waiting(self, batch: str) -> Iterator[WaitingItem]:
        """Yield a batch's items with tool calls that nobody has approved or denied yet.

        Args:
          batch: Its name.

        Raises:
          JournalError: if there is no such batch.
        """
        end = "WHERE v.parked IS NOT NULL ORDER BY v.id"
        for key, record in self._items("v.key, v.parked", self._number_of(batch), end=end):
            if calls := waiting_in(self._parked(int(record))):
                yield WaitingItem(key=self._read_json(key, key_from_json), calls=tuple(calls))

    def has(self, batch: str, key: str | int) -> bool:
        """Return whether a batch has an item with the key; a number and its text differ.

        Raises:
          JournalError: if there is no such batch.
        """
        number = self._number_of(batch)
        query = "SELECT count(*) FROM harness_items WHERE batch = ? AND digest = ?"
        [digest] = self._digests(number, [key])
        return bool(self._backend.fetch(query, (number, digest))[0][0])

    def item(self, batch: str, key: str | int) -> JournalItem:
        """Return what is known of one item.

        Raises:
          JournalError: if there is no such batch or item.
        """
        number = self._number_of(batch)
        [item] = self._numbers_of(number, batch, [key])
        [found] = self._yield_items(self._items(_ITEM_COLUMNS, number, end="", item=item))
        return found

    def kept(self, batch: str, key: str | int) -> Iterator[KeptRecord]:
        """Yield what an item said and the files it kept, oldest first, of all sessions.

        Raises:
          JournalError: if there is no such batch or item.
        """
        for kind, name, run, kept_at, text, content in self._of_item(
            "harness_kept", "kind, name, run, kept_at, text, content", batch, key
        ):
            yield KeptRecord(
                kind=kind,
                name=name,
                run_path=run,
                kept_at=kept_at,
                text=text,
                content=None if content is None else bytes(content),
            )

    def steps(self, batch: str, key: str | int) -> Iterator[StepRecord]:
        """Yield the steps of an item that are done, oldest first, also those of earlier code.

        Raises:
          JournalError: if there is no such batch or item.
        """
        columns = "name, part, done_at, value, chain"
        rows = self._of_item("harness_steps", columns, batch, key)
        latest = {name: code for name, _, _, _, code in rows}
        for name, part, done_at, value, code in rows:
            yield StepRecord(
                name=name,
                part=part,
                done_at=done_at,
                value_text=value,
                of_earlier_code=code != latest[name],
            )

    def _of_item(self, table: str, columns: str, batch: str, key: str | int) -> list[Row]:
        number = self._number_of(batch)
        [item] = self._numbers_of(number, batch, [key])
        query = f"SELECT {columns} FROM {table} WHERE item = ? ORDER BY id"
        return self._backend.fetch(query, (item,))  # One item's fit into memory.

    def export(
        self,
        output: str | os.PathLike[str],
        *,
        batch: str | None = None,
        form: ExportForm | None = None,
        chosen: Callable[[JournalItem], object] | None = None,
        overwrite: bool = False,
    ) -> int:
        """Write a batch's items to a file for other programs; of a million, a few at a time.

        Args:
          output: The file, which appears when it is complete.
          batch: The name of the batch; None if there is only one.
          form: ``"jsonl"``, ``"csv"``, ``"parquet"`` or ``"arrow"``; by default what the name of
            the file says. The last two need the extra ``arrow``.
          chosen: Tells whether an item is written; all are by default.
          overwrite: Whether to replace a file that is there.

        Returns:
          How many items were written.

        Raises:
          ValueError: if neither the name nor ``form`` says how to write the file.
          JournalError: if there is no such batch, or more than one and none was named.
          FileExistsError: if the file is there already.
          ImportError: if a package isn't installed that the form needs.
          OSError: if the file can't be written.
        """
        how = form_of(output, form)
        name = self._named(batch)
        with written_whole(os.fspath(output), overwrite=overwrite) as file:
            return self.write_items(file, how, batch=name, chosen=chosen)

    def write_items(
        self,
        file: BinaryIO,
        form: ExportForm,
        *,
        batch: str | None = None,
        chosen: Callable[[JournalItem], object] | None = None,
    ) -> int:
        """Write a batch's items to an open file; otherwise as `export`.

        Args:
          file: Where they go, such as ``sys.stdout.buffer``.
          form: How they are written.
          batch: The name of the batch; None if there is only one.
          chosen: Tells whether an item is written; all are by default.

        Returns:
          How many items were written.

        Raises:
          JournalError: if there is no such batch, or more than one and none was named.
          ImportError: if a package isn't installed that the form needs.
          OSError: if the file can't be written.
        """
        name = self._named(batch)
        items = self.items(name, details=True)
        whole_keys = form in ("parquet", "arrow") and self._has_whole_keys(name)
        return write_items(filter(chosen, items) if chosen else items, file, form, whole_keys)

    def to_pandas(self, batch: str | None = None) -> Any:
        """Return a batch's items as a ``pandas.DataFrame``, with the columns of an export.

        What an item was and its value are Python objects, of classes only the fields.

        Args:
          batch: The name of the batch; None if there is only one.

        Raises:
          JournalError: if there is no such batch, or more than one and none was named.
          ImportError: if pandas isn't installed; it comes with the extra ``pandas``.
        """
        items = self.items(self._named(batch), details=True)
        return to_pandas(
            EXPORTED, (row_of(item, shown_value) for item in items), subject="to_pandas()"
        )

    def to_polars(self, batch: str | None = None) -> Any:
        """Return a batch's items as a ``polars.DataFrame``, with the columns of an export.

        What an item was and its value are texts of JSON: polars has one type per column.

        Args:
          batch: The name of the batch; None if there is only one.

        Raises:
          JournalError: if there is no such batch, or more than one and none was named.
          ImportError: if polars isn't installed; it comes with the extra ``polars``.
        """
        items = self.items(self._named(batch), details=True)
        return to_polars(
            EXPORTED, (row_of(item, shown_text) for item in items), subject="to_polars()"
        )

    def _named(self, batch: str | None) -> str:
        """Return the name of a batch, which is the only one if none is given."""
        if batch is not None:
            return batch
        names = [info.name for info in self.batches()]
        if len(names) != 1:
            known = ", ".join(map(repr, names)) or "none"
            raise JournalError(
                f"the journal {self.name!r} has {known}; say which batch is meant, with batch="
            )
        return names[0]

    def _has_whole_keys(self, batch: str) -> bool:
        """Return whether all keys of a batch are numbers for a column of whole ones."""
        # As JSON, a text begins with quotes. A number with as many digits may still be too large.
        digits = len(str(WHOLE_AT_MOST)) - 1
        query = (
            "SELECT count(*) FROM harness_items WHERE batch = ? AND id >= "
            "(SELECT min(first_item) FROM harness_sessions WHERE batch = ?) "
            f"AND (key LIKE '\"%' OR length(key) > {digits})"
        )
        number = self._number_of(batch)
        return not self._backend.fetch(query, (number, number))[0][0]

    def _parked(self, record: int) -> Parked:
        rows = self._backend.fetch("SELECT value FROM harness_endings WHERE id = ?", (record,))
        states: Parked = self._read_json(rows[0][0], json.loads)
        return states

    def _yield_items(self, rows: Iterator[Row]) -> Iterator[JournalItem]:
        for row in rows:
            key, status, value, error_type, error_message, traceback, *numbers = row
            degraded, attempts, at, seconds, tokens, cost_usd, input_hash, *details = numbers
            given, run_id, model, *kinds = details or 7 * [None]
            given, value = map(self._whole, (given, value))
            counts = (None if one is None else int(one) for one in kinds)  # They may be decimals.
            read, written, cached, cache_write = counts
            yield JournalItem(
                key=self._read_json(key, key_from_json),
                status=status,
                value_text=value,
                error_type=error_type,
                error_message=error_message,
                error_traceback=traceback,
                degraded=bool(degraded),
                attempts=int(attempts),
                ended_at=at,
                seconds=seconds,
                tokens=int(tokens),
                cost_usd=float(cost_usd),
                input_text=given,
                run_id=run_id,
                model=model,
                input_tokens=read,
                output_tokens=written,
                cached_input_tokens=cached,
                cache_write_input_tokens=cache_write,
                input_hash=bytes(input_hash),
            )

    def _whole(self, text: str | None) -> str | None:
        """Return a text with its large bytes."""
        if text is None or not is_kept_apart(text):
            return text
        return put_together(self._backend, text)

    def _items(
        self,
        columns: str,
        batch: int,
        arguments: Row = (),
        *,
        end: str,
        item: int | None = None,
        details: bool = False,
    ) -> Iterator[Row]:
        """Yield columns of a batch's items; ``end`` is the end of the query, with its arguments."""
        views = views_of_items(self._backend, batch, item, details=details)
        return chain.from_iterable(
            self._backend.stream(f"SELECT {columns} FROM ({view}) v {end}", arguments)
            for view in views
        )

    def _read_json(self, text: str, read: Callable[[str], Any]) -> Any:
        try:
            return read(text)
        except (ValueError, TypeError) as error:
            raise JournalFormatError(
                f"the journal {self.name!r} is damaged (it has {repr_of(text)} in place of JSON); "
                "nothing was changed: keep a copy"
            ) from error

    def _number_of(self, batch: str) -> int:
        rows = self._backend.fetch("SELECT id FROM harness_batches WHERE name = ?", (batch,))
        if not rows:
            names = [repr(info.name) for info in self.batches()]
            raise JournalError(
                f"the journal {self.name!r} has no batch {batch!r}; it has "
                f"{', '.join(names) or 'none'}"
            )
        return int(rows[0][0])

    def _digests(self, batch: int, keys: Iterable[str | int]) -> dict[bytes, str | int]:
        return {digest_of_key(batch, key_to_json(key)): key for key in keys}

    def _numbers_of(self, number: int, batch: str, keys: Iterable[str | int]) -> list[int]:
        """Return the newest number of each item."""
        digests = self._digests(number, keys)
        found: dict[bytes, int] = {}
        for part in _parts(list(digests)):
            places = ", ".join("?" * len(part))
            for digest, item in self._backend.fetch(
                "SELECT digest, max(id) FROM harness_items WHERE batch = ? "
                f"AND digest IN ({places}) GROUP BY digest",
                (number, *part),
            ):
                found[bytes(digest)] = int(item)
        missing = [repr_of(key) for digest, key in digests.items() if digest not in found]
        if missing:
            more = f" and {len(missing) - 3:,} more" if len(missing) > 3 else ""
            raise JournalError(
                f"the batch {batch!r} of the journal {self.name!r} has no item "
                f"{', '.join(missing[:3])}{more} (a number and its text are different "
                "keys: 1 and '1')"
            )
        return list(found.values())


class JournalEditor(JournalReader):
    """Reads a journal, and changes what the next session does. Made by `edit_journal`."""

    def retry(self, batch: str, keys: Iterable[str | int] | None = None) -> int:
        """Have items tried again by the next session, as if they had never been tried.

        What they cost stays in the totals.

        Args:
          batch: Its name.
          keys: The items; all that failed or timed out by default.

        Returns:
          How many were reopened, not counting those that had neither an ending nor an attempt.

        Raises:
          JournalError: if there is no such batch, or an item isn't in it; nothing is changed then.
        """
        number = self._number_of(batch)
        if keys is None:
            end = "WHERE v.status IN ('failed', 'timed_out')"
            items = [int(row[0]) for row in self._items("v.id", number, end=end)]
        else:
            items = self._numbers_of(number, batch, keys)
        last, _ = last_numbers(self._backend)
        now = time.time()
        # Not a real ending: it closes what came before, and the item starts over.
        rows: list[Any] = []
        for event, item in enumerate(items, last + 1):
            rows += event, item, None, None, "reopened", 0, 0, now, 0.0, *3 * [None], 0, 0.0
            rows += None, None
        self._backend.write({"harness_endings": rows})
        return len(items)

    def answer(
        self, batch: str, key: str | int, answer: Answer, ids: Iterable[str] = ()
    ) -> list[WaitingCall]:
        """Approve or deny tool calls of an item, for the next session.

        Args:
          batch: Its name.
          key: The item.
          answer: True to approve; to deny, the reason, which the model is told.
          ids: The ``id`` of each; none for all that wait. An id belongs to the arguments
            as well, so a call that has changed since isn't answered.

        Returns:
          The calls that were answered.

        Raises:
          JournalError: if there is no such batch or item, or no such call waits; nothing is changed
            then.
        """
        number = self._number_of(batch)
        [item] = self._numbers_of(number, batch, [key])
        [(record,)] = self._items("v.parked", number, end="", item=item)
        states: Parked = {} if record is None else self._parked(int(record))
        chosen = tuple(ids)
        try:
            after = answered(states, chosen, answer)
        except ValueError as error:
            raise JournalError(f"item {repr_of(key)} of batch {batch!r}: {error}") from None
        calls = [one for one in waiting_in(states) if not chosen or one.id in chosen]
        last, _ = last_numbers(self._backend)
        # No attempt and no ending: a later record of the runs that wait.
        row = [last + 1, item, None, None, "answered", 0, 0, time.time(), 0.0, json.dumps(after)]
        row += ["ApprovalPending", None, 0, 0.0, None, None]
        self._backend.write({"harness_endings": row})
        return calls

    def forget(self, batch: str, keys: Iterable[str | int] | None = None) -> int:
        """Delete items and all that is recorded of them, from the totals too.

        If they run again their effects get new keys, so these happen again; `retry` keeps the keys.

        Args:
          batch: Its name.
          keys: The items; the whole batch by default.

        Returns:
          How many items were deleted.

        Raises:
          JournalError: if there is no such batch, or an item isn't in it; nothing is changed then.
        """
        number = self._number_of(batch)
        changes = keep_last_numbers(*last_numbers(self._backend))
        if keys is None:
            query = "SELECT count(DISTINCT digest) FROM harness_items WHERE batch = ?"
            count = int(self._backend.fetch(query, (number,))[0][0])
            names = [forgotten_name(batch)]
            changes += _deletions_where("batch = ?", (number,))
            changes.append(("DELETE FROM harness_sessions WHERE batch = ?", (number,)))
            changes.append(("DELETE FROM harness_batches WHERE id = ?", (number,)))
            changes.append(forget_outlook(batch))
        else:
            digests = self._digests(number, keys)
            count = len(self._numbers_of(number, batch, digests.values()))
            names = [forgotten_name(batch, key_to_json(key)) for key in digests.values()]
            changes += _deletions(number, list(digests))
        self._backend.change(changes + forget_again(self._backend, names))
        return count

    def forget_before(self, when: float, batch: str | None = None) -> int:
        """Delete what ended before a moment, and all that is recorded of it, from the totals too.

        What hasn't ended stays, and so does every effect, which would otherwise happen again. A
        batch with nothing left that hasn't been opened since loses its name as well. The space in
        the file is reused; to make the file smaller, call `vacuum` afterwards.

        Args:
          when: In seconds since the epoch, such as ``time.time() - 90 * 86_400``.
          batch: The name of one batch; all by default.

        Returns:
          How many items were deleted.

        Raises:
          ValueError: if ``when`` isn't a moment.
          JournalError: if there is no such batch; nothing is changed then.
        """
        if not math.isfinite(when):
            raise ValueError(
                f"forget_before(when=...) takes seconds since the epoch, not {when!r}; write "
                "time.time() - 90 * 86_400 for the time up to 90 days ago"
            )
        chosen = [one for one in self.batches() if batch in (None, one.name)]
        if batch is not None and not chosen:
            self._number_of(batch)  # Its error lists the batches.
        count = 0
        changes = keep_last_numbers(*last_numbers(self._backend))
        for info in chosen:
            number = self._number_of(info.name)
            ended = list(self._items("v.digest", number, (when,), end="WHERE v.ended_at < ?"))
            count += len(ended)
            changes += _deletions(number, [bytes(digest) for (digest,) in ended])
            if info.last_session_at < when:
                changes += [
                    (
                        f"DELETE FROM {table} WHERE {column} = ? AND NOT EXISTS "
                        "(SELECT 1 FROM harness_items WHERE batch = ?)",
                        (number, number),
                    )
                    for table, column in (("harness_sessions", "batch"), ("harness_batches", "id"))
                ]
        self._backend.change(changes)
        return count

    def vacuum(self) -> int:
        """Give the space of what was deleted back to the disk, which `forget` alone doesn't.

        The whole journal is rewritten, which temporarily takes as much disk space again.

        Returns:
          How many bytes smaller the journal is.
        """
        drop_unused(self._backend)
        return self._backend.vacuum()


def _deletions(batch: int, digests: list[bytes]) -> list[tuple[str, Row]]:
    """Return the statements that delete a batch's items and what is recorded of them."""
    changes: list[tuple[str, Row]] = []
    for part in _parts(digests):
        places = ", ".join("?" * len(part))
        changes += _deletions_where(f"batch = ? AND digest IN ({places})", (batch, *part))
    return changes


def _deletions_where(condition: str, row: Row) -> list[tuple[str, Row]]:
    """Return the statements that delete matching items and what is recorded of them."""
    items = f"harness_items WHERE {condition}"
    of_items = [table for table in COLUMNS if table != "harness_items"]
    return [
        *(
            (f"DELETE FROM {table} WHERE item IN (SELECT id FROM {items})", row)
            for table in of_items
        ),
        (f"DELETE FROM {items}", row),
    ]


def _parts(digests: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(digests), ROWS_PER_CHANGE):
        yield digests[start : start + ROWS_PER_CHANGE]


@contextmanager
def read_journal(path: str | os.PathLike[str]) -> Iterator[JournalReader]:
    """Open a journal for reading, even while another process writes to it.

    Args:
      path: As for `open_journal`.

    Raises:
      JournalFormatError: if it is no journal, or a damaged one.
      JournalError: if it isn't there or can't be read.
    """
    with closing(open_for_reading(os.fspath(path))) as backend:
        yield JournalReader(backend)


@contextmanager
def edit_journal(path: str | os.PathLike[str]) -> Iterator[JournalEditor]:
    """Open a journal for changes, as its one writer.

    Args:
      path: As for `open_journal`, but the journal must exist.

    Raises:
      JournalLockedError: if a batch is writing to it; the message names its process.
      JournalFormatError: if it is no journal, or a damaged one.
      JournalError: if it isn't there or can't be written to.
    """
    name = os.fspath(path)
    with suppress(OlderJournalError):  # Writing to it brings it to this version.
        open_for_reading(name).close()  # Opening for writing would create one.
    with closing(open_for_writing(name, this_process())) as backend:
        yield JournalEditor(backend)
