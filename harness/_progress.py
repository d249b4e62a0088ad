"""Show on a terminal or in a notebook how far the fan-outs of a block have come.

The display's own thread looks at the counts that the fan-outs keep anyway, four times a second. It
starts no task, so it needs no nursery, moves no virtual clock, and goes on drawing while a function
blocks the event loop.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness._pace import Pace, first_that_fits, forms
from harness.fanout._watch import Counts, Watched, watched_by, watching

_MOST_ROWS = 10
_REFRESHES_PER_SECOND = 4
_BAR_COLUMNS = 12
_MOST_OF_A_NAME = 24


@contextmanager
def progress(*, console: Console | None = None) -> Iterator[None]:
    """Show a bar for each fan-out that begins in the block, on a terminal or in a notebook::

        with harness.progress():
            results = await harness.fan_out(classify, tickets)

    Pipelines, routers and streams are shown too; fan-outs inside of items are not. It works around
    ``trio.run`` as well. Without a terminal, as in a log file, nothing is shown; nor is inside of a
    block that is shown already, or under ``harness batch``, which has a bar of its own.

    Args:
      console: Where to draw; by default standard error, or the notebook. In a notebook, rich needs
        the package ``ipywidgets``.
    """
    console = Console(stderr=True) if console is None else console
    if watching.get() is not None or not (console.is_interactive or console.is_jupyter):
        yield
        return
    with _Board(console) as board, watched_by(board):
        yield


class _Row:
    """One fan-out on the board."""

    def __init__(self, name: str, fan_out: Watched) -> None:
        self.name = name if len(name) <= _MOST_OF_A_NAME else f"{name[: _MOST_OF_A_NAME - 3]}..."
        self.fan_out: Watched | None = fan_out  # None once it is over, to let go of its items.
        self.began_at = time.monotonic()
        self.ended_at: float | None = None
        self.pace = Pace()
        self.pace.per_second(self.began_at, 0)
        self._last = fan_out.counts()

    def end(self) -> None:
        fan_out = self.fan_out
        if fan_out is not None:
            self._last, self.ended_at, self.fan_out = fan_out.counts(), time.monotonic(), None

    def counts(self) -> Counts:
        fan_out = self.fan_out  # The other thread may take it away between two looks.
        return self._last if fan_out is None else fan_out.counts()

    def words(self, counts: Counts, width: int) -> str:
        left = None
        if self.ended_at is None:
            per_second = self.pace.per_second(time.monotonic(), counts.done)
            if counts.total is not None and per_second:
                left = (counts.total - counts.done) / per_second
        else:
            per_second = counts.done / max(self.ended_at - self.began_at, 1e-9)
        shorter = forms(
            done=counts.done,
            failed=counts.failed,
            in_flight=counts.in_flight,
            expected=None if counts.total is None else f"{counts.total:,}",
            per_second=per_second,
            seconds_left=left,
        )
        named = [f"{self.name}: {form}" for form in shorter]
        return first_that_fits(width, [*named, shorter[-1]])


class _Board(Live):
    """The rows of a block, drawn again and again."""

    def __init__(self, console: Console) -> None:
        self._rows: dict[int, _Row] = {}
        """By number, in order. Trio's thread changes it, the display's takes a copy."""
        super().__init__(
            console=console,
            get_renderable=self.drawn,
            refresh_per_second=_REFRESHES_PER_SECOND,
            # What is printed goes above the bars, unless it goes to another place anyway.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )

    def stop(self) -> None:
        """Stop drawing. In a notebook rich leaves what was last seen, so draw the end first."""
        if self.console.is_jupyter and self.is_started:
            self.refresh()
        super().stop()

    def begun(self, name: str, fan_out: Watched) -> None:
        rows = self._rows
        rows[max(rows, default=0) + 1] = _Row(name, fan_out)
        # Of those that are over, the latest stay; so a loop of a million fan-outs fits.
        over = [number for number, row in rows.items() if row.fan_out is None]
        for number in over[: max(0, len(rows) - _MOST_ROWS)]:
            del rows[number]

    def over(self, fan_out: Watched) -> None:
        for row in self._rows.values():
            if row.fan_out is fan_out:
                row.end()

    def failed(self, key: Any, error: BaseException | None) -> None:
        pass  # It is in the counts.

    def drawn(self) -> Table:
        """Return the rows as they are now. Called by the display's thread."""
        table = Table.grid(padding=(0, 1), expand=True)
        # The bar takes what the words leave, so a narrow terminal loses bar and no words.
        table.add_column(ratio=1)
        table.add_column(no_wrap=True)
        width = max(1, self.console.width - _BAR_COLUMNS)
        # The oldest first; more than there is room for wait for their turn.
        for row in list(self._rows.copy().values())[:_MOST_ROWS]:
            counts = row.counts()
            # Without a total the bar moves to and fro, until it is over.
            total = counts.done if row.fan_out is None else counts.total
            bar = ProgressBar(total=total, completed=counts.done, pulse=total is None)
            table.add_row(bar, Text(row.words(counts, width)))
        return table
