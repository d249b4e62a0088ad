"""Saying how far a batch has come."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import trio
from rich.console import Console
from trio.testing import MockClock

from harness._pace import Pace, clock, rate
from harness.cli._progress import (
    Progressed,
    _Bar,
    _progress_bar,
    open_display,
    show_progress,
)
from harness.cli._source import Reading
from harness.cli._tally import Tally
from harness.limits import Limiter


def progressed(**given: object) -> Progressed:
    defaults: dict[str, object] = {
        "done": 120,
        "failed": 3,
        "in_flight": 50,
        "expected": 3_080,
        "certain": True,
        "per_second": 10.0,
    }
    return Progressed(**(defaults | given))  # type: ignore[arg-type]


def test_line_says_done_failed_in_flight_rate_and_time_left() -> None:
    assert str(progressed()) == "120 of 3,080 done, 3 failed, 50 in flight, 10/s, 4:56 left"


def test_what_is_extrapolated_says_so_and_what_is_unknown_is_left_out() -> None:
    assert "120 of ~3,080 done" in str(progressed(certain=False))
    assert str(progressed(expected=None)) == "120 done, 3 failed, 50 in flight, 10/s"
    assert "left" not in str(progressed(per_second=0.0))


@pytest.mark.parametrize("width", [80, 60, 40, 20])
async def test_bar_and_limits_fit_the_terminal(width: int) -> None:
    """A line that wraps is drawn again below itself, four times a second."""
    limiter = Limiter(
        "batch",
        requests_per_minute=10,
        input_tokens_per_minute=10,
        output_tokens_per_minute=10,
        concurrent=3,
    )
    shown = progressed(
        done=1_234_567,
        failed=12_345,
        in_flight=1_000,
        expected=10_234_567,
        certain=False,
        limits=limiter.statistics(),
    )
    console = Console(file=io.StringIO(), width=width, height=10, force_terminal=True)
    with _progress_bar(console) as progress:
        bar = _Bar(progress)
        bar.show(shown)
        for column in progress.get_renderables():
            rows = console.render_lines(column, pad=False)
            assert len(rows) == 2
            assert all(sum(part.cell_length for part in row) <= width for row in rows)
        words = str(progress.tasks[0].description)
    assert words.startswith("1,234,567")
    assert all(len(line) <= max(width - 11, 21) for line in words.splitlines())
    assert "waiting" in words


def test_what_the_journal_has_takes_no_time() -> None:
    """A batch that goes on would else seem to be done in no time, or never."""
    shown = progressed(done=20, expected=1_000, kept_to_come=900, per_second=10.0)
    assert shown.seconds_left == 8
    assert progressed(done=20, expected=30, kept_to_come=900).seconds_left == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (7, "0:07"), (59.6, "1:00"), (11_100, "3:05:00")]
)
def test_durations_read_as_people_write_them(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(12_345.6, "12,346/s"), (2.54, "2.5/s"), (0.1, "6/min"), (0.0, "0/min")],
)
def test_rates_need_no_zeros_in_front(per_second: float, text: str) -> None:
    assert rate(per_second) == text


def test_pace_is_that_of_the_last_half_minute() -> None:
    """A batch that was fast for an hour and is now paused by a limit has a long way to go."""
    pace = Pace()
    assert pace.per_second(0.0, 0) == 0.0
    done = 0
    for second in range(1, 61):
        done += 100
        assert pace.per_second(float(second), done) == 100
    for second in range(61, 122):
        slow = pace.per_second(float(second), done)
    assert slow == 0.0


def test_number_of_records_is_extrapolated_until_it_is_known() -> None:
    reading = Reading(size_bytes=1_000)
    assert reading.expected() is None
    reading.records, reading.bytes_read = 10, 100
    assert reading.expected() == 100
    reading.at_most = 50
    assert reading.expected() == 50
    reading.total = 10
    assert reading.expected() == 10
    assert Reading(size_bytes=None, bytes_read=100, records=10).expected() is None


class Recorder:
    """A display that keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[float, Progressed]] = []

    def show(self, progressed: Progressed) -> None:
        self.shown.append((trio.current_time(), progressed))

    def say(self, text: str) -> None:
        raise AssertionError(text)

    def intervals(self) -> Iterator[float]:
        while True:
            yield 2.0


async def test_progress_is_shown_until_cancelled(autojump_clock: MockClock) -> None:
    display, tally, reading = Recorder(), Tally(), Reading(total=100)
    began = trio.current_time()
    with trio.move_on_after(5):
        async with trio.open_nursery() as nursery:

            async def show() -> None:
                await show_progress(display, tally, reading, clock=trio.current_time)

            nursery.start_soon(show)
            await trio.sleep(1)
            tally.ok, tally.timed_out, tally.running = 30, 10, 7
    assert [at - began for at, _ in display.shown] == [2, 4]
    first = display.shown[0][1]
    assert (first.done, first.failed, first.in_flight) == (40, 10, 7)
    assert first.per_second == 20
    assert first.seconds_left == 3


async def test_rate_is_of_what_this_session_does(autojump_clock: MockClock) -> None:
    """A journal gives back thousands at once: no rate that anybody could count on."""
    display, tally, reading = Recorder(), Tally(ok=1_000, kept=1_000), Reading(total=2_000)
    with trio.move_on_after(3):
        async with trio.open_nursery() as nursery:

            async def show() -> None:
                await show_progress(
                    display, tally, reading, clock=trio.current_time, kept_to_come=lambda: 960
                )

            nursery.start_soon(show)
            await trio.sleep(1)
            tally.ok += 20
    assert display.shown[0][1].per_second == 10
    assert display.shown[0][1].seconds_left == 2


def test_without_a_terminal_there_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with open_display(quiet=False) as display:
        display.show(progressed())
        display.say("stopping")
        waits = display.intervals()
        assert [next(waits) for _ in range(8)] == [1, 2, 4, 8, 16, 30, 30, 30]
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"{progressed()}\nstopping\n"


def test_quiet_shows_no_progress_but_answers_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    with open_display(quiet=True) as display:
        display.show(progressed())
        assert list(display.intervals()) == []
        assert capsys.readouterr() == ("", "")
        display.say("stopping")
    assert capsys.readouterr() == ("", "stopping\n")
