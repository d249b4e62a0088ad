"""The options of ``harness batch`` with their help, in the order in which the help shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from harness.cli._log import LEVELS
from harness.cli._option_values import (
    FILE,
    complete_files,
    count,
    dollars,
    hedge,
    seconds,
    tokens,
)

_CommandT = TypeVar("_CommandT", bound=Callable[..., Any])


def _together(*decorators: Callable[[Any], Any]) -> Callable[[_CommandT], _CommandT]:
    def decorate(command: _CommandT) -> _CommandT:
        for decorator in reversed(decorators):  # So that the help shows them in this order.
            command = decorator(command)
        return command

    return decorate


input_options = _together(
    click.argument("target", shell_complete=complete_files),
    click.option(
        "--input",
        "input_path",
        required=True,
        type=FILE,
        metavar="FILE",
        help="Where the records are read from; - is standard input.",
    ),
    click.option(
        "--format",
        type=click.Choice(["jsonl", "csv", "lines"]),
        help="Format of the input: a JSON value per line, CSV with a first row of names, or plain "
        "lines. By default the suffix decides (.jsonl, .ndjson, .csv, else lines).",
    ),
    click.option(
        "--key",
        metavar="FIELD",
        help="The field that names a record; each value may be there once. By default records "
        "are counted, from 0.",
    ),
    click.option(
        "--skip-bad",
        is_flag=True,
        help="Write a record that can't be read as a failed result, instead of stopping at it. A "
        "key that is missing or there twice always ends the batch.",
    ),
    click.option(
        "--first",
        type=str,
        metavar="N",
        callback=count("say how many records to read"),
        help="Read the first N records only.",
    ),
    click.option(
        "--sample",
        type=str,
        metavar="N",
        callback=count("say how many records to draw"),
        help="Run N records drawn at random from those read. All of them are read first.",
    ),
    click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        help="Another seed draws another sample; the same seed draws the same one.",
    ),
)
"""What is read."""

work_options = _together(
    click.option(
        "--limit",
        type=str,
        metavar="N",
        callback=count("say how many items may run at once"),
        default=100,
        show_default=True,
        help="Run at most N items at once.",
    ),
    click.option(
        "--prompt",
        metavar="FIELD",
        help="For an agent: the field that holds the prompt. Plain lines and JSON strings are "
        "prompts themselves.",
    ),
    click.option(
        "--model",
        metavar="MODEL",
        help="For an agent: the model to run it with, in place of its own: openai:NAME, "
        "anthropic:NAME, local:PATH of a GGUF file, or sim, which is simulated and costs nothing. "
        "Keys come from the environment (OPENAI_API_KEY, ANTHROPIC_API_KEY).",
    ),
    click.option(
        "--timeout",
        type=str,
        metavar="SECONDS",
        callback=seconds("leave it out if an attempt may take any time", zero=False),
        help="Give each attempt that long.",
    ),
    click.option(
        "--retry",
        type=str,
        metavar="N",
        callback=count("1 is a single attempt without a retry"),
        default=1,
        show_default=True,
        help="Make at most N attempts per item, with growing delays between them.",
    ),
    click.option(
        "--hedge",
        type=str,
        metavar="SECONDS|pNN",
        callback=hedge,
        help="Start a second attempt beside one that takes longer than that, and take the answer "
        "that comes first; p95 is longer than 95 % of the attempts before. A second attempt is "
        "made for one item in ten at most.",
    ),
    click.option(
        "--priority",
        metavar="FIELD",
        help="Start the records with the largest number in this field first, among the 100 that "
        "are read ahead. None is overtaken by more than 100 others. By default they start in the "
        "order of the input.",
    ),
    click.option(
        "--rpm",
        type=str,
        metavar="N",
        callback=count("say how many calls the provider allows in a minute"),
        help="Make at most N calls in any minute.",
    ),
    click.option(
        "--tpm",
        type=str,
        metavar="N",
        callback=count("say how many tokens the provider allows in a minute"),
        help="Use at most N tokens in any minute. Needs --tokens, unless the target is an agent, "
        "which counts its own.",
    ),
    click.option(
        "--tokens",
        type=str,
        metavar="N|FIELD",
        callback=tokens,
        help="How many tokens a record uses, input and output: a number for all, or the field "
        "that holds it. Needs --tpm.",
    ),
    click.option(
        "--concurrent",
        type=str,
        metavar="N",
        callback=count("say how many calls the provider allows at once"),
        help="Make at most N calls at once. Unlike --limit it doesn't hold back what waits for "
        "another limit or for a retry.",
    ),
    click.option(
        "--budget-tokens",
        type=str,
        metavar="N",
        callback=count("say how many tokens the batch may use in all"),
        help="Use at most N tokens in all, former sessions of a journal included. Counts what "
        "models and harness.budgets.reserve_budget() report.",
    ),
    click.option(
        "--budget-usd",
        type=str,
        metavar="X",
        callback=dollars,
        help="Cost at most X dollars in all, counted in the same way. Needs models with a price.",
    ),
    click.option(
        "--policy",
        type=click.Choice(["best-effort", "fail-fast"]),
        default="best-effort",
        show_default=True,
        help="After a failed item go on with the others, or stop.",
    ),
    click.option(
        "--grace",
        type=str,
        metavar="SECONDS",
        callback=seconds("0 cancels at once", zero=True),
        default=30.0,
        show_default=True,
        help="After Ctrl-C, how long what is in flight may take to finish.",
    ),
)
"""How it is run."""

journal_options = _together(
    click.option(
        "--journal",
        "journal_path",
        type=click.Path(),
        metavar="FILE",
        help="Record there what is done, so that the batch can be resumed after it was interrupted "
        "or killed. Records are known again by their --key. A postgresql:// address works too.",
    ),
    click.option(
        "--resume",
        is_flag=True,
        help="Go on with what the journal has: what is done isn't run again. The output is written "
        "anew, what the journal has first, and replaced when the batch is over.",
    ),
    click.option(
        "--retry-failed",
        is_flag=True,
        help="When resuming, try again what failed or timed out. By default that is kept.",
    ),
    click.option(
        "--max-attempts",
        type=str,
        metavar="N",
        callback=count("say after how many attempts an item is set aside"),
        help="Set an item aside as failed after N attempts over all sessions, those that ended the "
        "process counted too. By default it is tried in every session.",
    ),
    click.option(
        "--code-version",
        type=str,
        metavar="TEXT",
        help="Record with the journal what the code is called, such as 2026-11 or a commit. It is "
        "refused to go on with another one, as what has changed in a function or in a prompt "
        "can't be seen from outside.",
    ),
    click.option(
        "--force",
        is_flag=True,
        help="Go on with a journal although the target or the settings have changed since.",
    ),
)
"""What is remembered."""

output_options = _together(
    click.option(
        "--output",
        "output_path",
        required=True,
        type=FILE,
        metavar="FILE",
        help="Where the results are written, a JSON object per line; - is standard output.",
    ),
    click.option("--overwrite", is_flag=True, help="Replace files that are already there."),
    click.option(
        "--ordered",
        is_flag=True,
        help="Write in the order of the input, when resuming too. By default a line is written "
        "when its item ends. Not together with --priority.",
    ),
    click.option(
        "--summary",
        "summary_path",
        type=click.Path(),
        metavar="FILE",
        help="Also write the summary there, as JSON.",
    ),
    click.option("--quiet", is_flag=True, help="Show neither progress nor summary, only errors."),
    click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        default="warning",
        show_default=True,
        help="Show log records of this level and above, each with its run.",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Check everything, show what would run and the first records, and run nothing.",
    ),
)
"""What is written and shown."""
