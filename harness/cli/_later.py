"""Import a command, or what it runs, when it is used.

``harness --help`` and shell completion must answer at once, and what a batch needs takes longer to
import than both. So listing the commands yields stand-ins that know only a name and a line of help.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click


def named(place: str) -> Any:
    """Return what ``place`` names, as ``module:name``."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


class LaterCommand(click.Command):
    """A stand-in for a command that is imported once its own arguments are read."""

    def __init__(self, name: str, place: str, short_help: str) -> None:
        """Stand for the command at ``place``, as ``module:name``."""
        super().__init__(name, short_help=short_help)
        self._place = place

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Read the arguments with the command itself, which the context then belongs to."""
        command: click.Command = named(self._place)
        return command.make_context(info_name, args, parent, **extra)
