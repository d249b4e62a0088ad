"""``harness batch``: run an async function on every record of a file.

The order matters here: what can be wrong is looked at from the cheapest to the dearest, and the
output is created last, so that a command that is refused leaves nothing behind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractContextManager,
    chdir,
    closing,
    contextmanager,
    redirect_stdout,
)
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from harness.cli._agents import agent_in, check_agent, open_target
from harness.cli._batch_options import (
    input_options,
    journal_options,
    output_options,
    work_options,
)
from harness.cli._dry_run import RECORDS_SHOWN, describe
from harness.cli._errors import EXIT_OK, InputError
from harness.cli._files import STANDARD_STREAM, Input, check_output, open_input
from harness.cli._journal import check_journal, journal_for, known_in_words, totals_in
from harness.cli._keys import with_keys
from harness.cli._limits import check_limits, limiter_of
from harness.cli._lines import LineReader
from harness.cli._log import logging_to_stderr
from harness.cli._options import BatchOptions
from harness.cli._output import Output, unfinished_beside
from harness.cli._priorities import with_priorities
from harness.cli._progress import Display, open_display
from harness.cli._prompts import with_prompts
from harness.cli._records import Format, Record, format_of, parse_records
from harness.cli._result_lines import ResultLines
from harness.cli._run import Work, first_of, policy_named, run_batch
from harness.cli._selection import selected
from harness.cli._source import Reading, RecordReader, open_source
from harness.cli._summary import Report, summary_text, write_summary
from harness.cli._target import Target, load_target
from harness.cli._token_counts import tokens_of, with_token_counts
from harness.cli._writer import LineWriter
from harness.errors import JournalError

_HELD_BACK_BYTES = 16 * 1024 * 1024
"""Of a file, up to so much is read before any of it is started, if records have priorities."""

_HELP = """Run an async function on every record of a file, many at once.

TARGET is module:function or path.py:function. The function is called with one record: a dict for
CSV, the parsed value for JSONL, a str for plain lines. Or it is an agent, which is run with a
record's --prompt; its output is the value.

Each item becomes one line of the output when it ends, failed or not, with the fields key, index,
status, value, error, attempts and seconds.

\b
Examples:
  harness batch agent.py:triage --input tickets.csv --output results.jsonl
  harness batch app.agents:triage --input tickets.jsonl --key id --limit 50 \\
      --timeout 60 --retry 3 --output results.jsonl
  harness batch agent.py:triage --input tickets.csv --output out.jsonl --dry-run
  harness batch agent.py:triage --input tickets.csv --key id --journal run.db --output out.jsonl
  harness batch app.py:agent --input tickets.csv --prompt text --model openai:gpt-4o-mini \\
      --rpm 500 --output out.jsonl
  head -20 questions.txt | harness batch agent.py:answer --input - --output -

\b
Ctrl-C stops softly: nothing more is started, and what is in flight may finish
within --grace. A second Ctrl-C cancels that as well. With --journal the same
command goes on from there, with --resume; also after it was killed.

\b
Exit status: 0 if all items are ok, 1 if some are not, 2 for wrong usage or
bad input, 130 if interrupted.
"""


@click.command("batch", help=_HELP, short_help="Run a function on every record of a file.")
@input_options
@work_options
@journal_options
@output_options
def batch(**given: Any) -> int:
    """Run the command with what the command line says, and return the exit status."""
    return _run(BatchOptions(**given))


def _run(options: BatchOptions) -> int:
    form = options.format or _default_format(options.input_path)
    if options.key is not None and form == "lines":
        raise InputError(
            f"--key {options.key} names a field, and plain lines have none; leave it out, "
            "or say --format jsonl or csv"
        )
    if options.priority is not None:
        _check_priority(options, form)
    kept = check_journal(options)
    with open_input(options.input_path) as input_:
        _check_files(options, input_)
        reading = Reading(size_bytes=input_.size_bytes, at_most=options.first)
        read = partial(_records, options, form, input_, reading)
        stdout = sys.stdout
        with _stdout_kept_for_lines(options), logging_to_stderr(options.log_level):
            target = load_target(options.target)
            check_agent(options, form, target)
            is_agent = agent_in(target) is not None
            check_limits(options, form, counts_its_own=is_agent)
            if is_agent:
                read = partial(_prompts, read, options.prompt, input_.name)
            if options.dry_run:
                records = list(islice(read(lambda: None), RECORDS_SHOWN))
                known = known_in_words(options)
                click.echo(describe(options, form, reading, records, known=known))
                return EXIT_OK
            report = _run_into_output(
                options, form, target, read, reading, input_.name, stdout, kept=kept
            )
    return _finish(options, report)


def _prompts(
    read: RecordReader, field: str | None, source: str, before_read: Callable[[], None]
) -> Iterator[Record]:
    return with_prompts(read(before_read), field, source=source)


def _check_priority(options: BatchOptions, form: Format) -> None:
    if form == "lines":
        raise InputError(
            f"--priority {options.priority} names a field, and plain lines have none; leave it "
            "out, or say --format jsonl or csv"
        )
    if options.ordered:
        raise InputError(
            "--ordered and --priority don't go together: lines in the order of the input would "
            "wait for records that priorities put off; leave one of them out"
        )


def _default_format(path: str) -> Format:
    return "lines" if path == STANDARD_STREAM else format_of(path)


def _check_files(options: BatchOptions, input_: Input) -> None:
    # A resumed batch writes its own output anew; that is what it is asked for.
    replace = options.overwrite or options.resume
    check_output(options.output_path, input_, overwrite=replace, option="--output")
    unfinished = unfinished_beside(options.output_path) if options.resume else None
    if unfinished is not None:
        check_output(str(unfinished), input_, overwrite=True, option="--output until it is whole")
    if options.summary_path is None:
        return
    if options.summary_path == STANDARD_STREAM:
        raise InputError("--summary takes a file; in words the summary is on standard error anyway")
    check_output(options.summary_path, input_, overwrite=replace, option="--summary")
    if Path(options.summary_path).resolve() == Path(options.output_path).resolve():
        raise InputError(
            f"--summary and --output both name {options.summary_path!r}; give each its own file"
        )


@contextmanager
def _stdout_kept_for_lines(options: BatchOptions) -> Iterator[None]:
    """While lines go to standard output, send what the user's code prints to standard error."""
    if options.output_path == STANDARD_STREAM:
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield


def _records(
    options: BatchOptions,
    form: Format,
    input_: Input,
    reading: Reading,
    before_read: Callable[[], None],
) -> Iterator[Record]:
    """Read, choose and name records, and note in ``reading`` how far that is."""
    handed_over = 0

    def before_read_of_file() -> None:
        nonlocal handed_over
        if lines.bytes_read - handed_over >= _HELD_BACK_BYTES:
            handed_over = lines.bytes_read
            before_read()

    # A file's next read hardly waits, so there priorities can have more to choose from.
    holds_back = options.priority is not None and input_.size_bytes is not None
    lines = LineReader(input_.source, before_read_of_file if holds_back else before_read)
    records = parse_records(lines, form, source=input_.name)
    if not options.skip_bad:
        records = _stopping_at_bad(records, input_.name)
    records = selected(records, first=options.first, sample=options.sample, seed=options.seed)
    if options.sample is not None:
        drawn = list(records)  # A sample is a list in any case, and so its size can be told.
        reading.total, records = len(drawn), iter(drawn)
    if options.key is not None:
        records = with_keys(records, options.key, source=input_.name)
    if options.priority is not None:
        records = with_priorities(records, options.priority, source=input_.name)
    if isinstance(options.tokens, str):
        records = with_token_counts(records, options.tokens, source=input_.name)
    for record in records:
        reading.records += 1
        reading.bytes_read = lines.bytes_read
        yield record
    reading.total = reading.records


def _stopping_at_bad(records: Iterator[Record], source: str) -> Iterator[Record]:
    for record in records:
        if record.problem is not None:
            raise InputError(
                f"{source}, line {record.line}: {record.problem} "
                "(--skip-bad records it as a failed result and goes on)"
            )
        yield record


def _run_into_output(
    options: BatchOptions,
    form: Format,
    target: Target,
    read: RecordReader,
    reading: Reading,
    name: str,
    stdout: Any,
    *,
    kept: int,
) -> Report:
    work = Work(
        function=target,
        policy=policy_named(options.policy, skip_bad=options.skip_bad),
        limit=options.limit,
        timeout=options.timeout,
        attempts=options.retry,
        hedge=options.hedge,
        by_priority=options.priority is not None,
        limiter=limiter_of(options),
        reserves_itself=agent_in(target) is not None,
        # Only to warn by, and --quiet wants no warnings.
        tokens_per_minute=None if options.quiet else options.tpm,
        tokens=tokens_of if isinstance(options.tokens, str) else options.tokens,
        ordered=options.ordered,
        grace=options.grace,
        budget=options.budget,
    )
    output = Output(options.output_path, overwrite=options.overwrite, anew=options.resume)

    @contextmanager
    def open_lines() -> Iterator[tuple[ResultLines, LineWriter]]:
        # Once the journal is open: a second session of a batch, refused there, changes nothing.
        with output.open(stdout) as writer:
            first = not options.ordered
            lines = ResultLines(writer, kept=kept, kept_first=first, folder=output.folder)
            with closing(lines):
                yield lines, writer

    with open_display(quiet=options.quiet) as display:
        run = partial(_read_and_run, options, form, work, read, reading, name, open_lines, display)
        try:
            # An agent may change it, and the paths of the options are relative to it.
            with chdir("."):
                report = trio.run(run)
        except BaseExceptionGroup as group:
            interrupt = first_of(group, KeyboardInterrupt)
            if interrupt is None:
                raise
            raise interrupt from None
    report.output_is_complete = output.finish(complete=report.is_complete)
    return report


async def _read_and_run(
    options: BatchOptions,
    form: Format,
    work: Work,
    read: RecordReader,
    reading: Reading,
    name: str,
    open_lines: Callable[[], AbstractContextManager[tuple[ResultLines, LineWriter]]],
    display: Display,
) -> Report:
    report: Report | None = None
    try:
        async with journal_for(options, form) as journal:
            with open_lines() as (lines, writer):
                async with (
                    open_target(options, work.function, work.limiter) as function,
                    open_source(read, name=name) as source,
                ):
                    work = attrs.evolve(work, function=function, journal=journal)
                    report = await run_batch(work, source, reading, lines, display)
                if report.refused is not None:
                    raise InputError(report.refused)
                if report.exit_status != EXIT_OK:
                    writer.discard_if_empty()
    except JournalError as error:
        # Of its end. What comes before ends the batch, and stands in the report.
        if report is None:
            raise InputError(str(error)) from error
        report.journal_error = report.journal_error or str(error)
    return report


def _finish(options: BatchOptions, report: Report) -> int:
    if options.journal_path is not None and report.journal_error is None:
        report.totals = totals_in(options.journal_path)
    if not options.quiet:
        text = summary_text(report, output=options.output_path, journal=options.journal_shown)
        click.echo(text, err=True)
    for error in report.errors:
        click.echo(f"Error: {error}", err=True)
    if options.summary_path is not None:
        write_summary(
            report,
            options.summary_path,
            target=options.target,
            input=options.input_path,
            output=options.output_path,
            journal=options.journal_shown,
        )
    return report.exit_status
