"""The ``harness`` program: its commands, and how errors become exit statuses."""

from __future__ import annotations

from collections.abc import Sequence

import click

from harness._version import __version__
from harness.cli._audit import audit
from harness.cli._batch import batch
from harness.cli._completion import COMPLETE_VARIABLE, PROGRAM, completion
from harness.cli._errors import EXIT_INTERRUPTED, EXIT_OK
from harness.cli._journal_command import journal
from harness.cli._sim_provider import sim_provider


@click.group(name=PROGRAM, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM)
def app() -> None:
    """Run many AI agents at once, and trust every result."""


app.add_command(audit)
app.add_command(batch)
app.add_command(completion)
app.add_command(journal)
app.add_command(sim_provider)


def run_app(arguments: Sequence[str] | None) -> int:
    """Run the program, and return its exit status."""
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
