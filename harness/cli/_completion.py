"""``harness completion``: the script that teaches a shell to complete our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "harness"
"""What the command is called."""

COMPLETE_VARIABLE = "_HARNESS_COMPLETE"
"""The environment variable by which the shell's script asks for completions."""

_HELP = """Print the script that lets SHELL complete commands, options and files.

\b
bash:  echo 'eval "$(harness completion bash)"' >> ~/.bashrc
zsh:   echo 'eval "$(harness completion zsh)"' >> ~/.zshrc
fish:  harness completion fish > ~/.config/fish/completions/harness.fish
"""


@click.command("completion", help=_HELP, short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script for ``shell``."""
    kind = get_completion_class(shell)
    assert kind is not None, "the argument's choices are click's shells"
    click.echo(kind(context.find_root().command, {}, PROGRAM, COMPLETE_VARIABLE).source())
