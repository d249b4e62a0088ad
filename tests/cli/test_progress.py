"""Saying how far a batch has come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from harness.cli._progress import Pace, Progressed, clock, open_display, rate, show_progress
from harness.cli._source import Reading
from harness.cli._tally import Tally


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
