"""Write the test that proves or refutes what the audit says of a function."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import click

from harness.cli._errors import EXIT_OK, InputError
from harness.cli._option_table import argument, command, flag, option
from harness.cli._target import load_named
from harness.testing import ghostwriting


@attrs.frozen(kw_only=True)
class GhostwriteOptions:
    """Write a test of a function: whether its calls know anything of each other.

    TARGET is MODULE:FUNCTION or PATH.py:FUNCTION, where a FUNCTION may be CLASS.METHOD. Its module
    is imported. Whether it is a program of trio, of asyncio or of threads is told from its code.
    For a CLASS it is a test of whether its objects do the right thing for several callers at once.

    The test is a plain function for pytest, which runs at once. Its inputs are guessed from the
    annotations; what can't be guessed is a TODO in it.

    \b
    Examples:
      harness ghostwrite desk:answer
      harness ghostwrite desk:Desk.answer --output test_desk.py
      harness ghostwrite desk:Cache

    Exit status: 0 written, 2 wrong usage.
    """

    target: str = argument("TARGET")
    output: str | None = option("The file to write; by default it is printed.", "FILE")
    overwrite: bool = flag("Replace FILE if it is there.")


def _run(options: GhostwriteOptions) -> int:
    value, module, name = load_named(options.target, "the target")
    try:
        text = ghostwriting.ghostwrite(value, module, name)
    except (TypeError, ImportError) as error:
        raise InputError(str(error)) from error
    if options.output is None:
        click.echo(text, nl=False)
        return EXIT_OK
    if os.path.exists(options.output) and not options.overwrite:
        raise InputError(
            f"{options.output} is there already; name another file, or give --overwrite"
        )
    try:
        Path(options.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--output {options.output!r} can't be written ({error})") from error
    return EXIT_OK


ghostwrite = command("ghostwrite", GhostwriteOptions, _run)
