"""The journal of a batch: whether it may be used, and how records are kept in it.

A batch that was begun is continued only on request (``--resume``): the same command typed again by
mistake must neither run everything twice nor replace one output with another.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from harness.cli._errors import InputError
from harness.cli._files import STANDARD_STREAM, same_file
from harness.cli._option_table import settings_of
from harness.cli._options import BatchOptions
from harness.cli._output import unfinished_beside
from harness.cli._records import Record
from harness.errors import (
    JournalError,
    JournalFormatError,
    JournalLockedError,
    JournalMismatchError,
    JournalMissingError,
)
from harness.fanout import Totals
from harness.journal import (
    IdentifiedJournal,
    ItemLogs,
    JournalReader,
    edit_journal,
    open_journal,
    read_journal,
)

_BESIDE = ("-wal", "-shm", "-journal", "-lock")
"""How the names of the files beside a journal end."""

SOURCE = "source"
"""The --code-version that means the source itself."""

BATCH = "batch"
"""What a batch from the command line is called in its journal."""


def check_journal(options: BatchOptions) -> int:
    """Refuse a journal that can't be used as the command line says, before anything runs.

    Returns:
      How many of its results are kept; 0 if that is known once the batch is open.

    Raises:
      InputError: if the journal is one of the other files, can't be read, or already has the batch
        and ``--resume`` isn't given.
    """
    path = options.journal
    if path is None:
        return 0
    if path in ("", STANDARD_STREAM):
        raise InputError(f"--journal takes a file, or a postgresql:// address, not {path!r}")
    for option, other in (
        ("--input", options.input),
        ("--output", options.output),
        ("--output", unfinished_beside(options.output)),
        ("--summary", options.summary),
        ("--trace", options.trace),
        ("--report", options.report),
    ):
        if other not in (None, STANDARD_STREAM):
            refuse_journal_file(path, str(other), option)
    if options.resume and not options.dry_run:
        _bring_up_to_date(path)
        if not options.join:
            return 0
    known = totals_in(path)
    if known is not None and known.items and not options.resume:
        raise InputError(
            f"the journal {options.journal_shown!r} already has {known.items:,} items of this "
            f"batch ({ended_in_words(known)}); add --resume to go on with it, or give another "
            "file"
        )
    if known is None:
        return 0
    return known.ok if options.retry_failed else known.ok + known.failed + known.timed_out


def _bring_up_to_date(path: str) -> None:
    """Bring a journal of an older version to this one, so that it can be read before the batch.

    Raises:
      InputError: if it can't be.
    """
    try:
        with suppress(JournalMissingError), read_journal(path):
            pass
    except JournalFormatError:
        try:
            with edit_journal(path):
                pass
        except JournalError as error:
            raise InputError(str(error)) from error
    except JournalError as error:
        raise InputError(str(error)) from error


def refuse_journal_file(journal: str, path: str, option: str) -> None:
    """Refuse to read records from a journal, or to write something else over it.

    Args:
      journal: The journal.
      path: What is to be read or written.
      option: The option that gave it.

    Raises:
      InputError: if ``path`` is the journal, or one of the files that belong to it.
    """
    if same_file(journal, path):
        raise InputError(f"{option} and --journal both name {journal!r}; give each its own file")
    for end in _BESIDE:
        if same_file(f"{journal}{end}", path):
            raise InputError(
                f"{option} names {path!r}, which belongs to the journal {journal!r}; give another "
                "file"
            )


def totals_in(path: str) -> Totals | None:
    """Return what the batch in a journal has come to so far; None if there is none.

    Raises:
      InputError: if the file isn't a journal, or can't be read.
    """
    try:
        with read_journal(path) as reader:
            return reader.totals(BATCH) if _has_batch(reader) else None
    except JournalMissingError:
        return None
    except JournalError as error:
        raise InputError(str(error)) from error


def timings_in(path: str | None) -> list[list[float | None]]:
    """Return what items of the batch in a journal took; empty if nobody knows.

    Raises:
      InputError: if the file isn't a journal, or can't be read.
    """
    if path is None:
        return []
    try:
        with read_journal(path) as reader:
            return reader.timings(BATCH) if _has_batch(reader) else []
    except JournalMissingError:
        return []
    except JournalError as error:
        raise InputError(str(error)) from error


def _has_batch(reader: JournalReader) -> bool:
    return any(batch.name == BATCH for batch in reader.batches())


def known_in_words(options: BatchOptions) -> str | None:
    """Return how the items of a batch's journal ended; None if there are none."""
    totals = None if options.journal is None else totals_in(options.journal)
    if totals is None or not totals.items:
        return None
    return f"{totals.items:,} items ({ended_in_words(totals)})"


def ended_in_words(totals: Totals) -> str:
    """Return how the items of a batch ended, in a few words."""
    parts = [f"{totals.ok:,} ok"]
    for count, word in (
        (totals.failed, "failed"),
        (totals.timed_out, "timed out"),
        (totals.waiting, "waiting for approval"),
        (totals.open - totals.waiting, "not done"),
    ):
        if count:
            parts.append(f"{count:,} {word}")
    return ", ".join(parts)


def totals_in_words(totals: Totals) -> str:
    """Return what a batch came to over all its sessions, in one line."""
    sessions = _count(totals.sessions, "session")
    attempts = totals.attempts + totals.cancelled_attempts + totals.lost_attempts
    parts = [f"{_count(totals.items, 'item')} ({ended_in_words(totals)})"]
    parts.append(_count(attempts, "attempt"))
    if totals.tokens:
        parts.append(f"{totals.tokens:,} tokens")
    if totals.cost_usd:
        parts.append(f"${totals.cost_usd:,.4f}")
    return f"{', '.join(parts)}, {totals.seconds:.1f} s in {sessions}"


def _count(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count:,} {what}s"


def target_of(options: BatchOptions) -> str:
    """Return the name of the target, the same from whichever folder it is run."""
    place, _, name = options.target.rpartition(":")
    return f"{os.path.basename(place) if place.endswith('.py') else place}:{name}"


@asynccontextmanager
async def journal_for(
    options: BatchOptions, function: Callable[..., Any], say: Callable[[str], None]
) -> AsyncIterator[IdentifiedJournal | None]:
    """Open the journal of a batch, if it has one, for the duration of a block.

    Args:
      options: What the command line says.
      function: The target; its source is compared.
      say: Told that the source has changed.

    Raises:
      InputError: if it can't be opened as the command line says.
    """
    if options.journal is None:
        yield None
        return
    settings = {**settings_of(options), "--format": options.form}
    by_source = options.code_version == SOURCE
    if by_source:
        del settings["--code-version"]
    try:
        async with open_journal(
            options.journal,
            version=SOURCE if by_source else None,
            max_attempts=options.max_attempts,
            retry_failed=options.retry_failed,
            force=options.force,
            join=options.join,
            lease=30.0 if options.lease is None else options.lease,
            logs=ItemLogs() if options.keep_logs else None,
            # What the function returned is JSON already: it is encoded once, by the batch.
            encode=str,
            decode=str,
        ) as journal:
            # The function that is called is the command's own, so it can't identify the batch.
            yield journal.identified(
                target=target_of(options),
                settings=settings,
                content=content_of,
                kept=_given,
                function=function,
                tell=lambda words: say(f"warning: {words}"),
            )
    except (JournalLockedError, JournalFormatError) as error:
        raise InputError(str(error)) from error


def refusal(error: JournalError) -> str | None:
    """Say why the journal isn't this batch's; None if it is, and failed."""
    if not isinstance(error, JournalMismatchError):
        return None
    words = str(error).partition(". Its results")[0]
    return (
        f"{words}; its results may not be what this batch would give. Give another file, or "
        "--force to go on and keep them"
    )


def _given(record: Record) -> Any:
    """Return what is kept of a record: all of it, although an agent got only its prompt."""
    return record.given


def content_of(record: Record) -> list[Any]:
    """Return what makes a record the same as before, wherever in the input it is now."""
    return [record.value, record.problem]
