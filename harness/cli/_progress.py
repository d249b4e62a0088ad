"""Say on standard error how far a batch has come: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs
import click
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from harness.cli._limits import now_text
from harness.cli._source import Reading
from harness.cli._tally import Tally
from harness.limits import Limiter, LimiterStatistics

_BAR_INTERVAL_SECONDS = 0.25
_FIRST_LINE_SECONDS = 1.0
_MAX_LINE_INTERVAL_SECONDS = 30.0
_PACE_SECONDS = 30.0


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
    """How many items there will be; None if nobody knows."""

    certain: bool
    """Whether `expected` is counted and not extrapolated."""

    per_second: float
    """How many items ended per second of late."""

    limits: LimiterStatistics | None = None
    """The state of the limits, if there are any."""

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this pace, where that can be told."""
        if self.expected is None or not self.per_second:
            return None
        return (self.expected - self.done) / self.per_second

    def __str__(self) -> str:
        of = "" if self.expected is None else f" of {'' if self.certain else '~'}{self.expected:,}"
        left = "" if self.seconds_left is None else f", {clock(self.seconds_left)} left"
        limits = "" if self.limits is None else f"; {now_text(self.limits)}"
        return (
            f"{self.done:,}{of} done, {self.failed:,} failed, {self.in_flight:,} in flight, "
            f"{rate(self.per_second)}{left}{limits}"
        )


def clock(seconds: float) -> str:
    """Return a duration as people write it: ``0:07``, ``12:30``, ``3:05:00``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rate(per_second: float) -> str:
    """Return a rate in the unit that needs no zeros in front: ``120/s``, ``2.5/s``, ``9/min``."""
    if per_second >= 10:
        return f"{per_second:,.0f}/s"
    return f"{per_second:.1f}/s" if per_second >= 0.5 else f"{per_second * 60:.0f}/min"


class Pace:
    """How fast items end, over the last half minute."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def per_second(self, now: float, done: int) -> float:
        """Note that ``done`` items have ended by ``now``, and return the rate."""
        marks = self._marks
        marks.append((now, done))
        # One mark from before the window stays, so that the window is full.
        while len(marks) > 2 and marks[1][0] <= now - _PACE_SECONDS:
            marks.popleft()
        since, done_then = marks[0]
        return (done - done_then) / (now - since) if now > since else 0.0


class Display(Protocol):
    """Where progress is shown."""

    def show(self, progressed: Progressed) -> None:
        """Show how far the batch has come."""
        ...

    def say(self, text: str) -> None:
        """Say something that stays."""
        ...

    def intervals(self) -> Iterator[float]:
        """Yield the seconds to wait before each time that progress is shown."""
        ...


@contextmanager
def open_display(*, quiet: bool) -> Iterator[Display]:
    """Show progress the way standard error can: a bar, lines, or, if ``quiet``, not at all."""
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
    limiter: Limiter | None = None,
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
                per_second=pace.per_second(clock(), tally.done),
                limits=None if limiter is None else limiter.statistics(),
            )
        )


class _Quiet:
    """No progress; what answers a key that somebody pressed is said all the same."""

    def show(self, progressed: Progressed) -> None:
        pass

    def say(self, text: str) -> None:
        click.echo(text, err=True)

    def intervals(self) -> Iterator[float]:
        return iter(())


class _Lines:
    """A line now and then: soon for a short batch, seldom for a long one, as logs like it."""

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
        # The bar takes what the words leave, so a narrow terminal loses bar and no words.
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        TextColumn("{task.description}", markup=False),
        console=console,
        expand=True,
        # The display's own task refreshes it: a second thread would draw while nothing changes.
        auto_refresh=False,
        transient=True,
        # What a function prints goes above the bar, unless it goes to another place anyway.
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
            description=str(progressed),
        )
        self._progress.refresh()

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def intervals(self) -> Iterator[float]:
        while True:
            yield _BAR_INTERVAL_SECONDS
