"""A batch on a virtual clock: endings, order, retries, interruptions."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.cli._errors import InputError
from harness.cli._records import Record
from harness.cli._result_lines import ResultLines
from harness.cli._run import Work, policy_named, run_batch
from harness.cli._source import Reading, RecordSource
from harness.cli._summary import Report, summary_text
from harness.cli._writer import LineWriter
from harness.policies import Attempt, BestEffort, Retry


class Said:
    """A display that keeps what is said."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def show(self, progressed: object) -> None:
        pass

    def say(self, text: str) -> None:
        self.texts.append(text)

    def intervals(self) -> Iterator[float]:
        return iter(())


@attrs.define(eq=False)
class Ran:
    report: Report
    lines: list[dict[str, Any]]
    said: list[str]

    def column(self, name: str) -> list[Any]:
        return [line[name] for line in self.lines]


async def run(
    function: Callable[[Any], Awaitable[Any]],
    values: list[Any],
    *,
    error: Exception | None = None,
    endless: bool = False,
    **given: Any,
) -> Ran:
    """Run a batch on ``values``; then the source fails, waits for ever, or ends."""
    attempt = Attempt(
        retry=Retry(given.pop("attempts", 1)),
        **{name: given.pop(name) for name in ("timeout", "hedge", "tokens") if name in given},
        limiter=given.get("limiter"),
    )
    work = Work(
        **{
            "function": function,
            "policy": BestEffort(),
            "limit": 100,
            "attempt": attempt,
            "ordered": False,
            "grace": 30.0,
            **given,
        }
    )
    send, receive = trio.open_memory_channel[list[Record] | Exception](10)
    records = [
        value if isinstance(value, Record) else Record(i, i + 1, value, str(i))
        for i, value in enumerate(values)
    ]
    await send.send(records)
    if error is not None:
        await send.send(error)
    if not endless:
        send.close()
    output, said = io.BytesIO(), Said()
    written = ResultLines(LineWriter(output))
    report = await run_batch(work, RecordSource(receive), Reading(), written, said)
    send.close()
    lines = output.getvalue().splitlines(keepends=True)
    assert all(line.endswith(b"\n") for line in lines)
    parsed = [json.loads(line) for line in lines]
    assert report.tally.done == len(parsed)
    return Ran(report, parsed, said.texts)


async def nap(seconds: float) -> float:
    await trio.sleep(seconds)
    return seconds


# Lines -----------------------------------------------------------------------------------------


async def test_line_has_these_fields(autojump_clock: MockClock) -> None:
    ran = await run(nap, [1.5])
    assert ran.lines == [
        {
            "key": "0",
            "index": 0,
            "status": "ok",
            "value": 1.5,
            "error": None,
            "attempts": 1,
            "seconds": 1.5,
        }
    ]
    names = "key index status value error attempts seconds"
    assert " ".join(ran.lines[0]) == names
    assert ran.report.exit_status == 0


async def test_traceback_has_the_users_frames_and_those_of_what_they_call() -> None:
    """The dozen frames between a batch and its function are the same for every item."""

    async def looks_up(value: str) -> object:
        try:
            return {"c": 1}[value]
        except KeyError as error:
            raise ValueError("no such thing") from error

    ran = await run(looks_up, ["a", "b"], tracebacks=True)
    text = ran.lines[0]["traceback"]
    assert re.findall(r"in (\w+)\n", text) == ["looks_up", "looks_up"]
    assert text.startswith("Traceback (most recent call last):\n")
    assert "direct cause" in text
    assert "\nValueError: no such thing\n" in text
    said = summary_text(ran.report, output="-")
    assert said.count("Traceback") == 2, "one of each kind, and its cause"
    assert re.search(r"the first ValueError, of [01]:\n", said), "which is first is drawn"


async def test_traceback_of_a_group_has_no_frames_of_harness_either() -> None:
    async def fails(value: int) -> None:
        raise ZeroDivisionError(value)

    async def fans_out(value: int) -> None:
        await harness.fan_out(fails, [value])

    text = (await run(fans_out, [1], tracebacks=True)).lines[0]["traceback"]
    assert set(re.findall(r"in (\w+)\n", text)) == {"fans_out", "fails"}


async def test_traceback_that_cannot_be_made_is_no_reason_to_lose_a_line() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def fails(value: int) -> None:
        raise OddError

    ran = await run(fails, [1], tracebacks=True)
    assert "OddError" in ran.lines[0]["traceback"]


async def test_record_that_cannot_be_read_and_item_that_is_ok_have_no_traceback() -> None:
    ran = await run(nap, [Record(0, 1, None, "0", "odd"), 0.0], tracebacks=True)
    assert [line["traceback"] for line in ran.lines] == [None, None]
    assert not ran.report.tally.tracebacks


async def test_function_that_wants_asyncio_is_told_what_to_do() -> None:
    """Each item says the same, and none of them what to write instead."""

    async def wants_asyncio(value: int) -> None:
        asyncio.get_running_loop()

    ran = await run(wants_asyncio, [1])
    assert "await harness.asyncio_bridge.run_asyncio(function, record)" in summary_text(
        ran.report, output="-"
    )
    ran = await run(nap, ["no running event loop"])
    assert "asyncio_bridge" not in summary_text(ran.report, output="-")


async def test_lines_come_as_items_end_or_in_order(autojump_clock: MockClock) -> None:
    assert (await run(nap, [3, 1, 2])).column("index") == [1, 2, 0]
    assert (await run(nap, [3, 1, 2], ordered=True)).column("index") == [0, 1, 2]


async def test_line_is_written_when_its_item_ends(autojump_clock: MockClock) -> None:
    """Whoever follows the file, or kills the process, has all that ended."""
    output = io.BytesIO()
    lines_seen = {}

    async def look(seconds: float) -> None:
        await trio.sleep(seconds)
        lines_seen[seconds] = output.getvalue().count(b"\n")

    send, receive = trio.open_memory_channel[list[Record] | Exception](1)
    await send.send([Record(i, i, i + 1, str(i)) for i in range(3)])
    send.close()
    work = Work(
        function=look,
        policy=BestEffort(),
        limit=10,
        attempt=Attempt(),
        ordered=False,
        grace=0,
    )
    await run_batch(work, RecordSource(receive), Reading(), ResultLines(LineWriter(output)), Said())
    assert lines_seen == {1: 0, 2: 1, 3: 2}


async def test_failures_are_lines_too(autojump_clock: MockClock) -> None:
    """Count in = count out: 5 of 448 fail, and 448 lines come out."""

    async def fails_sometimes(number: int) -> int:
        await trio.sleep(1)
        if number % 100 == 0:
            raise ValueError(f"no {number}")
        return number

    ran = await run(fails_sometimes, list(range(448)))
    assert sorted(ran.column("index")) == list(range(448))
    failed = [line for line in ran.lines if line["status"] == "failed"]
    assert sorted(line["error"] for line in failed) == sorted(
        f"ValueError: no {i}" for i in range(0, 448, 100)
    )
    assert all(line["value"] is None for line in failed)
    assert (ran.report.tally.ok, ran.report.tally.failed) == (443, 5)
    assert ran.report.exit_status == 1


async def test_item_that_takes_too_long_is_timed_out(autojump_clock: MockClock) -> None:
    """Stuck at the last items: a deadline per attempt, and the batch goes on."""
    ran = await run(nap, [1, float("inf"), 2], timeout=10.0)
    line = ran.lines[-1]
    assert (line["index"], line["status"], line["seconds"]) == (1, "timed_out", 10)
    assert line["error"].startswith("RunTimedOut: ")
    assert ran.report.exit_status == 1


async def test_retry_is_the_number_of_attempts(autojump_clock: MockClock) -> None:
    tries: dict[str, int] = {}

    async def third_time_lucky(name: str) -> int:
        tries[name] = tries.get(name, 0) + 1
        if tries[name] < 3:
            raise ConnectionError("reset")
        return tries[name]

    ran = await run(third_time_lucky, ["a"], attempts=3)
    assert (ran.lines[0]["status"], ran.lines[0]["attempts"]) == ("ok", 3)
    tries.clear()
    ran = await run(third_time_lucky, ["a"], attempts=2)
    assert (ran.lines[0]["status"], ran.lines[0]["attempts"]) == ("failed", 2)
    assert "1 more attempts than items" in summary_text(ran.report, output="x")


async def test_attempt_that_changes_its_record_does_not_change_the_next(
    autojump_clock: MockClock,
) -> None:
    attempts = 0

    async def greedy(record: dict[str, list[str]]) -> str:
        nonlocal attempts
        attempts += 1
        text = record["texts"].pop()
        if attempts == 1:
            raise ConnectionError("reset")
        return text

    ran = await run(greedy, [{"texts": ["the only one"]}], attempts=2)
    assert (ran.lines[0]["value"], ran.lines[0]["attempts"]) == ("the only one", 2)


async def test_value_that_json_cannot_hold_fails_its_item_only(autojump_clock: MockClock) -> None:
    async def odd(number: int) -> object:
        return [{1, 2}, float("nan"), {1: 2}, object(), "fine"][number]

    ran = await run(odd, [0, 1, 2, 3, 4], ordered=True, attempts=3)
    assert ran.column("status") == ["failed"] * 4 + ["ok"]
    # Another attempt would cost money and give the same.
    assert ran.column("attempts") == [1] * 5
    assert ran.lines[0]["error"].startswith("UnwritableValueError: the value is of type set")


async def test_function_sees_its_run(autojump_clock: MockClock) -> None:
    async def where(record: object) -> str:
        return harness.current_run().path

    assert (await run(where, ["x"])).lines[0]["value"] == "batch/0"


async def test_error_that_cannot_be_shown_is_still_a_line(autojump_clock: MockClock) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def fails(record: object) -> None:
        raise Broken

    assert "can't be shown" in (await run(fails, ["x"])).lines[0]["error"]


async def test_at_most_limit_run_at_once_and_reading_is_bounded(autojump_clock: MockClock) -> None:
    running = peak = 0

    async def count(record: object) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await trio.sleep(1)
        running -= 1

    await run(count, list(range(50)), limit=7)
    assert peak == 7


# Policies and bad input ------------------------------------------------------------------------


async def test_fail_fast_stops_at_the_first_failure_and_keeps_what_ended(
    autojump_clock: MockClock,
) -> None:
    async def fails_at_two(seconds: float) -> float:
        await trio.sleep(seconds)
        if seconds == 2:
            raise ValueError("two")
        return seconds

    policy = policy_named("fail-fast", skip_bad=False)
    ran = await run(fails_at_two, [1, 2, 3, 4, 5], policy=policy, limit=4)
    assert dict(zip(ran.column("index"), ran.column("status"), strict=True)) == {
        0: "ok",
        1: "failed",
        2: "cancelled",
        3: "cancelled",
        4: "cancelled",
    }
    assert ran.report.seconds == 2
    assert ran.report.exit_status == 1


@pytest.mark.parametrize("policy", ["best-effort", "fail-fast"])
async def test_record_that_cannot_be_read_is_a_failed_result(
    autojump_clock: MockClock, policy: str
) -> None:
    """And is no reason to stop: ``--skip-bad`` says to go on."""
    bad = Record(1, 7, None, None, "not JSON")
    ran = await run(nap, [1, bad, 2], policy=policy_named(policy, skip_bad=True), attempts=3)
    assert ran.lines[0] == {
        "key": None,
        "index": 1,
        "status": "failed",
        "value": None,
        "error": "BadRecordError: line 7: not JSON",
        "attempts": 0,
        "seconds": 0.0,
    }
    assert ran.column("status") == ["failed", "ok", "ok"]
    said = summary_text(ran.report, output="x")
    assert said.splitlines()[1:3] == [
        "errors: 1 BadRecordError",
        "  line 7: BadRecordError: not JSON",
    ]
    assert ran.report.tally.attempts == 2
    assert "more attempts" not in said


async def test_attempts_of_retries_are_counted_beside_records_that_cannot_be_read(
    autojump_clock: MockClock,
) -> None:
    async def fail(record: object) -> None:
        raise ConnectionError("reset")

    bad = Record(0, 1, None, None, "not JSON")
    ran = await run(fail, [bad, "a"], attempts=3)
    assert "2 failed, 2 more attempts than items" in summary_text(ran.report, output="x")


async def test_summary_shows_the_first_errors_of_the_input_in_its_order(
    autojump_clock: MockClock,
) -> None:
    async def fail_after(seconds: float) -> None:
        await trio.sleep(seconds)
        raise ValueError(f"{seconds}")

    ran = await run(fail_after, [5, 1, 4, 2, 3])
    said = summary_text(ran.report, output="x").splitlines()
    assert said[2:-1] == ["  0: ValueError: 5", "  1: ValueError: 1", "  2: ValueError: 4"]


async def test_fail_fast_stops_at_a_failed_item_when_bad_records_are_skipped(
    autojump_clock: MockClock,
) -> None:
    async def fail(record: object) -> None:
        raise ValueError

    policy = policy_named("fail-fast", skip_bad=True)
    ran = await run(fail, list(range(10)), policy=policy, limit=1)
    assert ran.column("status") == ["failed"]


async def test_bad_input_ends_the_batch_and_what_is_in_flight_is_kept(
    autojump_clock: MockClock,
) -> None:
    ran = await run(nap, [1, 2], error=InputError("line 3: no key"))
    assert ran.column("status") == ["ok", "ok"]
    assert ran.report.input_error == "line 3: no key"
    assert ran.report.exit_status == 2


@pytest.mark.parametrize("policy", ["best-effort", "fail-fast"])
async def test_function_that_exits_ends_the_batch_and_what_ended_is_kept(
    autojump_clock: MockClock, policy: str
) -> None:
    async def leave_at_two(seconds: float) -> float:
        async with trio.open_nursery():  # So that it comes out in a group.
            await trio.sleep(seconds)
            if seconds == 2:
                raise SystemExit(3)
        return seconds

    ran = await run(leave_at_two, [1, 2, 9], policy=policy_named(policy, skip_bad=False))
    assert ran.lines[0]["status"] == "ok"
    assert "ok" not in ran.column("status")[1:]
    assert ran.report.seconds == 2
    assert ran.report.function_error == "the function raised SystemExit(3)"
    assert ran.report.exit_status == 1


# Output ----------------------------------------------------------------------------------------


async def test_output_that_fails_ends_the_batch(autojump_clock: MockClock) -> None:
    started = 0

    async def count(seconds: float) -> None:
        nonlocal started
        started += 1
        await trio.sleep(seconds)

    class Gone(io.BytesIO):
        def write(self, data: Any, /) -> int:
            raise BrokenPipeError

    send, receive = trio.open_memory_channel[list[Record] | Exception](1)
    await send.send([Record(i, i, 1 + i, str(i)) for i in range(100)])
    send.close()
    work = Work(
        function=count,
        policy=BestEffort(),
        limit=5,
        attempt=Attempt(),
        ordered=False,
        grace=0,
    )
    lines = ResultLines(LineWriter(Gone()))
    report = await run_batch(work, RecordSource(receive), Reading(), lines, Said())
    assert report.seconds == 1
    assert started <= 6
    assert report.tally.done == 0
    assert report.output_error == "whoever read the results has gone"
    assert report.exit_status == 1


# Interruptions ---------------------------------------------------------------------------------


async def interrupted(*presses: tuple[float, signal.Signals], grace: float = 30.0) -> Ran:
    """Run items that end at 1, 2, 3, ... s, five at once, and send signals at some of these."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with trio.open_nursery() as nursery:

        async def press() -> None:
            for at, number in presses:
                await trio.sleep_until(began + at)
                signal.raise_signal(number)

        began = trio.current_time()
        nursery.start_soon(press)
        ran = await run(nap, [float(i) for i in range(1, 21)], limit=5, grace=grace, endless=True)
        nursery.cancel_scope.cancel()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert ran.report.interrupted
    assert ran.report.exit_status == 130
    return ran


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_interruption_lets_what_is_in_flight_finish_and_starts_nothing(
    autojump_clock: MockClock, number: signal.Signals
) -> None:
    ran = await interrupted((2.5, number))
    # At 2.5 s items 2, 3, 4 and the two that followed 0 and 1 are in flight.
    assert ran.column("index") == [0, 1, 2, 3, 4, 5, 6]
    assert set(ran.column("status")) == {"ok"}
    assert ran.report.seconds == 9
    assert "5 in flight may finish within 30 s" in ran.said[0]


async def test_interruption_while_the_input_says_nothing_ends_at_once(
    autojump_clock: MockClock,
) -> None:
    """The source of these tests never ends; after the 20th item only a signal helps."""
    ran = await interrupted((500.0, signal.SIGINT))
    assert len(ran.lines) == 20
    assert ran.report.seconds == 500


async def test_interruption_before_the_first_item_is_not_lost(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no run to stop yet, and this source would keep the batch alive for ever."""

    def interrupted_open(*arguments: Any, **named: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return harness.open_fan_out(*arguments, **named)

    monkeypatch.setattr("harness.cli._run.open_fan_out", interrupted_open)
    ran = await run(nap, [1.0] * 20, limit=5, endless=True)
    assert ran.report.exit_status == 130
    assert len(ran.lines) <= 5


async def test_grace_ends_what_takes_longer(autojump_clock: MockClock) -> None:
    ran = await interrupted((2.5, signal.SIGINT), grace=2.0)
    assert ran.report.seconds == 4.5
    assert dict(zip(ran.column("index"), ran.column("status"), strict=True)) == {
        **dict.fromkeys([0, 1, 2, 3], "ok"),
        **dict.fromkeys([4, 5, 6], "cancelled"),
    }
    assert "Ctrl-C" in ran.lines[-1]["error"]


async def test_second_interruption_cancels_at_once(autojump_clock: MockClock) -> None:
    ran = await interrupted((2.5, signal.SIGINT), (3.5, signal.SIGINT))
    assert ran.report.seconds == 3.5
    assert sorted(ran.column("status")) == ["cancelled"] * 4 + ["ok"] * 3


async def test_termination_signal_again_changes_nothing(autojump_clock: MockClock) -> None:
    """Supervisors repeat it; the grace was promised."""
    ran = await interrupted((2.5, signal.SIGTERM), (3.5, signal.SIGTERM), (4.5, signal.SIGTERM))
    assert set(ran.column("status")) == {"ok"}


async def test_no_grace_cancels_at_once(autojump_clock: MockClock) -> None:
    ran = await interrupted((2.5, signal.SIGINT), grace=0.0)
    assert ran.report.seconds == 2.5
    assert sorted(ran.column("status")) == ["cancelled"] * 5 + ["ok"] * 2
