"""``harness journal``: look into the journal of a batch, and change what the next session does.

``show``, ``export`` and ``backup`` only read, and work while a batch writes. The others are refused
then: they need to be the only writer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from time import localtime, strftime, time
from typing import Any, get_args

import click

from harness._approvals import Answer
from harness.cli._errors import EXIT_FAILED, EXIT_OK, EXIT_WAITING, InputError
from harness.cli._files import STANDARD_STREAM, check_not_written, open_output
from harness.cli._journal import refuse_journal_file, totals_in_words
from harness.cli._journal_item import show_said, write_files
from harness.cli._later import LaterCommand
from harness.cli._option_values import FILE
from harness.cli._recorded import batch_in, journal_errors_told, of_item
from harness.cli._shown import shown
from harness.cli._where import Where, where_of
from harness.journal import (
    BatchInfo,
    ExportForm,
    JournalItem,
    JournalReader,
    backup_journal,
    edit_journal,
    read_journal,
)

_FAILURES_SHOWN = 20
_VALUE_SHOWN = 300


@click.group("journal")
def journal() -> None:
    """Look into the journal of a batch, or change what the next session does.

    FILE is what --journal of harness batch was given, or a program's open_journal().
    """


_file = click.argument("file", type=click.Path())
_batch = click.option(
    "--batch", "batch_name", metavar="NAME", help="Only this batch; harness batch writes 'batch'."
)


_where = click.option(
    "--where",
    metavar="EXPR",
    help="Only items that EXPR holds for, such as 'status == \"timed_out\" and attempts > 2'.",
)


@journal.command("show")
@_file
@click.argument("key", required=False)
@_batch
@_where
@click.option(
    "--failures",
    is_flag=True,
    help="Also list all items that failed, and show where each error came from.",
)
@click.option(
    "--files",
    type=click.Path(),
    metavar="DIR",
    help="Write the files that item KEY kept into DIR; nothing there is overwritten.",
)
def show(
    file: str,
    key: str | None,
    batch_name: str | None,
    where: str | None,
    failures: bool,
    files: str | None,
) -> int:
    """Show what the batches in FILE came to, the items that --where chooses, or item KEY.

    Of KEY it shows what it came to, its stages that are done, its log records, notes and messages,
    and its files, as far as the program had them kept.

    Exit status: 0 if all items are ok, 1 if some are not, 2 for wrong usage, 3 if the others wait
    for approval. With --where: 0 if it holds for some items, 1 if for none.
    """
    chosen = where_of(where)
    if key is not None and chosen is not None:
        raise InputError("KEY and --where exclude each other; give one of them")
    if files is not None and key is None:
        raise InputError("--files writes the files of one item; give its KEY after FILE")
    with journal_errors_told(), read_journal(file) as reader:
        if key is not None:
            return _show_item(reader, batch_in(reader, batch_name), key, files)
        batches = reader.batches()
        if batch_name is not None:
            name = batch_in(reader, batch_name)
            batches = [batch for batch in batches if batch.name == name]
        if chosen is not None:
            return _show_chosen(reader, [batch.name for batch in batches], chosen, failures)
        if not batches:
            click.echo(f"{file} has no batches")
        status = EXIT_OK
        for batch in batches:
            totals = reader.totals(batch.name)
            click.echo("\n".join(_described(reader, batch)))
            failed = totals.failed + totals.timed_out
            if failed:
                _show_failures(reader, batch.name, most=None if failures else _FAILURES_SHOWN)
            _show_waiting(reader, batch.name)
            if failed or totals.open > totals.waiting:
                status = EXIT_FAILED
            elif totals.waiting and status == EXIT_OK:
                status = EXIT_WAITING
        return status


def _show_item(reader: JournalReader, batch: str, word: str, files: str | None) -> int:
    [key] = _keys_of(reader, batch, (word,))
    item = reader.item(batch, key)
    click.echo(_line_of(item))
    if item.error_traceback is not None:
        _show_traceback(item.error_traceback)
    show_said(reader, batch, key)
    if files is not None:
        write_files(reader, batch, key, files)
    return EXIT_OK if item.status == "ok" else EXIT_FAILED


def _show_chosen(reader: JournalReader, batches: list[str], where: Where, tracebacks: bool) -> int:
    """Show the items that an expression holds for, each as soon as it is found."""
    found = 0
    for batch in batches:
        for item in _chosen(reader, batch, where):
            found += 1
            label = f"{batch} " if len(batches) > 1 else ""
            click.echo(f"{label}{_line_of(item)}")
            if tracebacks and item.error_traceback is not None:
                _show_traceback(item.error_traceback)
    click.echo(f"{_items(found)}", err=True)
    return EXIT_OK if found else EXIT_FAILED


def _line_of(item: JournalItem) -> str:
    told = item.error or item.shown_value_text
    what = "" if told is None else f": {shown(told, most=_VALUE_SHOWN)}"
    attempts = "1 attempt" if item.attempts == 1 else f"{item.attempts:,} attempts"
    return f"{shown(str(item.key))}{what} ({item.status}, {attempts}, {item.seconds:.1f} s)"


def _chosen(reader: JournalReader, batch: str, where: Where | None) -> Iterator[JournalItem]:
    needs_input = where is not None and where.needs_input
    for item in reader.items(batch, details=needs_input):
        if where is None or where.matches(of_item(item).field):
            yield item


def _show_traceback(text: str) -> None:
    for line in text.splitlines():
        click.echo(f"    {shown(line)}")


def _described(reader: JournalReader, batch: BatchInfo) -> Iterator[str]:
    yield f"{batch.name}: {totals_in_words(reader.totals(batch.name))}"
    version = "" if batch.version is None else f", version {batch.version}"
    yield f"  runs     {batch.target}{version}"
    given = [
        f"{name} {_shortened(value)}" for name, value in batch.settings.items() if value is not None
    ]
    if given:
        yield f"  with     {', '.join(given)}"
    yield f"  begun    {_time(batch.created_at)}, last session {_time(batch.last_session_at)}"
    counts = reader.counts(batch.name)
    if counts.get("in_flight"):
        yield (
            f"  in flight {counts['in_flight']:,}: running now, or when the last session was killed"
        )


def _shortened(value: Any, *, most: int = 60) -> str:
    """Return a setting on one line; an agent's may be pages long."""
    line = " ".join(str(value).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _show_failures(reader: JournalReader, batch: str, *, most: int | None) -> None:
    for count, item in enumerate(reader.items(batch, statuses=("failed", "timed_out"))):
        if count == most:
            click.echo("  ... (--failures shows all)")
            return
        attempts = "1 attempt" if item.attempts == 1 else f"{item.attempts:,} attempts"
        error = " ".join((item.error or "").split())  # It may have several lines.
        click.echo(f"  {shown(str(item.key))}: {shown(error)} ({item.status}, {attempts})")
        if most is None and item.error_traceback is not None:
            _show_traceback(item.error_traceback)


def _show_waiting(reader: JournalReader, batch: str) -> None:
    """Show what a person has to decide, in full: nobody should approve half of the arguments."""
    for item in reader.waiting(batch):
        click.echo(f"  {item.key}: waiting for approval")
        for call in item.calls:
            click.echo(f"    {call}")


def _time(seconds: float) -> str:
    return strftime("%Y-%m-%d %H:%M:%S", localtime(seconds))


@journal.command("export", short_help="Write the items of a batch for other programs.")
@_file
@_batch
@_where
@click.option(
    "--format",
    "form",
    type=click.Choice(list(get_args(ExportForm))),
    help="A JSON object per line; CSV, with the value as JSON; Parquet or Arrow, which need the "
    "extra 'arrow'. By default what the name of the file says, else jsonl.",
)
@click.option(
    "--output",
    default=STANDARD_STREAM,
    type=FILE,
    metavar="FILE",
    help="Where it is written; by default to standard output.",
)
@click.option("--overwrite", is_flag=True, help="Replace a file that is already there.")
def export(
    file: str,
    batch_name: str | None,
    where: str | None,
    form: ExportForm | None,
    output: str,
    overwrite: bool,
) -> int:
    """Write the items of a batch in FILE, in the order in which they were first begun.

    Of each: what it was and what it came to, its error with type and traceback, attempts, times,
    tokens by kind, cost, run and model. The columns are the same for every batch.
    """
    if output != STANDARD_STREAM:
        refuse_journal_file(file, output, "--output")
    chosen = where_of(where)

    def matches(item: JournalItem) -> bool:
        return chosen is None or bool(chosen.matches(of_item(item).field))

    with journal_errors_told(), read_journal(file) as reader:
        batch = batch_in(reader, batch_name)
        try:
            if output == STANDARD_STREAM:
                stdout = open_output(output, overwrite=False, stdout=sys.stdout)
                reader.write_items(stdout, form or "jsonl", batch=batch, chosen=matches)
            else:
                if Path(output).exists():
                    if not overwrite:
                        raise FileExistsError
                    check_not_written(output)
                reader.export(
                    output,
                    batch=batch,
                    form=form,
                    chosen=matches,
                    overwrite=overwrite,
                )
        except FileExistsError:
            raise InputError(
                f"the file of --output, {output!r}, already exists; give another name, "
                "or --overwrite to replace it"
            ) from None
        except (ImportError, ValueError) as error:
            raise InputError(str(error)) from error
        except BrokenPipeError as error:
            raise InputError("the reader of the items is gone") from error
        except OSError as error:
            raise InputError(f"writing {output!r} failed: {error.strerror or error}") from error
    return EXIT_OK


@journal.command("retry", short_help="Have items tried again by the next session.")
@_file
@click.argument("keys", nargs=-1)
@click.option("--failed", is_flag=True, help="All items that failed or timed out.")
@_where
@_batch
def retry(
    file: str, keys: tuple[str, ...], failed: bool, where: str | None, batch_name: str | None
) -> int:
    """Have items of FILE tried again by the next session, as if they had never been.

    Give their KEYS, --failed or --where. What they cost before stays in the totals.
    """
    if bool(keys) + failed + (where is not None) != 1:
        raise InputError(
            "say which items: give their keys, --failed for all that failed, or --where EXPR"
        )
    chosen = where_of(where)
    with journal_errors_told(), edit_journal(file) as editor:
        batch = batch_in(editor, batch_name)
        count = editor.retry(batch, None if failed else _keys_of(editor, batch, keys, chosen))
    click.echo(f"{_items(count)} of {batch!r} will be tried again by the next --resume")
    return EXIT_OK


@journal.command("forget", short_help="Delete items, and all that is recorded of them.")
@_file
@click.argument("keys", nargs=-1)
@_where
@_batch
def forget(file: str, keys: tuple[str, ...], where: str | None, batch_name: str | None) -> int:
    """Delete items from FILE, and all that is recorded of them.

    Give their KEYS or --where, or --batch NAME alone for a whole batch. Their results are gone
    then, and what they cost too.
    """
    if keys and where is not None:
        raise InputError("the keys of items and --where exclude each other; give one of them")
    if not keys and where is None and batch_name is None:
        raise InputError(
            "say what to forget: the keys of items, --where EXPR, or --batch NAME for all of it"
        )
    chosen = where_of(where)
    with journal_errors_told(), edit_journal(file) as editor:
        batch = batch_in(editor, batch_name)
        some = bool(keys) or chosen is not None
        count = editor.forget(batch, _keys_of(editor, batch, keys, chosen) if some else None)
    click.echo(f"{_items(count)} of {batch!r} forgotten")
    return EXIT_OK


_KEY = click.argument("key")
_CALLS = click.option(
    "--call",
    "calls",
    multiple=True,
    metavar="ID",
    help="Only this call, by the ID that show gives; may be repeated.",
)
_ALL = click.option("--all", "all_calls", is_flag=True, help="All calls of the item that wait.")


@journal.command("approve", short_help="Let tool calls of an item be made by the next session.")
@_file
@_KEY
@_CALLS
@_ALL
@_batch
def approve(
    file: str, key: str, calls: tuple[str, ...], all_calls: bool, batch_name: str | None
) -> int:
    """Let the tool calls of item KEY in FILE that wait for approval be made.

    The next session makes them, and goes on where the item stopped. If several wait, give their
    IDs, or --all. An ID belongs to the arguments too: a call that has changed has another one.
    """
    return _answer(file, key, True, calls, all_calls, batch_name)


@journal.command("deny", short_help="Refuse tool calls of an item; the model is told.")
@_file
@_KEY
@_CALLS
@_ALL
@click.option("--reason", default="", metavar="TEXT", help="Why; the model is told.")
@_batch
def deny(
    file: str,
    key: str,
    calls: tuple[str, ...],
    all_calls: bool,
    reason: str,
    batch_name: str | None,
) -> int:
    """Refuse the tool calls of item KEY in FILE that wait for approval.

    The next session goes on where the item stopped. If several wait, give their IDs, or --all.
    """
    return _answer(file, key, reason, calls, all_calls, batch_name)


def _answer(
    file: str,
    key: str,
    answer: Answer,
    calls: tuple[str, ...],
    all_calls: bool,
    batch_name: str | None,
) -> int:
    if calls and all_calls:
        raise InputError("--call and --all exclude each other; give one of them")
    with journal_errors_told(), edit_journal(file) as editor:
        batch = batch_in(editor, batch_name)
        (own,) = _keys_of(editor, batch, (key,))
        waiting = [call for item in editor.waiting(batch) if item.key == own for call in item.calls]
        if len(waiting) > 1 and not calls and not all_calls:
            lines = "\n".join(f"  {call}" for call in waiting)
            raise InputError(
                f"{len(waiting)} calls of item {key!r} wait; say which, with --call ID, or --all:\n"
                f"{lines}"
            )
        for call in editor.answer(batch, own, answer, calls):
            click.echo(f"{'approved' if answer is True else 'denied'}: {call}")
    click.echo("the next --resume goes on with it")
    return EXIT_OK


@journal.command("backup")
@_file
@click.argument("dest", type=click.Path())
def backup(file: str, dest: str) -> int:
    """Copy FILE to DEST, which must not be there; also while a batch writes to it.

    The copy is of one moment, and complete in one file.
    """
    with journal_errors_told():
        size = backup_journal(file, dest)
    click.echo(f"{dest} has all of {file} ({size:,} bytes)")
    return EXIT_OK


@journal.command("vacuum")
@_file
@click.option(
    "--older-than",
    type=click.FloatRange(min=0, min_open=True),
    metavar="DAYS",
    help="First delete what ended longer ago, of all batches; their results are gone then.",
)
def vacuum(file: str, older_than: float | None) -> int:
    """Make FILE smaller, by the room of what was deleted."""
    with journal_errors_told(), edit_journal(file) as editor:
        if older_than is not None:
            count = editor.forget_before(time() - older_than * 86_400)
            click.echo(f"{_items(count)} forgotten")
        click.echo(f"{file} is {editor.vacuum():,} bytes smaller")
    return EXIT_OK


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count:,} items"


def _keys_of(
    reader: JournalReader, batch: str, words: tuple[str, ...], where: Where | None = None
) -> list[str | int]:
    """Return the keys that an expression chooses, or those meant by ``words``: digits are a text
    first, and a number if that is what the batch has."""
    if where is not None:
        return [item.key for item in _chosen(reader, batch, where)]
    keys: list[str | int] = []
    for word in words:
        number = _number(word)
        is_number = number is not None and not reader.has(batch, word) and reader.has(batch, number)
        keys.append(number if is_number and number is not None else word)
    return keys


def _number(word: str) -> int | None:
    try:
        return int(word)
    except ValueError:
        return None


journal.add_command(
    LaterCommand("watch", "harness.cli._watch:watch", "Show how a batch is doing, until it ends.")
)
