"""``harness verify``: a finished batch, a sample of which is run again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main

AGENT = """
import os
import random

from harness.agents import Agent
from harness.models import ScriptedModel

seen = []

async def leaks(record):
    seen.append(record["text"])
    return {"first": seen[0], "text": record["text"]}

async def chatty(record):
    print("printed")
    return record

async def upper(record):
    return {"text": record["text"].upper(), "n": 1}

async def varies(record):
    return random.SystemRandom().random()

async def fails_at_two(record):
    if record["id"] == "2" or os.path.exists("broken"):
        raise ValueError("two")
    return record["id"]

async def forgets(record):
    return upper(record)

def near(recorded, again):
    return abs(recorded - again) <= 1

async def waits(one, other):
    return True

agent = Agent("desk", model=ScriptedModel(["no idea"]))
"""

RECORDS = [{"id": str(n), "text": f"t{n}"} for n in range(6)]


@pytest.fixture(autouse=True)
def folder(clean_imports: Path) -> Path:
    (clean_imports / "agent.py").write_text(AGENT)
    write(RECORDS)
    return clean_imports


def write(records: list[dict[str, Any]]) -> None:
    Path("in.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))


COMMON = ("--input", "in.jsonl", "--key", "id", "--quiet")


def batch(target: str, *arguments: str) -> None:
    main(["batch", f"agent.py:{target}", "--output", "out.jsonl", *COMMON, *arguments])


def verify(target: str, *arguments: str, results: str = "out.jsonl") -> int:
    return main(["verify", results, "--target", f"agent.py:{target}", *COMMON, *arguments])


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_a_right_batch_is_found_right(capsys: pytest.CaptureFixture[str]) -> None:
    batch("upper")
    assert verify("upper", "--sample", "3") == 0
    assert lines(capsys) == [
        "0 of 3 differ: fewer than 67 % of the 6 are suspect (3 at most), with 95 % confidence",
        "drawn with seed 0",
    ]


@pytest.mark.slow
def test_a_leak_is_told_field_by_field(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the first item has what it has alone."""
    batch("leaks", "--limit", "1")
    assert verify("leaks") == 1
    found = lines(capsys)
    assert found[:2] == [
        "5 of 6 differ, and that is all of them",
        "5 items ended differently alone, in the same way each time:",
    ]
    assert found[2] == "  1: .first: 't0' in the batch, 't1' alone"


@pytest.mark.slow
def test_everything_is_there_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    batch("leaks", "--limit", "1")
    assert verify("leaks", "--json", "--sample", "6") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["sample"], found["differ"], found["vary"]) == (6, 5, 0)
    assert found["estimates"] == [
        {"status": "ok", "population": 6, "decided": 6, "differ": 5, "least": 5, "most": 5}
    ]
    assert found["items"][0] == {
        "key": "1",
        "status": "ok",
        "verdict": "differs",
        "runs": 2,
        "differences": [{"path": ".first", "recorded": "t0", "alone": "t1"}],
    }


@pytest.mark.slow
def test_a_model_that_varies_needs_a_comparer(capsys: pytest.CaptureFixture[str]) -> None:
    batch("varies")
    assert verify("varies") == 2
    told = capsys.readouterr()
    assert "6 items came out differently each time alone" in told.out
    assert "compare with --compare module:function" in told.err
    assert verify("varies", "--compare", "agent.py:near") == 0
    assert verify("varies", "--compare", "agent.py:waits") == 2
    assert "is not a plain function" in capsys.readouterr().err


@pytest.mark.slow
def test_if_all_fail_alone_it_can_not_be_verified(capsys: pytest.CaptureFixture[str]) -> None:
    batch("fails_at_two")
    Path("broken").touch()
    assert verify("fails_at_two") == 2
    assert "all of them failed alone" in capsys.readouterr().err


@pytest.mark.slow
def test_failed_missing_and_repeated_items_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    batch("fails_at_two", "--ordered")
    out = Path("out.jsonl").read_text().splitlines(keepends=True)
    Path("out.jsonl").write_text("".join([*out[:5], out[0]]))
    write([*RECORDS[1:], {"id": "new", "text": "?"}])
    assert verify("fails_at_two") == 0
    assert lines(capsys)[1:-1] == [
        "not verified, because they are not ok: 1 failed",
        "results with the key of an earlier one, which counts alone: 1",
        "the input was changed after the results were written, and these don't tell of which "
        "records they are; a journal does",
        "records without a result, so not verified: 2 (5, new)",
        "results without a record, so not verified: 1",
    ]


@pytest.mark.slow
def test_failed_items_are_verified_with_stratify(capsys: pytest.CaptureFixture[str]) -> None:
    batch("fails_at_two")
    assert verify("fails_at_two", "--stratify") == 0
    assert lines(capsys)[:2] == [
        "0 of 5 differ, and that is all of them",
        "0 of 1 differ, and that is all of them",
    ]


@pytest.mark.slow
def test_a_journal_tells_which_records_have_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """Else an answer to another question would be taken for a wrong answer."""
    batch("upper", "--journal", "run.db")
    write([{"id": "0", "text": "another"}, *RECORDS[1:]])
    assert verify("upper", results="run.db") == 0
    assert lines(capsys)[0] == (
        "0 of 5 differ: fewer than 34 % of the 6 are suspect (1 at most), with 95 % confidence"
    )
    assert verify("upper", results="run.db") == 0
    assert "records of the sample that have changed, so not compared: 1 (0)" in lines(capsys)
    assert verify("upper", "--batch", "other", results="run.db") == 2
    assert "the journal has no batch 'other'; it has 'batch'" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_printed_is_kept_out_of_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    batch("chatty")
    capfd.readouterr()
    assert verify("chatty", "--json") == 0
    told = capfd.readouterr()
    assert json.loads(told.out)["differ"] == 0
    assert "printed" in told.err


@pytest.mark.slow
def test_an_agent_is_verified_with_its_prompt_and_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--prompt", "text", "--model", "sim")
    batch("agent", *options)
    assert verify("agent", *options, "--rpm", "6000") == 0
    assert lines(capsys)[0] == "0 of 6 differ, and that is all of them"
    assert verify("agent", *options, "--tpm", "100") == 2
    assert "is for functions" in capsys.readouterr().err


@pytest.mark.slow
def test_recorded_replies_make_a_varying_model_comparable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("taped.py").write_text(
        "import random\n"
        "from harness.agents import Agent\n"
        "from harness.models import FunctionModel, ModelResponse, RecordedModel\n"
        "def draw(request):\n"
        "    return ModelResponse(str(random.SystemRandom().random()))\n"
        "agent = Agent('dice', model=RecordedModel('tape.jsonl', FunctionModel(draw)))\n"
    )
    common = (*COMMON, "--prompt", "text")
    assert main(["batch", "taped.py:agent", "--output", "out.jsonl", *common]) == 0
    assert main(["verify", "out.jsonl", "--target", "taped.py:agent", *common]) == 0
    assert lines(capsys)[0] == "0 of 6 differ, and that is all of them"


def test_what_can_not_be_verified_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    batch("upper")
    for arguments, words in (
        (["--key", "text"], "no record of 'in.jsonl' has the key of a result"),
        (["--sample", "0"], "is not a whole number from 1 upwards"),
        (["--tpm", "9"], "needs --tokens"),
        (["--compare", "agent.py:nothing"], "has no 'nothing'"),
        (["--compare", "nothing"], "names no function"),
    ):
        assert verify("upper", *arguments) == 2
        assert words in capsys.readouterr().err
    assert verify("upper", results="in.jsonl") == 2
    assert "is not a result of harness batch" in capsys.readouterr().err
    assert verify("upper", results="nothing.jsonl") == 2
    assert "is not there" in capsys.readouterr().err
    assert verify("nothing") == 2


def test_a_system_without_fork_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch("upper")
    monkeypatch.delattr(os, "fork")
    assert verify("upper") == 2
    assert "which this system lacks" in capsys.readouterr().err


@pytest.mark.slow
def test_a_forgotten_await_is_named_as_from_python(capfd: pytest.CaptureFixture[str]) -> None:
    write(RECORDS[:1])
    batch("upper")
    assert verify("forgets") == 2
    told = capfd.readouterr()
    words = "forgets() returned the coroutine upper(), which nobody awaited; write `return await"
    assert words in told.out
    assert "RuntimeWarning" not in told.err
