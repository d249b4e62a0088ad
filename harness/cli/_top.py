"""``harness top`` and ``harness dump``: look at a running batch, or at a program that allows it."""

from __future__ import annotations

import sys
import time
from typing import Any

import attrs
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harness._pace import clock, first_that_fits, forms
from harness.cli._errors import EXIT_OK, InputError
from harness.cli._option_table import argument, command, flag, option
from harness.cli._option_values import seconds
from harness.errors import NotObservableError
from harness.observe._socket import Connection, observable

NO_RUNS: dict[str, Any] = {"total": 0, "shown": []}


@attrs.frozen(kw_only=True)
class TopOptions:
    """Show what a running program is doing: fan-outs, limits, failures and the tree of runs.

    PID is the process: a batch, or a program inside harness.observe.open_socket(). If only one can
    be looked at, it can be left out. Ctrl-C ends it; the program goes on.
    """

    pid: str | None = argument("PID", required=False)
    every: float = option(
        "How often to look.",
        "SECONDS",
        read=seconds("say how often to look", zero=False),
        default="1.0",
    )
    once: bool = flag("Show it once, as text, and end.")


@attrs.frozen(kw_only=True)
class DumpOptions:
    """Print the tree of runs of a running program, with what each waits for, and the stacks.

    PID is the process: a batch, or a program inside harness.observe.open_socket(). If only one can
    be looked at, it can be left out.
    """

    pid: str | None = argument("PID", required=False)
    locals: bool = flag("Show what each RunLocal holds, too, shortened and without keys.")


def _top(options: TopOptions) -> int:
    console = Console()
    try:
        with Connection(_process(options.pid)) as connection:
            picture = connection.picture()
            if options.once or not console.is_terminal:
                console.print(drawn(picture, rows=None, width=console.width))
                return EXIT_OK
            follow(connection, picture, console, options.every)
    except NotObservableError as error:
        raise InputError(str(error)) from error
    return EXIT_OK


def follow(
    connection: Connection, picture: dict[str, Any], console: Console, every_seconds: float
) -> None:
    """Draw a program again and again, until it ends or Ctrl-C comes."""
    ended: NotObservableError | None = None
    with Live(console=console, auto_refresh=False, screen=True) as live:
        try:
            while True:
                live.update(drawn(picture, rows=console.height, width=console.width), refresh=True)
                time.sleep(every_seconds)
                picture = connection.picture()
        except KeyboardInterrupt:
            pass
        except NotObservableError as error:
            ended = error
    if ended is not None:  # What was drawn last went with the screen.
        console.print(drawn({**picture, "runs": NO_RUNS}, rows=None, width=console.width))
        console.print(Text(str(ended)))


def _dump(options: DumpOptions) -> int:
    try:
        with Connection(_process(options.pid)) as connection:
            sys.stdout.write(connection.dump(with_locals=options.locals))
    except NotObservableError as error:
        raise InputError(str(error)) from error
    return EXIT_OK


def _process(given: str | None) -> int:
    if given is not None:
        if not (given.isascii() and given.isdigit()):
            raise InputError(f"{given!r} is no process id; give a number, such as 4711")
        return int(given)
    found = observable()
    if not found:
        raise InputError(
            "no program can be looked at; harness batch can while it runs, and so can a program "
            "inside `async with harness.observe.open_socket():`"
        )
    if len(found) > 1:
        raise InputError(
            f"several programs can be looked at; say which: {', '.join(map(str, found))}"
        )
    return found[0]


# What is drawn ----------------------------------------------------------------------------------


def drawn(picture: dict[str, Any], *, rows: int | None, width: int) -> RenderableType:
    """Return a picture as something that rich can print.

    Args:
      picture: As `harness.observe._live.Live.picture` makes it.
      rows: How many lines there are; None for any number.
      width: How many columns there are.
    """
    lines: list[RenderableType] = [
        Text(f"{picture['program']} (process {picture['pid']})", style="bold"),
        *(Text(_fan_out_words(one, width)) for one in picture["fan_outs"]["shown"]),
        *map(Text, _left_out(picture)),
        Text(_queue_words(picture)),
        *(Text(_limit_words(one)) for one in picture["limits"]),
        *map(Text, _failure_words(picture["failures"])),
    ]
    shown, total = picture["runs"]["shown"], picture["runs"]["total"]
    if rows is not None:
        shown = shown[: max(1, rows - len(lines) - 2)]
    table = Table(box=None, pad_edge=False, expand=True, show_edge=False)
    table.add_column(f"run ({len(shown):,} of {total:,})", no_wrap=True, ratio=2)
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("waits for", no_wrap=True, ratio=3)
    for run in shown:
        name = f"{'  ' * min(run['depth'], 20)}{run['name']}"
        state = "" if run["state"] == "running" else f"{run['state']}, "
        table.add_row(Text(name), clock(run["seconds"]), Text(f"{state}{run['waits_for']}"))
    return Group(*lines, table)


def _fan_out_words(fan_out: dict[str, Any], width: int) -> str:
    name, total = fan_out["name"], fan_out["total"]
    shorter = forms(
        done=fan_out["done"],
        failed=fan_out["failed"],
        in_flight=fan_out["in_flight"],
        expected=None if total is None else f"{total:,}",
        per_second=fan_out["per_second"],
        seconds_left=fan_out["seconds_left"],
    )
    over = ", over" if fan_out["over"] else ""
    return first_that_fits(width, [f"{name}: {form}{over}" for form in shorter])


def _left_out(picture: dict[str, Any]) -> list[str]:
    shown, total = len(picture["fan_outs"]["shown"]), picture["fan_outs"]["total"]
    return [f"({shown:,} of {total:,} fan-outs)"] if shown < total else []


def _queue_words(picture: dict[str, Any]) -> str:
    queue = picture["queue"]
    return (
        f"queue: {queue['to_start']:,} to start, {queue['waiting_for_limits']:,} waiting for limits"
    )


def _limit_words(limits: dict[str, Any]) -> str:
    used = [f"{one['name']} {one['use']:.0%}" for one in limits["dimensions"]]
    if limits["concurrent"] is not None:
        used.append(f"{limits['in_flight']:,} of {limits['concurrent']:,} at once")
    if limits["paused_seconds"]:
        used.append(f"paused for {limits['paused_seconds']:.0f} s")
    used.append(f"{limits['waiting']:,} waiting")
    return f"limits of {limits['name']}: {', '.join(used)}"


def _failure_words(failures: dict[str, Any]) -> list[str]:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in failures["kinds"])
    examples = failures["examples"]
    count = f", {len(examples)} of them:" if len(examples) < failures["total"] else ""
    return [
        f"failures: {failures['total']:,}{f' ({kinds})' if kinds else ''}{count}",
        *(f"  {example}" for example in examples),
    ]


top = command("top", TopOptions, _top)
dump = command("dump", DumpOptions, _dump)
