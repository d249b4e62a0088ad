"""`record`: a trace that is whole, cheap, masked, and there when it is needed most."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import Agent, tool
from harness.limits import JointLimiter, Limiter, ProviderPool
from harness.models import Message, ModelRequest, ModelResponse, Price, ScriptedModel, ToolCall
from harness.observe import (
    Metrics,
    Spans,
    _record,
    analyse,
    export_chrome,
    read_trace,
    record,
    write_report,
)
from harness.policies import Attempt, BestEffort, Hedge, Retry
from harness.runs import Event
from tests.scale import PATIENCE_SECONDS, scaled

KEY = "sk-abcdefghij0123456789"


def lines_of(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the lines of a type, checking that each has what all lines have."""
    found = list(read_trace(path))
    for line in found:
        assert isinstance(line["time"], float)
        assert isinstance(line["run_id"], str)
    return [line for line in found if line["type"] == kind]


async def test_runs_have_their_place_in_the_tree(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with record(tmp_path / "t"):
        async with harness.open_run("root", tags={"customer": 7}) as root:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(opened, "beside", 1)
            await opened("inside", 1)
    started = {line["path"]: line for line in lines_of(tmp_path / "t", "run_started")}
    assert started["root"]["tags"] == {"customer": "7"}
    assert started["root"]["process"] == os.getpid()
    assert abs(started["root"]["unix"] - time.time()) < PATIENCE_SECONDS
    assert "parent" not in started["root"]
    for path in ("root/beside", "root/inside"):
        assert started[path]["parent"] == root.id
        assert started[path]["depth"] == 1
    assert started["root/inside"]["inline"]
    assert "inline" not in started["root/beside"]
    ended = {line["run_id"]: line for line in lines_of(tmp_path / "t", "run_ended")}
    assert ended[root.id]["status"] == "ok"
    assert ended[root.id]["time"] == pytest.approx(2)


async def opened(name: str, seconds: float) -> None:
    async with harness.open_run(name):
        await trio.sleep(seconds)


async def test_an_item_says_whose_end_made_room_for_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with record(tmp_path / "t"):
        await harness.fan_out(trio.sleep, [1, 3, 1], limit=2, name="batch")
    started = {line["path"]: line for line in lines_of(tmp_path / "t", "run_started")}
    assert "by" not in started["batch/0"]
    assert started["batch/2"]["by"] == started["batch/0"]["run_id"]
    attempts = lines_of(tmp_path / "t", "attempt")
    assert [(line["index"], line["seconds"]) for line in attempts] == [(0, 1), (2, 1), (1, 3)]


async def test_failures_retries_and_hedges_are_told(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    takes = [10, 1]

    async def work(item: int) -> int:
        if item == 0 and takes:
            await trio.sleep(takes.pop(0))
        if item == 1:
            raise ValueError(f"no luck with api_key={KEY}")
        return 7

    each = Attempt(retry=Retry(attempts=2), hedge=Hedge(after=2))
    async with record(tmp_path / "t", values=True):
        await harness.fan_out(work, [0, 1], each=each, policy=BestEffort(), name="batch")
    (retry,) = lines_of(tmp_path / "t", "retry")
    assert (retry["index"], retry["number"], retry["error"]) == (1, 1, "ValueError")
    assert retry["message"] == "no luck with api_key=[key]"
    (hedge,) = lines_of(tmp_path / "t", "hedge")
    started = {line["run_id"]: line for line in lines_of(tmp_path / "t", "run_started")}
    assert started[hedge["attempt"]]["by"] == hedge["beside"]
    attempts = lines_of(tmp_path / "t", "attempt")
    failed = [line for line in attempts if line["status"] == "failed"]
    assert [line["number"] for line in failed] == [1, 2]
    assert {line["value"] for line in attempts if line["status"] == "ok"} == {"7"}
    last = [line for line in lines_of(tmp_path / "t", "run_ended") if line["status"] == "failed"]
    assert "test_record.py" in last[0]["traceback"][-1]
    assert last[0]["traceback"][-1].endswith("work")
    assert KEY not in (tmp_path / "t").read_text()


async def test_model_and_tool_calls_are_told_and_their_contents_only_if_asked(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    @tool
    async def look_up(word: str) -> str:
        """Look it up."""
        await trio.sleep(2)
        return "found"

    calls = ModelResponse("", tool_calls=(ToolCall("c1", "look_up", {"word": KEY}),))
    price = Price(input_usd_per_million_tokens=1, output_usd_per_million_tokens=1)
    model = ScriptedModel([calls, "done"], delay=1, price=price)
    agent = Agent("clerk", model=model, tools=[look_up])
    for name, messages in (("without", False), ("with", True)):
        async with record(tmp_path / name, messages=messages):
            await agent.run("a secret plan")
        first, second = lines_of(tmp_path / name, "model_call")
        assert (first["model"], first["seconds"], first["status"]) == ("scripted", 1, "ok")
        assert first["input_tokens"] > 0
        assert first["cost_usd"] > 0
        assert (first["finish"], second["finish"]) == ("tool_calls", "stop")
        (called,) = lines_of(tmp_path / name, "tool_call")
        assert (called["tool"], called["call_id"], called["seconds"]) == ("look_up", "c1", 2)
        assert [line["reason"] for line in lines_of(tmp_path / name, "wait")] == [
            "model",
            "tool",
            "model",
        ]
        text = (tmp_path / name).read_text()
        assert ("a secret plan" in text) == ("done" in text) == messages
        assert KEY not in text


async def test_a_streamed_answer_is_a_model_call(tmp_path: Path, autojump_clock: MockClock) -> None:
    model = ScriptedModel(["one two"], delay=1, piece_delay=1)
    async with record(tmp_path / "t"):
        async with harness.open_run("root"):
            async with model.stream(ModelRequest([Message("user", "go")])) as stream:
                async for _ in stream:
                    pass
    (call,) = lines_of(tmp_path / "t", "model_call")
    assert call["finish"] == "stop"
    assert call["seconds"] >= 1


async def test_a_limiter_says_what_it_granted_and_who_made_room(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    limiter = Limiter("it", tokens_per_minute=600, concurrent=1)

    async def work(item: int) -> None:
        async with limiter.reserve(tokens=10):
            await trio.sleep(1)

    async with record(tmp_path / "t"):
        await harness.fan_out(work, [0, 1], name="batch")
    first, second = lines_of(tmp_path / "t", "wake")
    assert first["granted"] == {"tokens": [10, 600, 60]}
    assert (first["places"], first["in_flight"]) == (1, 1)
    assert second["by"] == first["run_id"]
    wait = lines_of(tmp_path / "t", "wait")[1]
    assert (wait["on"], wait["held_by"]) == ("it", [first["run_id"]])


async def test_a_reservation_says_what_it_came_to(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    limiter = Limiter(tokens_per_minute=6_000)
    pool = ProviderPool([Limiter("first", concurrent=1), Limiter("second", concurrent=2)])
    both = JointLimiter([Limiter("model", concurrent=3), Limiter("account", concurrent=4)])
    async with record(tmp_path / "t"), harness.open_run("root"):
        async with limiter.reserve(tokens=1_000) as reservation:
            await trio.sleep(1)
            reservation.settle(tokens=10)
            await trio.sleep(1)
        async with limiter.reserve(input_tokens=5, output_tokens=5) as reservation:
            reservation.refund()
        async with pool.reserve():
            pass
        async with both.reserve() as reservation:
            reservation.settle(input_tokens=1, output_tokens=2)
    lines = list(read_trace(tmp_path / "t"))
    wakes = {line["wait"]: line for line in lines if line["type"] == "wake"}
    releases = [line for line in lines if line["type"] == "release"]
    came_to = [
        {name: line[name] for name in line if name not in ("type", "run_id", "time", "wait")}
        for line in releases
    ]
    granted_by = [wakes[line["wait"]]["limiter"] for line in releases]
    assert came_to[0] == {"settled": 1, "requests": 1, "tokens": 10}
    assert releases[0]["time"] == 2
    refunded = {"requests": 0, "tokens": 0, "input_tokens": 0, "output_tokens": 0}
    assert came_to[1] == {"settled": 2, **refunded}
    assert (granted_by[2], came_to[2]) == ("first", {})  # Not "a provider of the pool".
    assert sorted(granted_by[3:]) == ["account", "model"]
    used = {"requests": 1, "tokens": 3, "input_tokens": 1, "output_tokens": 2}
    assert came_to[3:] == [{"settled": 2, **used}] * 2


async def test_what_a_program_emits_is_not_written(tmp_path: Path) -> None:
    async with record(tmp_path / "t"):
        async with harness.open_run("root") as run:
            run.emit_nowait("hello")
    assert [line["type"] for line in read_trace(tmp_path / "t")] == ["run_started", "run_ended"]


async def test_who_has_no_method_for_notices_hears_none() -> None:
    heard: list[harness.Event] = []
    with harness.observing(heard.append):
        async with harness.open_run("root"):
            await trio.lowlevel.checkpoint()
    assert not heard


async def test_hostile_names_and_errors_are_escaped_cut_and_masked(tmp_path: Path) -> None:
    class Nasty(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    hostile = f"<script>\x1b[31m\x00\x7f\x9b\u202e\n\ud800 Bearer {KEY}" + "x" * 1_000_000
    async with record(tmp_path / "t", values=True):
        async with harness.open_run(hostile, tags={hostile: hostile}):
            for error in (ValueError(hostile), Nasty(), ExceptionGroup(hostile, [OSError("a")])):
                with pytest.raises(type(error)):
                    async with harness.open_run(hostile):
                        raise error
    data = (tmp_path / "t").read_bytes()
    assert all(byte == 10 or 32 <= byte < 127 for byte in data)
    assert KEY.encode() not in data
    assert len(data) < 50_000
    errors = [line.get("error") for line in lines_of(tmp_path / "t", "run_ended")]
    assert errors == ["ValueError", "Nasty", "OSError", None]


class OddFloat(float):
    """As NumPy's: a float whose own text is no number."""

    def __repr__(self) -> str:
        return "OddFloat(...)"


class OddInt(int):
    def __repr__(self) -> str:
        return "OddInt(...)"


class OddText(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("unreadable")

    def __len__(self) -> int:
        raise RuntimeError("endless")


class OddError(Exception):
    def __str__(self) -> str:
        return OddText("odd")


async def test_numbers_and_texts_of_other_classes_spoil_no_line(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """What NumPy counts, a limiter took, and made a trace of it that nobody could read."""
    limiter = Limiter(
        requests_per_minute=OddInt(600),
        tokens_per_minute=OddFloat(600),
        concurrent=OddInt(5),
        headroom=OddFloat(0.5),
    )

    async def work(item: int) -> None:
        async with limiter.reserve(tokens=OddFloat(3)) as reservation:
            reservation.settle(tokens=OddFloat(2))
        raise OddError

    retry = Retry(2, first_delay=OddFloat(0.5))
    async with record(tmp_path / "t"):
        await harness.fan_out(
            work, [0], key=lambda item: True, policy=BestEffort(), each=Attempt(retry=retry)
        )
    analyse(tmp_path / "t")
    assert lines_of(tmp_path / "t", "release")[0]["tokens"] == 2
    assert [line["message"] for line in lines_of(tmp_path / "t", "attempt")] == ["odd", "odd"]
    assert lines_of(tmp_path / "t", "run_ended")[0]["error"] == "OddError"


async def test_a_last_line_that_was_cut_is_no_line(tmp_path: Path) -> None:
    async with record(tmp_path / "t"):
        await opened("root", 0)
    data = (tmp_path / "t").read_bytes()
    for cut in range(1, 30):
        (tmp_path / "t").write_bytes(data[:-cut])
        assert [line["type"] for line in read_trace(tmp_path / "t")] == ["run_started"]


async def test_a_recording_that_is_going_on_is_not_overwritten(tmp_path: Path) -> None:
    async with record(tmp_path / "t"):
        await opened("root", 0)
        with pytest.raises(OSError, match="another program is writing the trace"):
            async with record(tmp_path / "t"):
                raise AssertionError
    assert len(list(read_trace(tmp_path / "t"))) == 2
    async with record(tmp_path / "t"):
        pass
    assert not list(read_trace(tmp_path / "t"))


async def test_a_full_disk_ends_the_trace_and_not_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with caplog.at_level(logging.ERROR, "harness.observe"):
        async with record(tmp_path / "t") as recording:
            await opened("root", 0)
            with monkeypatch.context() as patched:
                patched.setattr(os, "write", full)
                recording.flush()
            await opened("root", 0)
    assert "can't be written, and ends here: [Errno" in caplog.text
    assert len(caplog.records) == 1
    assert not (tmp_path / "t").read_bytes()


async def test_a_trace_that_was_removed_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with record(tmp_path / "t"), harness.open_run("root"):
        (tmp_path / "t").unlink()
    assert "was removed while it was written" in caplog.text


async def test_a_ctrl_c_does_not_lose_what_is_told_once(tmp_path: Path) -> None:
    """It may come between any two lines of an observer, which is called unprotected."""
    protected: list[bool] = []

    class Asked:
        @property
        def payload(self) -> None:
            protected.append(trio.lowlevel.currently_ki_protected())

    async with record(tmp_path / "t") as recording:
        assert not trio.lowlevel.currently_ki_protected()
        for observer in (recording, Metrics(), Spans()):
            observer.notice(cast(Event, Asked()))
    assert protected == [True] * 3


async def test_what_is_collected_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the disk: beyond a number of bytes, whoever adds a line writes."""
    monkeypatch.setattr(_record, "SOON_BYTES", 50_000)
    monkeypatch.setattr(_record, "MOST_BYTES", 50_000)
    monkeypatch.setattr(_record, "SECONDS", 600)
    most = 0
    async with record(tmp_path / "t") as recording:
        with monkeypatch.context() as patched:
            patched.setattr(recording._wake, "set", lambda: None)  # The thread is busy elsewhere.
            for _ in range(500):
                await opened("x" * 1_500, 0)
                most = max(most, recording._size)
    assert most < 60_000
    assert sum(1 for _ in read_trace(tmp_path / "t")) == 1_000


KILLED = """
import sys, trio, harness
from harness.observe import record

async def main():
    async with record(sys.argv[1]):
        async with harness.open_run("root"):
            for number in range(10_000):
                async with harness.open_run(str(number)):
                    pass
            print("done", flush=True)
            await trio.sleep(0.8)
            print("kill", flush=True)
            await trio.sleep(600)

trio.run(main)
"""


@pytest.mark.real_clock
@pytest.mark.slow
def test_a_killed_process_loses_no_more_than_the_last_half_second(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "t")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        assert process.stdout.readline() == "kill\n"
        process.send_signal(signal.SIGKILL)
    assert len(lines_of(tmp_path / "t", "run_ended")) == 10_000


@pytest.mark.speed
@pytest.mark.real_clock
@pytest.mark.slow
def test_an_event_costs_less_than_ten_microseconds(tmp_path: Path) -> None:
    items = scaled(3_000, full=10_000)

    async def work(item: int) -> None:
        await trio.lowlevel.checkpoint()

    async def seconds(recorded: bool) -> float:
        began = time.process_time()
        if recorded:
            async with record(tmp_path / "t"):
                await harness.fan_out(work, range(items), limit=100)
        else:
            await harness.fan_out(work, range(items), limit=100)
        return time.process_time() - began

    pairs = [(trio.run(seconds, True), trio.run(seconds, False)) for _ in range(5)]
    more = min(one for one, _ in pairs) - min(one for _, one in pairs)
    assert more / sum(1 for _ in read_trace(tmp_path / "t")) < 10e-6


@pytest.mark.slow
async def test_ten_thousand_runs_lose_no_end_and_keep_nothing(tmp_path: Path) -> None:
    count = scaled(2_000, full=10_000)
    async with record(tmp_path / "t") as recording:
        await harness.fan_out(trio.sleep, [0] * count, limit=100)
        recording.flush()
        assert not recording._collected
    started = {line["run_id"] for line in lines_of(tmp_path / "t", "run_started")}
    ended = {line["run_id"] for line in lines_of(tmp_path / "t", "run_ended")}
    assert started == ended
    assert len(started) == count + 1


async def test_the_block_is_entered_once_and_in_trio(tmp_path: Path) -> None:
    recording = record(tmp_path / "t")
    async with recording:
        pass
    with pytest.raises(RuntimeError, match="was already entered"):
        async with recording:
            pass
    with pytest.raises(FileNotFoundError):
        async with record(tmp_path / "no" / "t"):
            pass
    with pytest.raises(TypeError):
        record(7)  # type: ignore[arg-type]


def test_the_lines_are_json_of_one_object_each(tmp_path: Path) -> None:
    async def main() -> None:
        async with record(tmp_path / "t"):
            await harness.fan_out(trio.sleep, [0, 0])

    trio.run(main)
    for line in (tmp_path / "t").read_text().splitlines():
        assert isinstance(json.loads(line), dict)


async def test_a_pool_says_who_made_room_too(tmp_path: Path, autojump_clock: MockClock) -> None:
    pool = ProviderPool([Limiter("a", concurrent=1), Limiter("b", concurrent=1)])

    async def work(item: int) -> None:
        await trio.sleep(item)  # So that they come one after the other.
        async with pool.reserve():
            await trio.sleep(3)

    async with record(tmp_path / "t"):
        await harness.fan_out(work, [0, 1, 2], name="batch")
    wakes = lines_of(tmp_path / "t", "wake")
    assert [line["time"] for line in wakes] == [0, pytest.approx(1), pytest.approx(3)]
    assert [line["places"] for line in wakes] == [1, 1, 1]
    assert wakes[2]["by"] == wakes[0]["run_id"]


async def test_runs_below_one_that_was_there_before_are_recorded(tmp_path: Path) -> None:
    async with harness.open_run("before") as before:
        async with record(tmp_path / "t"):
            await opened("inside", 0)
            await opened("again", 0)
    first, second = lines_of(tmp_path / "t", "run_started")
    assert (first["path"], first["parent"]) == ("before/inside", before.id)
    assert "unix" in first
    assert "unix" not in second
    assert analyse(tmp_path / "t").duration >= 0


async def test_what_is_no_file_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # To open it would wait for a reader.
    for path in (tmp_path / "pipe", tmp_path, Path(os.devnull)):
        with pytest.raises(OSError, match="is no file that a trace can be written to"):
            async with record(path):
                pytest.fail("entered")


@pytest.mark.skipif(sys.platform == "win32", reason="needs the modes of Unix")
async def test_a_trace_and_what_is_made_of_it_are_the_users_alone(tmp_path: Path) -> None:
    """Even in place of a file that others could read."""
    files = [tmp_path / name for name in ("trace", "report", "chrome")]
    for path in files:
        path.write_text("old")
        path.chmod(0o644)
    async with record(files[0]), harness.open_run("root"):
        pass
    write_report(files[0], files[1])
    export_chrome(files[0], files[2])
    assert [oct(path.stat().st_mode & 0o777) for path in files] == ["0o600"] * 3


def test_a_trace_is_not_replaced_by_what_is_made_of_it(tmp_path: Path) -> None:
    trace = tmp_path / "t"
    trace.write_text('{"type":"run_started","time":0,"run_id":"a","path":"a"}\n')
    (tmp_path / "link").symlink_to(trace)
    for make in (write_report, export_chrome):
        for output in (trace, tmp_path / "link"):
            with pytest.raises(ValueError, match="is the trace itself"):
                make(trace, output)
    assert len(list(read_trace(trace))) == 1
