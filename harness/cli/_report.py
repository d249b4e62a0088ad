"""``harness report``: make a page of a trace, or of a journal."""

from __future__ import annotations

import os

import attrs
import click

from harness.cli._errors import EXIT_OK, InputError
from harness.cli._later import named
from harness.cli._option_table import argument, command, flag, option
from harness.errors import JournalError


@attrs.frozen(kw_only=True)
class ReportOptions:
    """Show what happened, on one page: where the time went, all runs, failures and limits.

    TRACE is what harness.observe.record() wrote, or a journal, which knows less. The page needs no
    network and no server; open it in any browser.

    \b
    Examples:
      harness report trace.jsonl -o report.html
      harness report run.db -o report.html --overwrite
    """

    trace: str = argument()
    output: str = option("The page to write.", "FILE", type=click.Path(), required=True, short="-o")
    overwrite: bool = flag("Replace a file that is already there.")


def _report(options: ReportOptions) -> int:
    if os.path.lexists(options.output) and not options.overwrite:
        raise InputError(
            f"the file of --output, {options.output!r}, already exists; give another name, or "
            "--overwrite to replace it"
        )
    try:
        named("harness.observe:write_report")(options.trace, options.output)
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from error
    except (ValueError, JournalError) as error:
        raise InputError(str(error)) from error
    click.echo(f"wrote {options.output}", err=True)
    return EXIT_OK


report = command("report", ReportOptions, _report)
