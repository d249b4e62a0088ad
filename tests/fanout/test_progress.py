"""``with harness.progress():`` shows how far fan-outs have come, and costs nothing elsewhere."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.fanout._watch import Counts, watching
from harness.flow import Pipeline
from harness.policies import BestEffort

if TYPE_CHECKING:
    from rich.console import Console

    from harness._progress import _Board, progress
else:
    Console = pytest.importorskip("rich.console", reason="bars need an extra").Console
    from harness._progress import _Board, progress


def terminal(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, height=20, force_terminal=True)


def drawn(console: Console) -> str:
    """Return all that was drawn, without the codes that move the cursor."""
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def board() -> _Board:
    watch = watching.get()
    assert isinstance(watch, _Board)
    return watch


def said(of: _Board) -> list[str]:
    """Return what the rows say now, the rate and the time left aside."""
    cells = of.drawn().columns[1].cells
    return [str(words).partition(" in flight")[0] for words in cells]


async def nap(seconds: float) -> float:
    await trio.sleep(seconds)
    if seconds == 2:
        raise ValueError(seconds)
    return seconds


async def test_bar_says_done_failed_and_in_flight(autojump_clock: MockClock) -> None:
    console = terminal()
    with progress(console=console):
        async with trio.open_nursery() as nursery:

            async def work() -> None:
                await harness.fan_out(nap, [1, 2, 3, 4], policy=BestEffort(), limit=2, name="naps")

            nursery.start_soon(work)
            await trio.sleep(2.5)
            assert said(board()) == ["naps: 2 of 4 done, 1 failed, 2"]
        assert said(board()) == ["naps: 4 of 4 done, 1 failed, 0"]
    assert "naps: 4 of 4 done, 1 failed" in drawn(console), "what came of it stays there"
    assert watching.get() is None


async def test_streams_pipelines_and_unsized_items_have_bars_too(autojump_clock: MockClock) -> None:
    with progress(console=terminal()):
        async with harness.open_fan_out(nap, iter([1, 1]), name="stream") as stream:
            async for _ in stream:
                pass
        await Pipeline(nap).run([1], name="pipe")
        assert said(board()) == ["stream: 2 done, 0 failed, 0", "pipe: 1 of 1 done, 0 failed, 0"]


async def test_fan_outs_inside_of_items_are_not_shown(autojump_clock: MockClock) -> None:
    """A thousand bars say less than one."""

    async def fans_out(item: int) -> None:
        with progress(console=terminal()):  # It is shown already, so this changes nothing.
            await harness.fan_out(nap, [1, 1])

    with progress(console=terminal()):
        await harness.fan_out(fans_out, range(20), name="outer")
        assert said(board()) == ["outer: 20 of 20 done, 0 failed, 0"]


async def test_fan_outs_without_number_take_no_room_and_no_memory() -> None:
    async def echo(item: int) -> int:
        return item

    with progress(console=terminal()):
        for number in range(100):
            await harness.fan_out(echo, [1], name=f"n-{number}")
        shown = board()
        assert [line[:4] for line in said(shown)] == [f"n-{number}" for number in range(90, 100)]
        assert all(row.fan_out is None for row in shown._rows.values()), "items can be let go of"


async def test_more_fan_outs_than_there_is_room_for_wait_for_a_row(
    autojump_clock: MockClock,
) -> None:
    with progress(console=terminal()):
        async with trio.open_nursery() as nursery:
            for number in range(12):

                async def work(number: int = number) -> None:
                    await harness.fan_out(nap, [number + 3.5], name=f"n-{number}")

                nursery.start_soon(work)
            await trio.sleep(1)
            assert len(said(board())) == 10


@pytest.mark.parametrize("width", [80, 40, 20])
async def test_bars_fit_the_terminal(width: int) -> None:
    class Huge:
        def counts(self) -> Counts:
            return Counts(total=123_456_789, done=12_345_678, failed=123_456, in_flight=1_000)

    console = terminal(width)
    with progress(console=console):
        shown = board()
        shown.begun("a-run-with-quite-a-long-name/" * 3, Huge())
        rows = console.render_lines(shown.drawn(), pad=False)
        assert len(rows) == 1
        assert sum(part.cell_length for part in rows[0]) <= width
        assert "12,345,678/123,456,789" in said(shown)[0]


async def test_nothing_is_drawn_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    file = io.StringIO()
    for console in (None, Console(file=file), Console(file=file, force_terminal=False)):
        with progress(console=console):
            assert watching.get() is None
            await harness.fan_out(trio.sleep, [0])
    assert file.getvalue() == ""
    assert capsys.readouterr() == ("", "")


def test_notebook_is_drawn_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Board, "start", lambda board, refresh=False: None)
    with progress(console=Console(file=io.StringIO(), force_jupyter=True)):
        assert isinstance(watching.get(), _Board)


async def test_notebook_shows_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cell said for ever what was last looked at: 20 of 30, and nothing if it was quick."""
    seen: list[str] = []

    def look(board: _Board) -> None:
        words = io.StringIO()
        Console(file=words, width=100).print(board.drawn())
        seen.append(words.getvalue())

    monkeypatch.setattr(_Board, "refresh", look)
    with progress(console=Console(file=io.StringIO(), force_jupyter=True)):
        await harness.fan_out(trio.sleep, [0] * 3)
    assert "3 of 3 done" in seen[-1]


def test_block_may_be_around_the_whole_program() -> None:
    async def main() -> None:
        await harness.fan_out(trio.sleep, [0, 0], name="whole")
        assert said(board()) == ["whole: 2 of 2 done, 0 failed, 0"]

    with harness.progress(console=terminal()):
        trio.run(main)


async def test_error_of_the_block_goes_on_and_the_bar_ends(autojump_clock: MockClock) -> None:
    console = terminal()
    with pytest.raises(harness.errors.FanOutError), progress(console=console):
        await harness.fan_out(nap, [1, 2, 3], name="naps")
    assert watching.get() is None
    assert "naps: 3 of 3 done, 1 failed" in drawn(console)


PROGRAM = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "rich":
            raise ModuleNotFoundError("No module named 'rich'", name="rich")

sys.meta_path.insert(0, NotInstalled())
import harness
try:
    harness.progress
except ImportError as error:
    print(error)
"""


@pytest.mark.slow
def test_missing_extra_is_named_when_it_is_used() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ran.stdout == (
        "harness.progress needs rich, which is not installed; "
        "run: pip install 'trio-harness[progress]'\n"
    ), ran.stderr
