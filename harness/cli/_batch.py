"""``harness batch``: run an async function on every record of a file.

The order matters here: the cheapest checks come first and the dearest last, and the output is
created after all of them, so that a command that is refused leaves nothing behind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    chdir,
    closing,
    contextmanager,
    nullcontext,
    redirect_stdout,
)
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from harness.cli._dry_run import RECORDS_SHOWN, describe
from harness.cli._errors import EXIT_OK, InputError
from harness.cli._exported import exported
from harness.cli._files import (
    STANDARD_STREAM,
    Input,
    check_output,
    open_input,
    refuse_one_file_twice,
)
from harness.cli._forecast import Terms, before, guess_tokens, in_words, terms_of, tokens_of
from harness.cli._journal import check_journal, journal_for, known_in_words, totals_in
from harness.cli._later import named
from harness.cli._limits import is_limited, limiter_of, open_limits, other_batch
from harness.cli._lines import LineReader
from harness.cli._log import logging_to_stderr
from harness.cli._looked_at import Recording, check_pages, looked_at, recorded
from harness.cli._option_table import Facts, fields_of, refuse
from harness.cli._options import BatchOptions
from harness.cli._output import Output, claimed, unfinished_beside
from harness.cli._progress import Display, open_display
from harness.cli._record_fields import PROMPT, RecordField, with_fields
from harness.cli._records import Record, parse_records
from harness.cli._result_line import with_input_text
from harness.cli._result_lines import ResultLines
from harness.cli._run import Work, first_of, policy_named, run_batch
from harness.cli._selection import selected
from harness.cli._source import Reading, RecordReader, open_source
from harness.cli._summary import Report, summary_text, trouble_text, write_summary
from harness.cli._target import Target, agent_in, check_values, load_target
from harness.cli._writer import LineWriter
from harness.errors import JournalError
from harness.fanout._watch import NOBODY, watched_by
from harness.observe._live import Live
from harness.policies import Attempt, Retry

_HELD_BACK_BYTES = 16 * 1024 * 1024
"""How much of a file is read at most before anything is started, if records have priorities."""


_OTHER_FORMS = frozenset((".csv", ".tsv", ".parquet", ".arrow", ".xlsx"))
"""What the name of a file may say that is written as JSON lines."""

_RECORDS_LOOKED_AT = 1_000
"""From how many records a dry run judges how many there are, and what they use."""

_RECORD = "harness.observe:record"


def run(options: BatchOptions) -> int:
    """Run the command as the command line says, and return the exit status."""
    if options.join:
        # Whoever joins later goes on with what is there.
        options = attrs.evolve(options, resume=True)
    refuse(options, Facts(form=options.form))
    given = options
    if options.join:
        options = attrs.evolve(options, output=os.devnull)
    kept = check_journal(options)
    with open_input(options.input) as input_:
        _check_files(options, input_)
        reading = Reading(size_bytes=input_.size_bytes, at_most=options.first)
        stdout = sys.stdout
        # While lines go there, what the user's code prints goes to standard error.
        printed = sys.stderr if options.output == STANDARD_STREAM else stdout
        # harness: shared (it is the process's own, and this command is the whole process)
        log = logging_to_stderr(options.log_level, kept=options.keep_logs)
        with redirect_stdout(printed), log:
            target = load_target(options.target)
            is_agent = agent_in(target) is not None
            if not is_agent:
                check_values(target, options.target)
            refuse(given, Facts(form=options.form, is_agent=is_agent))
            fields = fields_of(options)
            if is_agent and options.prompt is None:
                fields.append(RecordField(PROMPT, None))
            terms = terms_of(options, is_agent=is_agent)
            read = partial(_records, options, fields, input_, reading, guess_tokens(terms))
            if options.dry_run:
                # Of a pipe no more than is shown: the rest may take its time to come.
                most = RECORDS_SHOWN if input_.size_bytes is None else _RECORDS_LOOKED_AT
                records = list(islice(read(lambda: None), most))
                click.echo(
                    describe(
                        options,
                        reading,
                        records[:RECORDS_SHOWN],
                        known=known_in_words(options),
                        forecast=_forecast_before(terms, reading, kept),
                    )
                )
                return EXIT_OK
            with ExitStack() as until_the_end:
                recording = until_the_end.enter_context(recorded(options))
                report, write = _run_into_output(
                    options,
                    terms,
                    target,
                    read,
                    reading,
                    input_.name,
                    stdout,
                    until_the_end,
                    recording,
                    kept=kept,
                )
                status = _finish(options, report, write)
                return status if recording is None else recording.write(status)


def _forecast_before(terms: Terms, reading: Reading, kept: int) -> str | None:
    """Return the forecast of a batch that hasn't begun, in words."""
    expected = reading.expected()
    if expected is None:
        return None
    *_, found = before(terms, max(0, expected - kept), reading.tokens_each)
    return None if found is None else in_words(found, given=terms.within)


def _check_files(options: BatchOptions, input_: Input) -> None:
    # A resumed batch rewrites its own output; that is what it is asked for.
    replace = options.overwrite or options.resume
    check_output(options.output, input_, overwrite=replace, option="--output")
    if (suffix := Path(options.output).suffix.lower()) in _OTHER_FORMS:
        click.echo(
            f"{options.output} will have JSON lines in it, not what {suffix} says; for CSV or "
            "Parquet, keep a --journal and run harness journal export",
            err=True,
        )
    unfinished = unfinished_beside(options.output) if options.resume else None
    if unfinished is not None:
        check_output(str(unfinished), input_, overwrite=True, option="--output until it is whole")
    check_pages(options, input_, overwrite=replace)
    if options.trace is not None:
        if options.trace == STANDARD_STREAM:
            raise InputError("--trace takes a file, which is written while the batch runs")
        check_output(options.trace, input_, overwrite=replace, option="--trace")
    if options.summary is not None:
        if options.summary == STANDARD_STREAM:
            raise InputError(
                "--summary takes a file; in words the summary is on standard error anyway"
            )
        check_output(options.summary, input_, overwrite=replace, option="--summary")
    refuse_one_file_twice(
        {
            "--output": options.output,
            "--trace": options.trace,
            "--summary": options.summary,
            "--report": options.report,
        }
    )


def _records(
    options: BatchOptions,
    fields: Sequence[RecordField],
    input_: Input,
    reading: Reading,
    tokens: Callable[[Record], float],
    before_read: Callable[[], None],
) -> Iterator[Record]:
    """Read, choose and name records, and note the progress in ``reading``."""
    handed_over = 0

    def before_read_of_file() -> None:
        nonlocal handed_over
        if lines.bytes_read - handed_over >= _HELD_BACK_BYTES:
            handed_over = lines.bytes_read
            before_read()

    # Reading more of a file takes hardly any time, so priorities can have more to choose from.
    holds_back = options.priority is not None and input_.size_bytes is not None
    lines = LineReader(input_.source, before_read_of_file if holds_back else before_read)
    records = parse_records(
        lines,
        options.form,
        source=input_.name,
        delimiter=options.given_delimiter,
        tell=partial(setattr, reading, "delimiter"),
    )
    if not options.skip_bad:
        records = _stopping_at_bad(records, input_.name)
    records = selected(records, first=options.first, sample=options.sample, seed=options.seed)
    if options.sample is not None:
        drawn = list(records)  # A sample is a list anyway, and this way its size is known.
        reading.total, records = len(drawn), iter(drawn)
    if fields:
        records = with_fields(records, fields, source=input_.name)
    if options.file is not None:
        records = map(_with_file, records)
    if options.with_input:
        records = map(with_input_text, records)
    for record in records:
        reading.records += 1
        reading.bytes_read = lines.bytes_read
        reading.tokens += tokens(record)
        yield record
    reading.total = reading.records


def _with_file(record: Record) -> Record:
    """Return the record with its prompt and its file as what the agent is asked."""
    # As of now: the agent may change the current folder.
    file = [Path(record.file).absolute()] if record.file else []
    return attrs.evolve(record, value=[record.value, *file] if file else record.value)


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
    terms: Terms,
    target: Target,
    read: RecordReader,
    reading: Reading,
    name: str,
    stdout: Any,
    until_the_end: ExitStack,
    recording: Recording | None,
    *,
    kept: int,
) -> tuple[Report, Callable[[str], object]]:
    is_agent = agent_in(target) is not None
    if is_agent and is_limited(options) and _in_workers(options):
        limiter = named("harness.cli._workers:limiter_of_workers")(options, until_the_end)
    else:
        limiter = limiter_of(options)
    work = Work(
        function=target,
        policy=policy_named(
            options.policy, skip_bad=options.skip_bad, max_failures=options.max_failures
        ),
        terms=terms,
        limit=options.limit,
        attempt=Attempt(
            timeout=options.timeout,
            retry=Retry(options.retry),
            hedge=options.hedge,
            # An agent reserves for each call of its model.
            limiter=None if is_agent else limiter,
            tokens=tokens_of if isinstance(options.tokens, str) else options.tokens,
        ),
        by_priority=options.priority is not None,
        limiter=limiter,
        # Only used for warnings, and --quiet wants none.
        tokens_per_minute=None if options.quiet else options.tpm,
        ordered=options.ordered,
        tracebacks=options.traceback,
        grace=options.grace,
        budget=options.budget,
    )
    output = Output(options.output, overwrite=options.overwrite, anew=options.resume)
    write_summary: Callable[[str], object] = _say_nothing

    @contextmanager
    def open_lines() -> Iterator[tuple[ResultLines, LineWriter]]:
        # Called once the journal is open: that refuses a second session before anything changes.
        nonlocal write_summary
        if options.summary is not None:
            replaces = options.overwrite or options.resume
            # An agent may change the working directory.
            path = os.path.abspath(options.summary)
            write_summary = until_the_end.enter_context(
                claimed(path, replaces=replaces, stdout=stdout)
            )
        with output.open(stdout) as writer:
            first = not options.ordered
            lines = ResultLines(writer, kept_first=first, folder=output.folder)
            lines.expect(kept)
            with closing(lines):
                yield lines, writer

    with open_display(quiet=options.quiet) as display:
        run = partial(
            _read_and_run, options, work, read, reading, name, open_lines, display, recording
        )
        try:
            # An agent may change it, and the paths of the options are relative to it.
            with chdir("."), watched_by(NOBODY):
                report = trio.run(run)
        except BaseExceptionGroup as group:
            interrupt = first_of(group, KeyboardInterrupt)
            if interrupt is None:
                raise
            raise interrupt from None
    report.output_is_complete = output.finish(complete=report.is_complete)
    report.output_is_there = options.output == STANDARD_STREAM or Path(options.output).exists()
    return report, write_summary


async def _read_and_run(
    options: BatchOptions,
    work: Work,
    read: RecordReader,
    reading: Reading,
    name: str,
    open_lines: Callable[[], AbstractContextManager[tuple[ResultLines, LineWriter]]],
    display: Display,
    recording: Recording | None,
) -> Report:
    report: Report | None = None
    opened = nullcontext(work.function)
    tracing = nullcontext() if options.trace is None else named(_RECORD)(options.trace)
    if _in_workers(options):
        opened = named("harness.cli._workers:open_workers")(options, work.limiter)
    elif (agent := agent_in(work.function)) is not None:
        opened = named("harness.cli._agents:open_agent")(options, agent, work.limiter)
    try:
        say = display.say if not options.quiet else _say_nothing
        if work.limiter is not None and (other := other_batch(options)) is not None:
            say(f"warning: {other}")
        async with (
            tracing,
            exported(options, say),
            journal_for(options, work.function, say) as journal,
        ):
            with open_lines() as (lines, writer):
                live = Live(
                    program=f"harness batch {options.target}",
                    limiters=() if work.limiter is None else (work.limiter,),
                    expected=reading.expected,
                )
                async with (
                    open_limits(work.limiter),
                    opened as function,
                    open_source(read, name=name, is_fast=reading.size_bytes is not None) as source,
                    looked_at(live, options, display, recording),
                ):
                    if journal is not None and not options.join:
                        journal = attrs.evolve(journal, opened=lines.expect)
                    work = attrs.evolve(work, function=function, journal=journal)
                    report = await run_batch(work, source, reading, lines, display)
                if report.refused is not None:
                    raise InputError(report.refused)
                if report.exit_status != EXIT_OK:
                    writer.discard_if_empty()
    except JournalError as error:
        # On closing it. An earlier error ends the batch, and is in the report.
        if report is None:
            raise InputError(str(error)) from error
        report.journal_error = report.journal_error or str(error)
    return report


def _in_workers(options: BatchOptions) -> bool:
    return options.workers is not None or options.cluster is not None


def _say_nothing(words: str) -> None: ...


def _finish(options: BatchOptions, report: Report, write: Callable[[str], object]) -> int:
    if options.journal is not None and report.journal_error is None:
        report.totals = totals_in(options.journal)
    output = (options.journal_shown or "") if options.join else options.output
    if not options.quiet:
        text = summary_text(report, output=output, journal=options.journal_shown)
        click.echo(text, err=True)
    elif (trouble := trouble_text(report)) is not None:
        click.echo(f"Error: {trouble}", err=True)
    for error in report.errors:
        click.echo(f"Error: {error}", err=True)
    if options.summary is not None:
        write_summary(
            report,
            options.summary,
            write,
            target=options.target,
            input=options.input,
            output=output,
            journal=options.journal_shown,
        )
    return report.exit_status
