"""Turn what stands behind an option into its value, or refuse it in the newcomer's words.

What can be refused without looking at a file is refused here, while the command line is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import click
from click.shell_completion import CompletionItem

from harness.policies import Hedge

_Callback: TypeAlias = Callable[[click.Context, click.Parameter, Any], Any]


def count(advice: str) -> _Callback:
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


def seconds(advice: str, *, zero: bool) -> _Callback:
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


def dollars(context: click.Context, parameter: click.Parameter, given: str | None) -> float | None:
    """Take an amount of money above 0."""
    if given is None:
        return None
    try:
        amount = float(given.removeprefix("$"))
    except ValueError:
        amount = math.nan
    if 0 < amount < math.inf:
        return amount
    raise click.BadParameter(
        f"{given} is not an amount above 0; say how many dollars the batch may cost, such as 2.50"
    )


def hedge(context: click.Context, parameter: click.Parameter, given: str | None) -> Hedge | None:
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


def tokens(
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


def complete_files(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell complete names of files."""
    return [CompletionItem(incomplete, type="file")]


FILE = click.Path(allow_dash=True)
"""A file, or ``-`` for a standard stream."""
