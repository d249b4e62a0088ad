"""``harness journal watch``: what it shows, how often, and when it ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli import _run, main
from harness.cli._watch import follow, lines
from harness.journal import BatchProgress, read_journal

AGENT = """
async def answer(record):
    if record["id"] == "b":
        raise ValueError("no")
    return record["id"]
"""


def progress(**fields: Any) -> BatchProgress:
    known: dict[str, Any] = {
        "name": "batch",
        "state": "running",
        "writer": "process 7 on here, since then",
        "at": 1_000.0,
        "last_record_at": 990.0,
        "items": 300,
        "ok": 190,
        "failed": 10,
        "failures": {"KeyError": 9, "Evil\x1b[2J": 1},
        "in_flight": 64,
        "oldest": (("t1\x1b]0;x\x07", 900.0), (5, 940.0)),
        "per_second": 2.0,
        "attempts": 220,
        "tokens": 1_234,
        "cost_usd": 0.5,
        "expected": None,
        "limits": None,
        "forecast": None,
    }
    return BatchProgress(**(known | fields))


def test_it_tells_pace_failures_what_is_in_flight_and_the_cost() -> None:
    assert lines(progress(), None) == [
        "batch: running (process 7 on here, since then)",
        "200 done, 10 failed, 64 in flight, 2.0/s",
        r"failures: 9 KeyError, 1 Evil\x1b[2J",
        r"in flight longest: t1\x1b]0;x\x07 1:40, 5 1:00",
        "so far: 220 attempts, 1,234 tokens, $0.5000; last record 0:10 ago",
    ]


def test_the_time_left_and_the_limits_are_those_that_the_batch_has_noted() -> None:
    told = lines(progress(expected=320, limits="limits: requests 98%, 24 waiting"), None)
    assert told[1:3] == [
        "200 of 320 done, 10 failed, 64 in flight, 2.0/s, 1:00 left",
        "limits: requests 98%, 24 waiting",
    ]
    assert ", 2:00 left" in lines(progress(expected=320), 440)[1], "what is given wins"
    assert "left" not in lines(progress(expected=320, state="dead"), None)[1]


@pytest.mark.parametrize("end", ["ended", "stopped", "dead"])
def test_it_looks_until_the_batch_is_under_way_no_more(end: str) -> None:
    states = iter(["running", "paused", "running", end])
    shown: list[str] = []
    slept: list[float] = []
    found = follow(
        lambda: progress(state=next(states)),
        lambda told: shown.append(told[0]),
        seconds=3.0,
        expected=None,
        sleep=slept.append,
    )
    assert found.state == end
    assert slept == [3.0] * 3
    assert [words.partition(": ")[2].partition(" ")[0].strip(":") for words in shown] == [
        "running",
        "paused",
        "running",
        end,
    ]


@pytest.fixture
def run_db(clean_imports: Path) -> Path:
    (clean_imports / "agent.py").write_text(AGENT)
    (clean_imports / "in.csv").write_text("id\na\nb\nc\n")
    batch = "batch agent.py:answer --input in.csv --key id --journal run.db --quiet"
    assert main([*batch.split(), "--output", "out.jsonl"]) == 1
    return clean_imports / "run.db"


def test_a_batch_that_is_over_is_told_at_once(
    run_db: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run_db.read_bytes()
    assert main(["journal", "watch", "run.db", "--once"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("batch: ended (process ")
    assert told[1].startswith("3 of 3 done, 1 failed, 0 in flight, ")
    assert told[2] == "failures: 1 ValueError"
    assert told[3].startswith("so far: 3 attempts; last record 0:0")
    assert main(["journal", "watch", "run.db", "--batch", "batch"]) == 1
    assert capsys.readouterr().out.count("\n") == 1, "one line, for a log"
    assert run_db.read_bytes() == before
    assert main(["journal", "watch", "run.db", "--batch", "x"]) == 2
    assert main(["journal", "watch", "missing.db"]) == 2
    with read_journal(run_db) as reader:
        assert reader.progress().expected == 3
        assert len(reader.timings("batch")) == 3, "what the next night is forecast from"


WATCHED = """
import trio
from harness.journal import read_journal

seen = []

async def answer(record):
    if record["id"] == "c":
        with read_journal("run.db") as reader:
            while reader.progress().expected is None:
                await trio.sleep(0.01)
            seen.append(reader.progress())
    return record["id"]
"""


def test_a_batch_leaves_a_note_of_what_its_records_do_not_tell(
    clean_imports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_run, "_OUTLOOK_SECONDS", 0.01)
    (clean_imports / "agent.py").write_text(WATCHED)
    (clean_imports / "in.csv").write_text("id\na\nb\nc\n")
    batch = "batch agent.py:answer --input in.csv --key id --journal run.db --quiet --rpm 6000"
    assert main([*batch.split(), "--output", "out.jsonl"]) == 0
    [found] = sys.modules["agent"].seen
    assert (found.state, found.expected) == ("running", 3)
    assert found.limits.startswith("limits: requests ")
    with read_journal("run.db") as reader:
        assert reader.progress().state == "ended"
