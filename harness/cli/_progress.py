"""Say on standard error how far a batch has come: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs
import click
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from harness._pace import Pace, first_that_fits, forms
from harness.cli._limits import now_forms, now_text
from harness.cli._source import Reading
from harness.cli._tally import Tally
from harness.limits import Limiter, LimiterStatistics

_BAR_INTERVAL_SECONDS = 0.25
_FIRST_LINE_SECONDS = 1.0
_MAX_LINE_INTERVAL_SECONDS = 30.0
_BAR_COLUMNS = 11
"""The width that the words leave to the bar, unless the terminal is too narrow for both."""


@attrs.frozen(kw_only=True)
class Progressed:
    """How far a batch has come, at one moment."""

    done: int
    """Items that have ended."""

    failed: int
    """Those of them that failed or timed out."""

    in_flight: int
    """Calls that are running."""

    expected: int | None
    """How many items there will be; None if unknown."""

    certain: bool
    """Whether `expected` is counted and not extrapolated."""

    per_second: float
    """How many items ended per second recently."""

    kept_to_come: int = 0
    """Items still to come whose results the journal has: they take no time."""

    limits: LimiterStatistics | None = None
    """The state of the limits, if there are any."""

    forecast: str | None = None
    """When it will be over, in words, if that can be told."""

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this pace; None if that is unknown."""
        if self.expected is None or not self.per_second:
            return None
        return max(0, self.expected - self.done - self.kept_to_come) / self.per_second

    def __str__(self) -> str:
        limits = "" if self.limits is None else f"; {now_text(self.limits)}"
        forecast = "" if self.forecast is None else f"; forecast: {self.forecast}"
        return f"{self._forms()[0]}{limits}{forecast}"

    def lines(self, width: int) -> list[str]:
        """Return as much of it as fits into lines of at most ``width`` characters."""
        lines = [first_that_fits(width, self._forms())]
        if self.limits is not None:
            lines.append(first_that_fits(width, now_forms(self.limits)))
        if self.forecast is not None:
            forms = [f"forecast: {self.forecast}", self.forecast, self.forecast.partition(":")[0]]
            lines.append(first_that_fits(width, [*forms, self.forecast.partition(" needed")[0]]))
        return lines

    def _forms(self) -> list[str]:
        """Return all of it in words, in ever shorter forms."""
        certainly = "" if self.certain else "~"
        return forms(
            done=self.done,
            failed=self.failed,
            in_flight=self.in_flight,
            expected=None if self.expected is None else f"{certainly}{self.expected:,}",
            per_second=self.per_second,
            seconds_left=self.seconds_left,
        )


class Display(Protocol):
    """Where progress is shown."""

    def show(self, progressed: Progressed) -> None:
        """Show how far the batch has come."""
        ...

    def say(self, text: str) -> None:
        """Say something that stays."""
        ...

    def intervals(self) -> Iterator[float]:
        """Yield the seconds to wait each time before progress is shown."""
        ...


@contextmanager
def open_display(*, quiet: bool) -> Iterator[Display]:
    """Show progress as standard error allows: a bar, lines, or, if ``quiet``, not at all."""
    console = Console(file=sys.stderr)
    if quiet:
        yield _Quiet()
    elif sys.stderr.isatty() and console.is_interactive:
        with _progress_bar(console) as progress:
            yield _Bar(progress)
    else:
        yield _Lines()


async def show_progress(
    display: Display,
    tally: Tally,
    reading: Reading,
    *,
    clock: Callable[[], float],
    kept_to_come: Callable[[], int] = lambda: 0,
    limiter: Limiter | None = None,
    forecast: Callable[[], str | None] = lambda: None,
) -> None:
    """Show progress until cancelled.

    Checkpoint: always.

    Cancellation: leaves the display as it was shown last.
    """
    pace = Pace()
    pace.per_second(clock(), 0)
    for seconds in display.intervals():
        await trio.sleep(seconds)
        display.show(
            Progressed(
                done=tally.done,
                failed=tally.without_success,
                in_flight=tally.running,
                expected=reading.expected(),
                certain=reading.total is not None,
                per_second=pace.per_second(clock(), tally.done_now),
                kept_to_come=max(0, kept_to_come()),
                limits=None if limiter is None else limiter.statistics(),
                forecast=forecast(),
            )
        )


class _Quiet:
    """No progress; answers to a key press are shown all the same."""

    def show(self, progressed: Progressed) -> None:
        pass

    def say(self, text: str) -> None:
        click.echo(text, err=True)

    def intervals(self) -> Iterator[float]:
        return iter(())


class _Lines:
    """A line now and then: soon for a short batch, seldom for a long one, as suits a log."""

    def show(self, progressed: Progressed) -> None:
        self.say(str(progressed))

    def say(self, text: str) -> None:
        click.echo(text, err=True)

    def intervals(self) -> Iterator[float]:
        seconds = _FIRST_LINE_SECONDS
        while True:
            yield seconds
            seconds = min(2 * seconds, _MAX_LINE_INTERVAL_SECONDS)


def _progress_bar(console: Console) -> Progress:
    return Progress(
        # The bar takes what the words leave, so a narrow terminal loses bar but no words.
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        TextColumn("{task.description}", markup=False),
        console=console,
        expand=True,
        # The display's own task refreshes it: a second thread would draw while nothing changes.
        auto_refresh=False,
        transient=True,
        # What a function prints goes above the bar, unless it goes elsewhere anyway.
        redirect_stdout=sys.stdout.isatty(),
    )


class _Bar:
    """A bar at the bottom of a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None)

    def show(self, progressed: Progressed) -> None:
        self._progress.update(
            self._task,
            completed=progressed.done,
            total=progressed.expected,
            description="\n".join(progressed.lines(self._text_width)),
        )
        self._progress.refresh()

    @property
    def _text_width(self) -> int:
        return max(1, self._progress.console.width - _BAR_COLUMNS)

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def intervals(self) -> Iterator[float]:
        while True:
            yield _BAR_INTERVAL_SECONDS
