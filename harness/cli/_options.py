"""The options of ``harness batch``: their values, their checks and their help.

What can be refused without looking at a file is refused here, while the command line is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

import attrs
import click
from click.shell_completion import CompletionItem

from harness.cli._log import LEVELS
from harness.cli._records import Format
from harness.policies import Hedge

_CommandT = TypeVar("_CommandT", bound=Callable[..., Any])

PolicyName: TypeAlias = Literal["best-effort", "fail-fast"]
"""What a failed item does to the others."""


@attrs.frozen(kw_only=True)
class BatchOptions:
    """What the command line of one batch says."""

    target: str
    """The function, as ``module:function`` or ``path.py:function``."""

    input_path: str
    """Where records come from; ``-`` is standard input."""

    format: Format | None
    """How they are written; None: as the suffix says."""

    key: str | None
    """The field that names a record; None: records are counted."""

    skip_bad: bool
    """Whether a record that can't be read is a failed result instead of the end."""

    first: int | None
    """How many records to read; None: all."""

    sample: int | None
    """How many of those to draw; None: all."""

    seed: int
    """What `sample` draws with."""

    limit: int
    """How many items run at once."""

    priority: str | None
    """The field that says how urgent a record is; None: they start in the order of the input."""

    timeout: float | None
    """Seconds for each attempt; None: any."""

    retry: int
    """Attempts per item."""

    hedge: Hedge | None
    """When to start a second attempt beside one that is late; None: never."""

    rpm: int | None
    """Calls a minute; None: any."""

    tpm: int | None
    """Tokens a minute; None: any."""

    concurrent: int | None
    """Calls at once; None: any."""

    tokens: int | str | None
    """How many tokens each record uses, or the field that says so."""

    policy: PolicyName
    """What a failed item does to the others."""

    grace: float
    """Seconds for what is in flight, after Ctrl-C."""

    output_path: str
    """Where lines go; ``-`` is standard output."""

    overwrite: bool
    """Whether existing files are replaced."""

    ordered: bool
    """Whether lines come in the order of the input."""

    summary_path: str | None
    """Where the summary goes as JSON; None: nowhere."""

    quiet: bool
    """Whether only errors are shown."""

    log_level: str
    """Which log records are shown."""

    dry_run: bool
    """Whether to show what would run instead of running it."""


# Values ----------------------------------------------------------------------------------------

_Callback: TypeAlias = Callable[[click.Context, click.Parameter, Any], Any]


def _count(advice: str) -> _Callback:
    """Take a whole number from 1 upwards; an error ends with ``advice``."""

    def check(context: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
        if given is None:
            return None
        try:
            number = int(given)
        except ValueError:
            number = 0
        if number < 1:
            raise click.BadParameter(f"{given} is not a whole number from 1 upwards; {advice}")
        return number

    return check


def _seconds(advice: str, *, zero: bool) -> _Callback:
    """Take seconds, above 0 or from ``zero`` upwards; an error ends with ``advice``."""

    def check(
        context: click.Context, parameter: click.Parameter, given: str | None
    ) -> float | None:
        if given is None:
            return None
        try:
            seconds = float(given)
        except ValueError:
            seconds = math.nan
        if seconds > 0 or (zero and seconds == 0):
            return seconds
        allowed = "from 0 upwards" if zero else "above 0"
        raise click.BadParameter(f"{given} is not a number of seconds {allowed}; {advice}")

    return check


def _hedge(context: click.Context, parameter: click.Parameter, given: str | None) -> Hedge | None:
    """Take seconds after which an attempt is late, or a percentile such as p95."""
    if given is None:
        return None
    is_percentile = given[:1] in ("p", "P")
    try:
        number = float(given[1:] if is_percentile else given)
    except ValueError:
        number = math.nan
    if is_percentile and 0 < number < 100:
        return Hedge(percentile=number / 100)
    if not is_percentile and 0 < number < math.inf:
        return Hedge(after=number)
    raise click.BadParameter(
        f"{given} is neither a number of seconds above 0, such as 2.0, nor a percentile between "
        "p0 and p100, such as p95; leave it out for single attempts"
    )


def _tokens(
    context: click.Context, parameter: click.Parameter, given: str | None
) -> int | str | None:
    """Take a number of tokens, or the name of a field: what reads as a number is one."""
    if given is None:
        return None
    try:
        number = float(given)
    except ValueError:
        return given
    if not 1 <= number < math.inf or number != int(number):
        raise click.BadParameter(
            f"{given} is not a whole number from 1 upwards; say how many tokens a record uses, "
            "or name the field that does"
        )
    return int(number)


def _complete_files(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell complete names of files."""
    return [CompletionItem(incomplete, type="file")]


_FILE = click.Path(allow_dash=True)

# Options ---------------------------------------------------------------------------------------


def _together(*decorators: Callable[[Any], Any]) -> Callable[[_CommandT], _CommandT]:
    def decorate(command: _CommandT) -> _CommandT:
        for decorator in reversed(decorators):  # So that the help shows them in this order.
            command = decorator(command)
        return command

    return decorate


input_options = _together(
    click.argument("target", shell_complete=_complete_files),
    click.option(
        "--input",
        "input_path",
        required=True,
        type=_FILE,
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
        callback=_count("say how many records to read"),
        help="Read the first N records only.",
    ),
    click.option(
        "--sample",
        type=str,
        metavar="N",
        callback=_count("say how many records to draw"),
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
        callback=_count("say how many items may run at once"),
        default=100,
        show_default=True,
        help="Run at most N items at once.",
    ),
    click.option(
        "--timeout",
        type=str,
        metavar="SECONDS",
        callback=_seconds("leave it out if an attempt may take any time", zero=False),
        help="Give each attempt that long.",
    ),
    click.option(
        "--retry",
        type=str,
        metavar="N",
        callback=_count("1 is a single attempt without a retry"),
        default=1,
        show_default=True,
        help="Make at most N attempts per item, with growing delays between them.",
    ),
    click.option(
        "--hedge",
        type=str,
        metavar="SECONDS|pNN",
        callback=_hedge,
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
        callback=_count("say how many calls the provider allows in a minute"),
        help="Make at most N calls in any minute.",
    ),
    click.option(
        "--tpm",
        type=str,
        metavar="N",
        callback=_count("say how many tokens the provider allows in a minute"),
        help="Use at most N tokens in any minute. Needs --tokens.",
    ),
    click.option(
        "--tokens",
        type=str,
        metavar="N|FIELD",
        callback=_tokens,
        help="How many tokens a record uses, input and output: a number for all, or the field "
        "that holds it. Needs --tpm.",
    ),
    click.option(
        "--concurrent",
        type=str,
        metavar="N",
        callback=_count("say how many calls the provider allows at once"),
        help="Make at most N calls at once. Unlike --limit it doesn't hold back what waits for "
        "another limit or for a retry.",
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
        callback=_seconds("0 cancels at once", zero=True),
        default=30.0,
        show_default=True,
        help="After Ctrl-C, how long what is in flight may take to finish.",
    ),
)
"""How it is run."""

output_options = _together(
    click.option(
        "--output",
        "output_path",
        required=True,
        type=_FILE,
        metavar="FILE",
        help="Where the results are written, a JSON object per line; - is standard output.",
    ),
    click.option("--overwrite", is_flag=True, help="Replace files that are already there."),
    click.option(
        "--ordered",
        is_flag=True,
        help="Write in the order of the input. By default a line is written when its item ends. "
        "Not together with --priority.",
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
