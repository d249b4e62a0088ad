"""``harness batch --priority`` and ``--hedge``: the urgent first, and a second try for the late."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from harness.cli import main
from harness.policies import Hedge
from tests.cli.test_run import run

AGENT = """
import trio

started = []

async def note(record):
    started.append(record["id"])
    record["id"] = "changed"

async def slow_once(record):
    started.append(record["id"])
    if started.count(record["id"]) == 1:
        record["id"] += " (late)"
        await trio.sleep_forever()
    return record["id"]
"""

ROWS: list[tuple[int, float | str]] = [(1, 2), (2, 9), (3, 0), (4, 9), (5, "-1.5"), (6, 3)]


@pytest.fixture(autouse=True)
def folder(clean_imports: Path) -> Path:
    (clean_imports / "agent.py").write_text(AGENT)
    rows = "".join(f"{name},{urgency}\n" for name, urgency in ROWS)
    (clean_imports / "in.csv").write_text(f"id,urgency\n{rows}")
    records = [json.dumps({"id": name, "urgency": float(urgency)}) for name, urgency in ROWS]
    (clean_imports / "in.jsonl").write_text("\n".join(records))
    return clean_imports


def batch(*arguments: str, target: str = "note", source: str = "in.csv") -> int:
    return main(
        ["batch", f"agent.py:{target}", "--input", source, "--output", "out.jsonl", *arguments]
    )


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]


# Priority ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["in.csv", "in.jsonl"])
def test_the_most_urgent_records_are_first(source: str) -> None:
    """CSV has text only; what is in it counts as a number, not by the alphabet."""
    assert batch("--priority", "urgency", "--limit", "1", "--key", "id", source=source) == 0
    assert [line["key"] for line in lines()] == ["2", "4", "6", "1", "3", "5"]
    assert [line["index"] for line in lines()] == [1, 3, 5, 0, 2, 4]


def test_a_record_without_a_number_there_is_refused_by_its_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for value in ("", "high", "nan"):
        Path("bad.csv").write_text(f"id,urgency\n1,1\n2,{value}\n")
        assert batch("--priority", "urgency", "--overwrite", source="bad.csv") == 2
        said = capsys.readouterr().err
        assert f"bad.csv, line 3: the priority 'urgency' is {value!r}; a priority is" in said
    assert batch("--priority", "Urgency", "--overwrite") == 2
    said = capsys.readouterr().err
    assert "'Urgency' is missing; the record's fields are 'id', 'urgency'" in said
    Path("bad.jsonl").write_text("[1]\n")
    assert batch("--priority", "urgency", "--overwrite", source="bad.jsonl") == 2
    assert "no JSON object" in capsys.readouterr().err


def test_a_record_that_can_not_be_read_needs_no_priority() -> None:
    Path("bad.jsonl").write_text('{"id": 1, "urgency": 5}\n{oops\n')
    arguments = ["--priority", "urgency", "--skip-bad", "--limit", "1"]
    assert batch(*arguments, source="bad.jsonl") == 1
    assert [line["status"] for line in lines()] == ["failed", "ok"]


def test_what_does_not_go_with_priorities_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("--priority", "urgency", "--ordered") == 2
    assert "--ordered and --priority don't go together" in capsys.readouterr().err
    assert batch("--priority", "urgency", "--format", "lines") == 2
    assert "plain lines have none" in capsys.readouterr().err
    assert not Path("out.jsonl").exists()


def test_the_choice_in_a_file_is_not_among_what_one_read_gives() -> None:
    """Long records are read a few at a time; the urgent one may be in the last read."""
    long = "x" * 50_000
    records = [json.dumps({"id": n, "urgency": n, "text": long}) for n in range(1, 21)]
    Path("in.jsonl").write_text("\n".join(records))
    assert batch("--priority", "urgency", "--limit", "1", "--key", "id", source="in.jsonl") == 0
    assert [line["key"] for line in lines()] == [str(n) for n in range(20, 0, -1)]


# Hedge -------------------------------------------------------------------------------------------


def test_a_late_record_gets_a_second_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    """On its own copy of the record: what the first attempt did to it is not seen."""
    assert batch("--hedge", "0.01", "--summary", "sum.json", target="slow_once") == 0
    assert {line["value"] for line in lines()} == {"1", "2", "3", "4", "5", "6"}
    assert {line["attempts"] for line in lines()} == {2}
    assert "hedges: 6, of which 6 answered first, saving about " in capsys.readouterr().err
    summary = json.loads(Path("sum.json").read_text())
    assert (summary["hedges"], summary["hedges_won"]) == (6, 6)
    assert summary["hedge_seconds_saved"] >= 0


async def test_a_percentile_is_learned_from_the_batch(autojump_clock: MockClock) -> None:
    calls: list[int] = []

    async def body(value: int) -> int:
        calls.append(value)
        await trio.sleep(math.inf if value == 30 and calls.count(30) == 1 else 1 + value % 10 / 100)
        return value

    ran = await run(body, list(range(40)), limit=5, hedge=Hedge(percentile=0.95))
    assert ran.report.tally.ok == 40
    assert calls.count(30) == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("2.5", "a second attempt after 2.5 s"),
        ("p95", "a second attempt for the slowest 5 %"),
        ("P99.9", "a second attempt for the slowest 0.1 %"),
    ],
)
def test_the_dry_run_says_what_is_late(
    given: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch("--hedge", given, "--priority", "urgency", "--dry-run") == 0
    said = capsys.readouterr().out
    assert words in said
    assert "the largest urgency first" in said


@pytest.mark.parametrize(
    "wrong", ["0", "-1", "soon", "p", "p0", "p100", "p-5", "nan", "inf", "p95%"]
)
def test_what_is_no_hedge_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("--hedge", wrong) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{wrong} is neither a number of seconds above 0" in said
    assert not Path("out.jsonl").exists()
