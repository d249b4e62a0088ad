"""``harness journal watch``: show from another terminal how a batch is doing.

It only reads, so it neither delays the batch nor has to be trusted with it. A look takes the longer
the more items there are; it waits ten times as long before the next one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness._pace import clock, forms
from harness.cli._errors import EXIT_FAILED, EXIT_OK
from harness.cli._recorded import batch_in, journal_errors_told
from harness.cli._shown import shown
from harness.journal import BatchProgress, BatchState, read_journal

_TERMINAL_SECONDS = 1.0
_LINES_SECONDS = 30.0
_LOOKS_COST_AT_MOST = 0.1
"""Which part of the time looking may take."""

_KINDS_SHOWN = 5
_KEY_SHOWN = 60

_UNDER_WAY: tuple[BatchState, ...] = ("running", "paused")

_STATES: dict[BatchState, str] = {
    "running": "running",
    "paused": "paused: its process is suspended, as by Ctrl-Z",
    "stopped": "stopped with items left to do; --resume goes on with it",
    "dead": "dead: its process was killed; --resume goes on with it",
    "ended": "ended",
}

Show = Callable[[list[str]], None]


@click.command("watch")
@click.argument("file", type=click.Path())
@click.option(
    "--batch",
    "batch_name",
    metavar="NAME",
    help="Watch this batch; by default the one that was opened last.",
)
@click.option("--once", is_flag=True, help="Look once, and end.")
@click.option(
    "--items",
    "expected",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many items there will be, to say how much time is left; harness batch leaves a "
    "note of it in FILE.",
)
def watch(file: str, batch_name: str | None, once: bool, expected: int | None) -> int:
    """Show how the batch in FILE is doing, until it ends; from another terminal.

    FILE is only read. It says whether the batch is running, paused, stopped or dead; how many items
    have ended, how fast, and what is in flight since when; the failures by kind; and what it has
    cost so far.

    Exit status: 0 if it is under way, or all items are ok; 1 if it has ended otherwise.
    """
    with journal_errors_told(), read_journal(file) as reader:
        name = None if batch_name is None else batch_in(reader, batch_name)

        def look() -> BatchProgress:
            return reader.progress(name)

        if once:
            found = look()
            click.echo("\n".join(lines(found, expected)))
        else:
            with _display() as (show, seconds):
                found = follow(look, show, seconds=seconds, expected=expected, sleep=time.sleep)
    if found.state in _UNDER_WAY:
        return EXIT_OK
    return EXIT_OK if found.state == "ended" and not found.failed else EXIT_FAILED


def follow(
    look: Callable[[], BatchProgress],
    show: Show,
    *,
    seconds: float,
    expected: int | None,
    sleep: Callable[[float], None],
) -> BatchProgress:
    """Show how a batch is doing until it is under way no more, and return how it was then."""
    while True:
        begun = time.monotonic()
        found = look()
        took = time.monotonic() - begun
        show(lines(found, expected))
        if found.state not in _UNDER_WAY:
            return found
        sleep(max(seconds, took / _LOOKS_COST_AT_MOST))


@contextmanager
def _display() -> Iterator[tuple[Show, float]]:
    """Yield what shows the lines, and how often: in place on a terminal, else one below another."""
    console = Console()
    if not (sys.stdout.isatty() and console.is_interactive):
        yield lambda told: click.echo("; ".join(told)), _LINES_SECONDS
        return
    with Live(console=console, auto_refresh=False) as live:

        def show(told: list[str]) -> None:
            # Text, since keys and errors aren't markup.
            live.update(Text("\n".join(told)), refresh=True)

        yield show, _TERMINAL_SECONDS


def lines(found: BatchProgress, expected: int | None) -> list[str]:
    """Return how a batch is doing, in lines; ``expected`` items, or as many as it says."""
    expected = found.expected if expected is None else expected
    by = "" if found.writer is None else f" ({shown(found.writer)})"
    told = [f"{shown(found.name)}: {_STATES[found.state]}{by}"]
    told.append(_pace(found, expected))
    if found.limits is not None:
        told.append(shown(found.limits))
    if found.forecast is not None:
        told.append(f"forecast: {shown(found.forecast)}")
    if found.failures:
        kinds = [f"{count:,} {shown(kind)}" for kind, count in found.failures.items()]
        more = ["..."] if len(kinds) > _KINDS_SHOWN else []
        told.append(f"failures: {', '.join(kinds[:_KINDS_SHOWN] + more)}")
    if found.oldest:
        since = [
            f"{shown(str(key), most=_KEY_SHOWN)} {clock(found.at - begun_at)}"
            for key, begun_at in found.oldest
        ]
        words = "in flight longest" if found.state in _UNDER_WAY else "was in flight, begun ago"
        told.append(f"{words}: {', '.join(since)}")
    cost = [f"{found.attempts:,} attempts"]
    if found.tokens:
        cost.append(f"{found.tokens:,} tokens")
    if found.cost_usd:
        cost.append(f"${found.cost_usd:,.4f}")
    told.append(f"so far: {', '.join(cost)}{_last_record(found)}")
    return told


def _pace(found: BatchProgress, expected: int | None) -> str:
    left = None
    if expected is not None and found.per_second and found.state == "running":
        left = max(0, expected - found.done) / found.per_second
    return forms(
        done=found.done,
        failed=found.failed,
        in_flight=found.in_flight,
        expected=None if expected is None else f"{expected:,}",
        per_second=found.per_second,
        seconds_left=left,
    )[0]


def _last_record(found: BatchProgress) -> str:
    if found.last_record_at is None:
        return ""
    return f"; last record {clock(max(0.0, found.at - found.last_record_at))} ago"
