"""The ``harness`` program: its commands, and how errors become exit statuses."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

import click
import rich  # noqa: F401  # No command runs without the whole extra, whether it needs rich or not.

from harness._version import __version__
from harness.cli._completion import COMPLETE_VARIABLE, PROGRAM, completion
from harness.cli._errors import EXIT_INTERRUPTED, EXIT_OK
from harness.cli._later import LaterCommand


@click.group(name=PROGRAM, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM)
def app() -> None:
    """Run many AI agents at once, and trust every result."""


for command in (
    LaterCommand("audit", "harness.cli._audit:audit", "Find state that outlives a run."),
    LaterCommand(
        "batch", "harness.cli._options:batch", "Run a function on every record of a file."
    ),
    completion,
    LaterCommand("diff", "harness.cli._diff:diff", "Compare two finished batches, item by item."),
    LaterCommand(
        "doctor",
        "harness.cli._doctor:doctor",
        "Say what is installed, what works here, and what a limiter or journal holds.",
    ),
    LaterCommand("dump", "harness.cli._top:dump", "Print the runs of a running program."),
    LaterCommand(
        "eval",
        "harness.cli._options:evaluation",
        "Score what a function returns on samples, with intervals.",
    ),
    LaterCommand(
        "ghostwrite",
        "harness.cli._ghostwrite:ghostwrite",
        "Write the test that proves or refutes a finding of the audit.",
    ),
    LaterCommand("init", "harness.cli._init:init", "Write a small project to start from."),
    LaterCommand(
        "journal",
        "harness.cli._journal_command:journal",
        "Look into a journal, or change what the next session does.",
    ),
    LaterCommand(
        "plan",
        "harness.cli._plan:plan_command",
        "Say how long a recorded batch would take with other numbers.",
    ),
    LaterCommand(
        "report",
        "harness.cli._report:report",
        "Show on one page what a trace or a journal has.",
    ),
    LaterCommand(
        "sim-provider",
        "harness.cli._sim_provider:sim_provider",
        "Simulate a provider, with limits and faults.",
    ),
    LaterCommand("top", "harness.cli._top:top", "Show what a running program is doing."),
    LaterCommand(
        "verify",
        "harness.cli._options:verify",
        "Run a sample of a finished batch again, each item alone.",
    ),
):
    app.add_command(command)


def run_app(arguments: Sequence[str] | None) -> int:
    """Run the program, and return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # As standard error does: a key or a record may have half of a surrogate pair.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # Not standalone: there an interrupt would end with status 1.
        status = app.main(
            args=None if arguments is None else list(arguments),
            prog_name=PROGRAM,
            complete_var=COMPLETE_VARIABLE,
            standalone_mode=False,
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    return status if isinstance(status, int) else EXIT_OK
