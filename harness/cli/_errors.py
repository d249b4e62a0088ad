"""How a command says that it was used wrongly, and ends with exit status 2."""

from __future__ import annotations

import click

EXIT_OK = 0
"""Every item ended ok."""

EXIT_FAILED = 1
"""The batch ran, and some items have no value."""

EXIT_USAGE = 2
"""The command was used wrongly, or its input can't be read."""

EXIT_WAITING = 3
"""Every item is ok, or waits for a person to approve calls of tools."""

EXIT_INTERRUPTED = 130
"""Ctrl-C or a termination signal ended the batch early."""


class InputError(click.ClickException):
    """Something that the user gave can't be used; the message says what to do instead."""

    exit_code = EXIT_USAGE
