"""``harness batch --rpm --tpm --tokens --concurrent``: no more than the provider allows."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from harness.cli import main
from harness.cli._forecast import tokens_of
from harness.cli._limits import as_json, end_text, now_text
from harness.cli._progress import Progressed
from harness.cli._records import Record
from harness.cli._summary import summary_text
from harness.errors import QuotaExhaustedError
from harness.limits import Limiter, current_reservation
from tests.cli.test_run import run

AGENT = """
async def echo(record):
    return record
"""


@pytest.fixture(autouse=True)
def folder(clean_imports: Path) -> Path:
    (clean_imports / "agent.py").write_text(AGENT)
    (clean_imports / "in.csv").write_text("id,size\n1,100\n2,50.5\n3,0\n")
    return clean_imports


def batch(*arguments: str, source: str = "in.csv") -> int:
    return main(["batch", "agent.py:echo", "--input", source, "--output", "out.jsonl", *arguments])


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]


# Keeping them ------------------------------------------------------------------------------------


async def test_no_minute_sees_more_calls_than_allowed(autojump_clock: MockClock) -> None:
    calls: list[float] = []

    async def call(value: int) -> None:
        calls.append(trio.current_time())

    ran = await run(call, list(range(50)), limiter=Limiter("batch", requests_per_minute=20))
    assert ran.report.tally.ok == 50
    for first, last in zip(calls, calls[20:], strict=False):
        assert last - first >= 60
    assert calls[-1] - calls[0] <= 150, "and they are used in full"


async def test_tokens_are_those_of_each_record(autojump_clock: MockClock) -> None:
    limiter = Limiter("batch", tokens_per_minute=600)
    records = [
        Record(index, index + 1, None, str(index), tokens=tokens)
        for index, tokens in enumerate([300, 0, 200, 100])
    ]

    async def call(value: None) -> None:
        await trio.lowlevel.checkpoint()

    ran = await run(call, list(records), limiter=limiter, tokens=tokens_of)
    assert ran.report.limits is not None
    assert ran.report.limits.granted == 4
    assert limiter.statistics().dimensions["tokens"].used == 600


async def test_the_function_may_settle_what_it_used(autojump_clock: MockClock) -> None:
    async def call(value: None) -> None:
        current_reservation().settle(tokens=10)

    limiter = Limiter("batch", tokens_per_minute=600)
    ran = await run(call, [None] * 5, limiter=limiter, tokens=100)
    assert ran.report.limits is not None
    assert ran.report.limits.dimensions["tokens"].used == 50


async def test_calls_at_once_are_bounded_apart_from_items(autojump_clock: MockClock) -> None:
    now, most = 0, 0

    async def call(value: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await trio.sleep(1)
        now -= 1

    ran = await run(call, list(range(12)), limit=12, limiter=Limiter("batch", concurrent=3))
    assert ran.report.tally.ok == 12
    assert most == 3
    assert ran.report.seconds == 4


async def test_what_can_not_be_read_waits_for_nothing(autojump_clock: MockClock) -> None:
    """It fails at once, and takes nobody's place."""
    bad = [Record(n, n + 1, None, None, "not JSON") for n in range(100)]
    limiter = Limiter("batch", requests_per_minute=1)
    ran = await run(trio.sleep, [*bad, 0.0], limiter=limiter)
    assert ran.report.tally.failed == 100
    assert ran.report.seconds == 0
    assert limiter.statistics().granted == 1


async def test_a_timeout_begins_when_the_limits_let_a_call_through(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("batch", requests_per_minute=6)
    ran = await run(trio.sleep, [1.0] * 5, timeout=2, limiter=limiter)
    assert ran.report.tally.ok == 5


async def test_a_refusal_pauses_all_and_spends_no_attempt(autojump_clock: MockClock) -> None:
    refused: list[float] = []

    class TooManyRequests(Exception):
        status_code = 429

    async def call(value: int) -> None:
        if trio.current_time() < began + 5:
            refused.append(trio.current_time())
            raise TooManyRequests

    began = trio.current_time()
    limiter = Limiter("batch", requests_per_minute=6_000)
    ran = await run(call, list(range(100)), attempts=2, limiter=limiter)
    assert ran.report.tally.ok == 100
    assert len(refused) < 300
    limits = ran.report.limits
    assert limits is not None
    assert limits.rate_limited == len(refused)
    assert f"{len(refused):,} refused, " in summary_text(ran.report, output="out.jsonl")


async def test_a_quota_that_is_used_up_is_not_tried_again(autojump_clock: MockClock) -> None:
    """Each item would otherwise sleep before each of its attempts."""

    async def call(value: int) -> None:
        current_reservation().settle(
            status=429, body={"error": {"message": "limit of 50 requests per day reached"}}
        )
        raise QuotaExhaustedError("50 a day")

    limiter = Limiter("batch", requests_per_minute=6_000, concurrent=1)
    ran = await run(call, list(range(20)), attempts=5, limiter=limiter)
    assert ran.report.tally.error_kinds == {"QuotaExhaustedError": 20}
    assert ran.report.seconds < 1
    assert limiter.statistics().granted == 1


async def test_an_interruption_says_how_many_wait(autojump_clock: MockClock) -> None:
    """They may still run within the grace, so nobody should wonder what goes on."""

    started: list[int] = []

    async def call(value: int) -> None:
        started.append(value)
        await trio.sleep(0.5)
        if len(started) == 1:
            signal.raise_signal(signal.SIGINT)
            await trio.sleep(0.4)

    limiter = Limiter("batch", requests_per_minute=60)
    ran = await run(call, list(range(9)), limiter=limiter, grace=3.5)
    assert "1 in flight and 8 that wait for the limits may finish within 3.5 s" in ran.said[0]
    assert set(ran.column("status")) == {"ok", "cancelled"}
    assert len(ran.lines) == 9


# Saying so ---------------------------------------------------------------------------------------


async def test_progress_tells_use_and_waits(autojump_clock: MockClock) -> None:
    limiter = Limiter("batch", requests_per_minute=600, tokens_per_minute=1_000)

    async def call() -> None:
        async with limiter.reserve(tokens=100):
            pass

    async with trio.open_nursery() as nursery:
        for _ in range(13):
            nursery.start_soon(call)
        await trio.sleep(57.1)
        limiter.pause(30)
        limits = limiter.statistics()
        progressed = Progressed(
            done=10,
            failed=0,
            in_flight=0,
            expected=13,
            certain=True,
            per_second=0.0,
            limits=limits,
        )
        line = str(progressed)
    assert line.startswith("10 of 13 done, 0 failed, 0 in flight, 0/min; limits: requests 2%, ")
    assert "tokens 100%, 3 waiting, paused for 3" in line
    assert "paused" not in now_text(limiter.statistics())


async def test_a_summary_tells_use_and_waits(autojump_clock: MockClock) -> None:
    limiter = Limiter("batch", requests_per_minute=60, concurrent=50)
    ran = await run(trio.sleep, [0.0] * 31, limiter=limiter)
    said = summary_text(ran.report, output="out.jsonl")
    assert "\nlimits: requests 52% of 60 in the last minute; 30 of 31 calls waited, 15.5 s" in said
    assert ran.report.limits is not None
    assert as_json(ran.report.limits) == {
        "requests": {
            "limit": 60,
            "period_seconds": 60,
            "used": 31,
            "use": pytest.approx(31 / 60, abs=1e-6),
        },
        "concurrent": 50,
        "granted": 31,
        "waits": 30,
        "waited_seconds": pytest.approx(465),
        "pauses": 0,
        "rate_limited": 0,
    }


@pytest.mark.slow
async def test_a_summary_tells_which_limit_binds(autojump_clock: MockClock) -> None:
    """It was raised again and again, and nothing became faster."""
    limiter = Limiter("batch", requests_per_minute=500, tokens_per_minute=100_000)
    ran = await run(trio.sleep, [7.9] * 100, limiter=limiter, tokens=1_200, limit=100)
    words = "tokens bind: 83 a minute, 11 in flight are enough; --limit 100 changes nothing"
    assert ran.report.feasible == words
    assert f"\n  {words}\n" in summary_text(ran.report, output="out.jsonl")


def test_a_batch_without_waits_says_that() -> None:
    assert end_text(Limiter("batch", concurrent=1).statistics()) == "limits: no call waited"


def test_the_summary_file_has_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--rpm", "6000", "--tpm", "10000", "--tokens", "size", "--concurrent", "2"]
    assert batch(*arguments, "--summary", "sum.json") == 0
    limits = json.loads(Path("sum.json").read_text())["limits"]
    assert (limits["requests"]["used"], limits["requests"]["limit"]) == (3, 6_000)
    assert (limits["tokens"]["used"], limits["tokens"]["limit"]) == (151, 10_000)
    assert limits["concurrent"] == 2
    said = capsys.readouterr().err
    assert "limits: requests 0% of 6,000, tokens 2% of 10,000 in the last minute" in said


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock and shared memory")
def test_batches_that_name_a_file_share_their_limits(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--rpm", "6000", "--fleet", "limits", "--overwrite", "--summary", "sum.json"]
    assert batch(*arguments) == 0
    assert batch(*arguments) == 0
    assert json.loads(Path("sum.json").read_text())["limits"]["requests"]["used"] == 6
    assert batch(*arguments, "--dry-run") == 0
    assert "6,000 calls a minute, shared through limits" in capsys.readouterr().out
    Path("limits").write_text("something else")
    assert batch(*arguments) == 2
    said = capsys.readouterr().err
    said = " ".join(said.split())
    assert "can't share the limits: " in said
    assert "isn't the file of a limiter" in said


def test_a_server_for_limits_is_named_without_its_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--rpm", "6000", "--fleet", "redis://me:secret@127.0.0.1:1#account"]
    assert batch(*arguments, "--dry-run") == 0
    assert batch(*arguments) == 2
    assert batch(*arguments[2:]) == 2
    said = capsys.readouterr()
    assert "shared through redis://" in said.out
    assert "shares limits, and none is given" in said.err
    assert "can't share the limits: Redis can't be used at redis://127.0.0.1:1: " in said.err
    assert "without --fleet the batch starts" in " ".join(said.err.split())
    assert "on_unreachable" not in said.err
    assert "secret" not in said.out + said.err
    assert batch("--rpm", "6000", "--fleet", "http://host") == 2
    assert "must be the path of a file" in " ".join(capsys.readouterr().err.split())


def test_the_dry_run_tells_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--rpm", "500", "--tpm", "100000", "--tokens", "1200", "--concurrent", "8"]
    assert batch(*arguments, "--dry-run") == 0
    words = "500 calls a minute, 100,000 tokens a minute, 1,200 for each, 8 calls at once"
    said = capsys.readouterr().out
    assert words in said
    assert "\n  limits  tokens bind: 83 a minute\n" in said
    assert batch("--tpm", "1000", "--tokens", "size", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "1,000 tokens a minute, for each what 'size' says" in said
    assert "\n  limits  tokens bind: 19 a minute\n" in said
    assert batch("--concurrent", "3", "--dry-run") == 0
    assert "bind" not in capsys.readouterr().out


LONG_WAIT = "warning: a record takes 100 tokens and --tpm allows 50: each waits for an empty minute"


@pytest.mark.parametrize("tokens", ["100", "size"])
def test_a_record_that_no_minute_has_room_for_is_warned_of(
    tokens: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch("--tpm", "50", "--tokens", tokens, "--dry-run") == 0
    assert LONG_WAIT in capsys.readouterr().out.splitlines()
    assert batch("--tpm", "50", "--tokens", tokens, "--first", "1") == 0
    assert capsys.readouterr().err.splitlines()[0] == LONG_WAIT
    assert batch("--tpm", "50", "--tokens", "100", "--first", "1", "--overwrite", "--quiet") == 0
    assert capsys.readouterr().err == ""
    assert batch("--tpm", "100", "--tokens", tokens, "--dry-run", "--overwrite") == 0
    assert "warning" not in capsys.readouterr().out


async def test_many_such_records_are_warned_of_once(autojump_clock: MockClock) -> None:
    limiter = Limiter("batch", tokens_per_minute=50)
    ran = await run(trio.sleep, [0.0] * 3, limiter=limiter, tokens=100, tokens_per_minute=50)
    assert ran.said == [LONG_WAIT]
    assert ran.report.tally.ok == 3


# Wrong usage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tpm", "1000"], "--tpm 1000 needs --tokens: say how many"),
        (["--tokens", "10"], "--tokens 10 says what a record takes of --tpm, which is not given"),
        (["--rpm", "0"], "0 is not a whole number from 1 upwards; say how many calls"),
        (["--rpm", "many"], "many is not a whole number"),
        (["--fleet", "f"], "--fleet f shares limits, and none is given; add --rpm, --tpm or"),
        (["--tpm", "-5", "--tokens", "1"], "-5 is not a whole number"),
        (["--concurrent", "1.5"], "1.5 is not a whole number"),
        (["--tpm", "5", "--tokens", "0"], "0 is not a whole number from 1 upwards; say how many"),
        (["--tpm", "5", "--tokens", "1.5"], "or name the field that does"),
        (["--tpm", "5", "--tokens", "inf"], "or name the field that does"),
        (["--tpm", "5", "--tokens", "n", "--format", "lines"], "plain lines have none"),
        (["--tpm", "5", "--tokens", "Size"], "'Size' are missing; the record's fields are 'id'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch(*arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("out.jsonl").exists() or not lines()


@pytest.mark.parametrize("value", ["", "many", "-1", "nan", "inf"])
def test_a_record_without_a_number_there_is_refused_by_its_line(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.csv").write_text(f"id,size\n1,1\n2,{value}\n")
    assert batch("--tpm", "1000", "--tokens", "size", source="bad.csv") == 2
    said = capsys.readouterr().err
    assert f"bad.csv, line 3: the tokens 'size' are {value!r}; tokens are a number from 0" in said


def test_records_that_are_no_objects_have_no_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.jsonl").write_text("[1]\n")
    assert batch("--tpm", "1000", "--tokens", "size", source="bad.jsonl") == 2
    assert "no JSON object, so it has no field 'size'" in capsys.readouterr().err


def test_a_record_that_can_not_be_read_needs_no_tokens() -> None:
    Path("bad.jsonl").write_text('{"size": 5}\n{oops\n')
    assert batch("--tpm", "60", "--tokens", "size", "--skip-bad", source="bad.jsonl") == 1
    assert sorted(line["status"] for line in lines()) == ["failed", "ok"]


BESIDE = """
import os, sys, trio

async def call(record):
    if record == "inner":
        return record
    command = [sys.executable, "-m", "harness", "batch", "beside.py:call", "--input", "inner.txt"]
    ran = await trio.run_process(
        [*command, "--output", "inner.jsonl", "--overwrite", "--rpm", "600"],
        capture_stderr=True,
    )
    return ran.stderr.decode()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="nobody is told there")
def test_two_batches_that_each_keep_the_whole_limit_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three side by side made 188 requests a minute on a key of 60, and nobody said a word."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    Path("beside.py").write_text(BESIDE)
    Path("outer.txt").write_text("outer\n")
    Path("inner.txt").write_text("inner\n")
    outer = ["batch", "beside.py:call", "--input", "outer.txt", "--output", "out.jsonl"]
    assert main([*outer, "--rpm", "600"]) == 0
    [line] = lines()
    assert f"warning: process {os.getpid()} runs beside.py:call, too" in line["value"]
    assert "warning" not in capsys.readouterr().err, "the first was alone when it began"
    gc.collect()  # A batch's claim ends with its process, and this process goes on.
    assert main([*outer, "--overwrite"]) == 0
    assert "runs beside.py:call, too" not in lines()[0]["value"], "it has no limits to share"
