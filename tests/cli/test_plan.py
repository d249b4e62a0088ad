"""``harness batch --trace`` records what ``harness plan`` plans with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.observe import analyse, read_trace

AGENT = """
import trio

async def work(record):
    await trio.sleep(0.01)
    if record == "3":
        raise ValueError("no")
    return record
"""


@pytest.fixture
def recorded(clean_imports: Path) -> Path:
    """Return the trace of a little batch, of which one item fails."""
    (clean_imports / "agent.py").write_text(AGENT)
    (clean_imports / "in.txt").write_text("".join(f"{number}\n" for number in range(8)))
    batch = (
        "batch agent.py:work --input in.txt --output out.jsonl --limit 2 --quiet --trace t.jsonl"
    )
    assert main(batch.split()) == 1
    return clean_imports / "t.jsonl"


@pytest.mark.real_clock
def test_a_batch_is_recorded(recorded: Path) -> None:
    attempts = [line for line in read_trace(recorded) if line["type"] == "attempt"]
    assert [line["status"] for line in attempts].count("failed") == 1
    assert len(attempts) == 8
    analysis = analyse(recorded)
    assert sum(analysis.nanoseconds.values()) == round(analysis.duration * 1e9)


@pytest.mark.real_clock
def test_a_trace_is_no_file_that_is_used_otherwise(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = recorded.read_text()
    batch = "batch agent.py:work --input in.txt --output new.jsonl --trace"
    assert main([*batch.split(), "t.jsonl"]) == 2
    assert "t.jsonl" in capsys.readouterr().err
    assert recorded.read_text() == before
    assert main([*batch.split(), "new.jsonl"]) == 2
    assert "--trace and --output both name 'new.jsonl'" in capsys.readouterr().err
    assert main([*batch.split(), "-"]) == 2
    assert "--trace takes a file" in capsys.readouterr().err
    assert main([*batch.split(), "s.json", "--summary", "s.json"]) == 2
    assert "--summary and --trace both name 's.json'" in capsys.readouterr().err
    assert not (recorded.parent / "new.jsonl").exists()


@pytest.mark.real_clock
def test_a_plan_is_told_in_words_and_as_json(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = f"plan {recorded} --items 1000 --limit 10 --rpm 60"
    status = main(plan.split())
    said = capsys.readouterr()
    assert said.out.startswith("1,000 items, 10 at once: 16:3")
    assert "best limit: " in said.out
    assert "cost" not in said.out
    assert (status == 1) == ("can't be trusted" in said.err)
    assert main([*plan.split(), "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert found["seconds"] == pytest.approx(1_000, rel=0.02)
    assert found["cost"] is None
    assert found["is_trusted"] == (status == 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nothing.jsonl --items 1 --limit 1", "No such file"),
        ("in.txt --items 1 --limit 1", "line 1 is no line of a trace"),
        ("t.jsonl --items 0 --limit 1", "0 is not a whole number from 1 upwards"),
        ("t.jsonl --items 1 --limit x", "x is not a whole number from 1 upwards"),
        ("t.jsonl --items 1 --limit 1 --rpm -1", "-1.0 is not in the range"),
        ("t.jsonl --items 1 --limit 1 --tpm 5", "doesn't tell how many tokens"),
        ("t.jsonl --limit 1", "Missing option '--items'"),
    ],
)
@pytest.mark.real_clock
def test_a_plan_that_can_not_be_made_is_refused(
    arguments: str, words: str, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments.split()]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert not said.out
