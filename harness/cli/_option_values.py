"""Turn what is given for an option into its value, or refuse it in words a newcomer understands.

What can be refused without looking at a file is refused here, while the command line is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from urllib.parse import urlsplit

import click

from harness._words import masked
from harness.policies import Hedge

_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_DURATION = re.compile(f"(?:{_PART.pattern})+")

FILE = click.Path(allow_dash=True)
"""A file, or ``-`` for a standard stream."""


def count(advice: str) -> Callable[[str], int]:
    """Take a whole number from 1 upwards; an error ends with ``advice``."""

    def read(given: str) -> int:
        try:
            number = int(given)
        except ValueError:
            number = 0
        if number < 1:
            raise click.BadParameter(f"{given} is not a whole number from 1 upwards; {advice}")
        return number

    return read


def seconds(advice: str, *, zero: bool) -> Callable[[str], float]:
    """Take seconds above 0, or from 0 with ``zero``; an error ends with ``advice``."""

    def read(given: str) -> float:
        seconds = _number(given)
        if seconds > 0 or (zero and seconds == 0):
            return seconds
        allowed = "from 0 upwards" if zero else "above 0"
        raise click.BadParameter(f"{given} is not a number of seconds {allowed}; {advice}")

    return read


def duration(given: str) -> float:
    """Take a time above 0: seconds, or numbers with units, as in ``6h``, ``1h30m`` or ``45s``."""
    seconds = _number(given)
    if _DURATION.fullmatch(given):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(given))
    if 0 < seconds < math.inf:
        return seconds
    raise click.BadParameter(
        f"{given} is not a time above 0; write it with units, such as 6h, 90m or 1h30m, or as a "
        "number of seconds"
    )


def failures(given: str) -> int | float:
    """Take how many failures are acceptable: a count, or a share as in ``5%``."""
    number = _number(given.removesuffix("%"))
    if given.endswith("%") and 0 < number < 100:
        return number / 100
    if given.isdecimal():
        return int(given)
    raise click.BadParameter(
        f"{given} is neither a whole number from 0 upwards, such as 10, nor a share between 0 and "
        "100 percent, such as 5%"
    )


def dollars(given: str) -> float:
    """Take an amount of money above 0."""
    amount = _number(given.removeprefix("$"))
    if 0 < amount < math.inf:
        return amount
    raise click.BadParameter(
        f"{given} is not an amount above 0; say how many dollars the batch may cost, such as 2.50"
    )


def hedge(given: str) -> Hedge:
    """Take seconds after which an attempt is late, or a percentile such as p95."""
    is_percentile = given[:1] in ("p", "P")
    number = _number(given[1:] if is_percentile else given)
    if is_percentile and 0 < number < 100:
        return Hedge(percentile=number / 100)
    if not is_percentile and 0 < number < math.inf:
        return Hedge(after=number)
    raise click.BadParameter(
        f"{given} is neither a number of seconds above 0, such as 2.0, nor a percentile between "
        "p0 and p100, such as p95; leave it out for single attempts"
    )


def collector(given: str) -> str:
    """Take the URL of a server."""
    try:
        url = urlsplit(given)
        if url.scheme in ("http", "https") and url.hostname and url.port != 0:
            return given
    except ValueError:  # It has a port that is none.
        pass
    raise click.BadParameter(
        f"{masked(given)} is not the URL of a collector; give where it takes OTLP over HTTP, such "
        "as http://127.0.0.1:4318"
    )


def tokens(given: str) -> int | str:
    """Take a number of tokens, or the name of a field: anything that reads as a number is one."""
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


def delimiter(given: str) -> str:
    """Take the one character that separates the columns of CSV; a tab may be spelt out."""
    character = "\t" if given in ("tab", "\\t") else given
    if len(character) == 1 and character not in '"\r\n\0 ':
        return character
    raise click.BadParameter(
        f"{given!r} can't separate columns; give one character, such as ';', or tab"
    )


def _number(given: str) -> float:
    """Return what reads as a number, NaN for what doesn't."""
    try:
        return float(given)
    except ValueError:
        return math.nan
