"""A trace of a million runs: what is made of it is made of the first ones, and says so."""

from __future__ import annotations

import heapq
import json
import random
from pathlib import Path

import pytest

from harness.cli import main
from harness.observe import _report_data, _runs, analyse, export_chrome, plan
from harness.observe._report_data import data_of_trace
from tests.scale import FULL

RUNS = 1_000_000 if FULL else 1_000
READ = 200_000 if FULL else 200
FAILS = 97
"""Every so many items fail."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the trace of a fan-out of so many items, less the run around them."""
    path = tmp_path_factory.mktemp("large") / "trace.jsonl"
    draw = random.Random(1)
    ends: list[tuple[float, int]] = []
    with path.open("w") as file:

        def write(kind: str, at: float, run: int, **fields: object) -> None:
            line = {"type": kind, "time": at, "run_id": f"r-{run}", **fields}
            file.write(json.dumps(line) + "\n")

        def begin(run: int, at: float) -> None:
            fields = {"path": f"batch/{run}", "parent": "r-0", "index": run}
            write("run_started", at, run, **fields)
            wait = {"wait": run, "reason": "limiter", "on": "it"}
            write("wait", at, run, **wait)
            granted = {"requests": [1, 1_000_000, 60]}
            write("wake", at, run, **wait, limiter="it", granted=granted, in_flight=1)
            heapq.heappush(ends, (round(at + draw.uniform(1, 3), 9), run))

        write("run_started", 0.0, 0, path="batch")
        for run in range(1, 101):
            begin(run, 0.0)
        at = 0.0
        for run in range(101, RUNS + 100):
            at, ended = heapq.heappop(ends)
            write("release", at, ended, wait=ended)
            fails = {"error": "ValueError", "message": "bad"} if ended % FAILS == 0 else {}
            write("run_ended", at, ended, status="failed" if fails else "ok", **fails)
            if run < RUNS:
                begin(run, at)
        write("run_ended", at, 0, status="ok")
    return path


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_runs, "RUNS_AT_MOST", READ)
    monkeypatch.setattr(_report_data, "RUNS_AT_MOST", READ)


def test_an_analysis_is_of_the_first_runs_and_says_so(trace: Path) -> None:
    found = analyse(trace)
    assert (len(found.runs), found.total_runs) == (READ, RUNS)
    assert found.constraint.startswith(f"in the first {READ:,} of {RUNS:,} runs, the limit of 100")
    assert sum(found.nanoseconds.values()) == round(found.duration * 1e9)
    # What goes on where it is cut is no lost run, nor a wait without an end.
    assert {run.status for run in found.runs.values()} == {"ok", "failed", "running"}
    assert not found.open_waits


def test_a_plan_goes_by_the_first_runs_and_says_so(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = plan(trace, items=RUNS, limit=100)
    assert found.is_trusted, found.doubts
    assert (found.runs, found.total_runs) == (READ, RUNS)
    assert found.seconds == pytest.approx(RUNS / 100 * 2, rel=0.1)
    assert main(["plan", str(trace), "--items", "100", "--limit", "9"]) == 0
    assert f"by the first {READ:,} of {RUNS:,} recorded runs" in capsys.readouterr().out


def test_a_report_counts_all_failures_and_shows_the_first_runs(trace: Path) -> None:
    data = data_of_trace(trace)
    failed = (RUNS - 1) // FAILS
    assert data["failures"]["total"] == failed
    assert data["total_runs"] == RUNS
    assert len(data["runs"]["id"]) == min(READ, _report_data.RUNS_SHOWN)
    assert data["facts"].startswith(f"{RUNS:,} runs ({RUNS - failed:,} ok, {failed:,} failed) in ")
    assert f"everything else is of the {READ:,} that began first" in data["facts"]


def test_an_export_is_named_after_what_is_in_it(trace: Path, tmp_path: Path) -> None:
    export_chrome(trace, tmp_path / "chrome.json")
    with (tmp_path / "chrome.json").open() as file:
        events = json.load(file)["traceEvents"]
    assert events[0]["args"]["name"] == f"harness: the first {READ:,} of {RUNS:,} runs"


def test_a_best_limit_that_may_be_larger_says_so(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a limit on requests, the more at once the better; only so many are tried."""
    plan = ["plan", str(trace), "--items", "5000", "--limit", "9", "--rpm"]
    assert main([*plan, "90000000"]) == 0
    assert "best limit: 1,000 or more" in capsys.readouterr().out
    assert main([*plan, "600"]) == 0
    assert "or more" not in capsys.readouterr().out
