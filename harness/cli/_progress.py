"""Say on standard error how far a batch has come: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import attrs
import click
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from harness.cli._limits import now_forms, now_text
from harness.cli._source import Reading
from harness.cli._tally import Tally
from harness.limits import Limiter, LimiterStatistics

_BAR_INTERVAL_SECONDS = 0.25
_FIRST_LINE_SECONDS = 1.0
_MAX_LINE_INTERVAL_SECONDS = 30.0
_PACE_SECONDS = 30.0
_BAR_COLUMNS = 11
"""What the words leave to the bar, on terminals that are not narrower than they can be."""


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

    kept_to_come: int = 0
    """Items still to come whose results the journal has: they take no time."""

    limits: LimiterStatistics | None = None
    """The state of the limits, if there are any."""

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this pace, where that can be told."""
        if self.expected is None or not self.per_second:
            return None
        return max(0, self.expected - self.done - self.kept_to_come) / self.per_second

    def __str__(self) -> str:
        limits = "" if self.limits is None else f"; {now_text(self.limits)}"
        return f"{self._forms()[0]}{limits}"

    def lines(self, width: int) -> list[str]:
        """Return it in lines of at most ``width`` characters, as much as they have room for."""
        lines = [first_that_fits(width, self._forms())]
        if self.limits is not None:
            lines.append(first_that_fits(width, now_forms(self.limits)))
        return lines

    def _forms(self) -> list[str]:
        """Return all of it in words, and then shorter and shorter."""
        expected = (
            None if self.expected is None else f"{'' if self.certain else '~'}{self.expected:,}"
        )
        left = None if self.seconds_left is None else clock(self.seconds_left)
        failed, pace = f"{self.failed:,} failed", rate(self.per_second)
        short = f"{self.done:,}{'' if expected is None else f'/{expected}'}"
        rest = [] if left is None else [left]
        return [
            f"{self.done:,}{'' if expected is None else f' of {expected}'} done, {failed}, "
            f"{self.in_flight:,} in flight, {pace}{'' if left is None else f', {left} left'}",
            ", ".join((short, failed, f"{self.in_flight:,} in flight", pace, *rest)),
            ", ".join((short, failed, *rest)),
            short,
        ]


def first_that_fits(width: int, forms: Sequence[str]) -> str:
    """Return the first of ``forms`` that has no more than ``width`` characters, or the last."""
    return next((form for form in forms if len(form) <= width), forms[-1])


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
    kept_to_come: Callable[[], int] = lambda: 0,
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
                per_second=pace.per_second(clock(), tally.done_now),
                kept_to_come=max(0, kept_to_come()),
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
