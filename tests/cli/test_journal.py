"""``harness batch --journal`` from the command line to the exit status, in this process."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import errno
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

import harness
from harness.cli import main
from harness.cli._output import Output, claimed
from harness.cli._shown import shown_path
from harness.journal import _inspect, _schema, open_journal, read_journal
from tests.support.permissions import as_somebody, needs_permissions

AGENT = """
from harness.budgets import reserve_budget

calls = []
broken = {"2"}

async def echo(record):
    calls.append(record["id"])
    if record["id"] in broken:
        raise ValueError("two")
    return {"of": record["id"]}

async def other(record):
    return record["id"]

async def spends(record):
    with reserve_budget(tokens=10) as spending:
        spending.settle(tokens=10, cost_usd=0.25)
    calls.append(record["id"])
    return record["id"]

async def goes(record):
    import os
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
    return record["id"]

async def line(text):
    calls.append(text)
    return text
"""

CSV = "id,text\n1,one\n2,two\n3,three\n"


@pytest.fixture(autouse=True)
def folder(clean_imports: Path) -> Path:
    (clean_imports / "agent.py").write_text(AGENT)
    (clean_imports / "in.csv").write_text(CSV)
    return clean_imports


def batch(*arguments: str, target: str = "echo", source: str = "in.csv") -> int:
    sys.modules.pop("agent", None)  # Each session is another process, so to say.
    key = [] if "--key" in arguments or not source.endswith(".csv") else ["--key", "id"]
    words = ["batch", f"agent.py:{target}", "--input", source, "--output", "out.jsonl", *key]
    status = main([*words, "--journal", "run.db", *arguments])
    calls().sort()
    return status


def lines() -> list[dict[str, Any]]:
    found = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    return sorted(found, key=lambda line: line["index"])


def calls() -> list[Any]:
    """Return for which records the latest batch called its function."""
    found: list[Any] = getattr(sys.modules.get("agent"), "calls", [])
    return found


def without_seconds(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in found]


# Resume -------------------------------------------------------------------------------------------


def test_a_batch_is_not_run_twice_by_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch() == 1
    before = Path("out.jsonl").read_bytes()
    assert batch("--overwrite") == 2
    assert "the journal 'run.db' already has 3 items of this batch (2 ok, 1 failed)" in (
        said := capsys.readouterr().err
    )
    assert "add --resume to go on with it" in said
    assert calls() == []
    assert Path("out.jsonl").read_bytes() == before


def test_a_resumed_batch_runs_what_is_not_done_and_writes_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert batch("--first", "2") == 1
    first = lines()
    capsys.readouterr()
    assert batch("--resume") == 1
    assert calls() == ["3"]
    assert lines()[:2] == first, "with times and attempts, and the error in the same words"
    assert [line["status"] for line in lines()] == ["ok", "failed", "ok"]
    said = capsys.readouterr().err
    assert "3 items (2 of them from the journal) in " in said
    assert "errors: 1 ValueError\n  2: ValueError: two\n" in said
    assert "in all: 3 items (2 ok, 1 failed), 3 attempts, " in said
    assert " in 2 sessions\n" in said
    assert os.listdir() == [name for name in os.listdir() if not name.endswith(".part")]
    assert batch("--resume") == 1
    said = capsys.readouterr().err
    assert re.search(r"3 items \(3 of them from the journal\) in \S+ s: 2 ok", said), "no pace"


def test_shuffled_appended_and_changed_records(folder: Path) -> None:
    batch()
    (folder / "in.csv").write_text("id,text\n4,four\n3,three\n2,two\n1,ONE\n")
    assert batch("--resume") == 1
    assert calls() == ["1", "4"]
    assert [(line["key"], line["index"]) for line in lines()] == [
        ("4", 0),
        ("3", 1),
        ("2", 2),
        ("1", 3),
    ]


def test_failed_records_are_kept_or_tried_again() -> None:
    batch()
    assert batch("--resume") == 1
    assert calls() == []
    assert batch("--resume", "--retry-failed") == 1
    assert calls() == ["2"]
    assert lines()[1]["attempts"] == 2


def test_the_output_of_a_resumed_batch_may_be_gone_or_standard_output(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    batch("--quiet")
    Path("out.jsonl").unlink()
    assert batch("--resume", "--quiet") == 1
    assert len(lines()) == 3
    capfdbinary.readouterr()
    source = ["batch", "agent.py:echo", "--input", "in.csv", "--key", "id", "--ordered"]
    assert main([*source, "--journal", "run.db", "--resume", "--output", "-", "--quiet"]) == 1
    out = capfdbinary.readouterr().out.splitlines()
    assert [json.loads(line)["key"] for line in out] == ["1", "2", "3"]


def test_an_agent_may_change_the_working_directory(folder: Path) -> None:
    """Seen first as a resumed batch that ended well, with its output left beside the old one."""
    assert batch("--first", "1", target="goes") == 0
    assert batch("--resume", "--summary", "sum.json", "--limit", "1", target="goes") == 0
    assert Path.cwd() == folder
    assert len(Path("out.jsonl").read_text().splitlines()) == 3
    assert not Path("out.jsonl.part").exists()
    assert json.loads(Path("sum.json").read_text())["items"] == 3


def mixed_with_new(folder: Path, *done: str, of: int = 40) -> list[str]:
    """Run a session of the records ``done``, and put others around them into the input."""
    (folder / "in.csv").write_text("id,text\n" + "".join(f"{one},x\n" for one in done))
    assert batch("--quiet") == int("2" in done)
    (folder / "in.csv").write_text("id,text\n" + "".join(f"{n},x\n" for n in range(of)))
    return [str(n) for n in range(of) if str(n) in done]


def test_what_the_journal_has_comes_first_and_in_the_order_of_the_input(folder: Path) -> None:
    kept = mixed_with_new(folder, "39", "20", "2", "7", "31")
    assert batch("--resume", "--limit", "3") == 1
    keys = [json.loads(line)["key"] for line in Path("out.jsonl").read_text().splitlines()]
    assert keys[:5] == kept == ["2", "7", "20", "31", "39"]
    assert sorted(keys[5:]) == sorted(calls())
    assert len(keys) == 40
    left = {name for name in os.listdir() if not name.startswith(("run.db", "__"))}
    assert left == {"agent.py", "in.csv", "out.jsonl"}


@pytest.mark.slow
def test_new_lines_follow_as_their_items_end(folder: Path) -> None:
    """Also those that ended while the journal's were still being written."""
    # Each ends after the one with the next number; the last is in the journal.
    (folder / "agent.py").write_text(
        "import trio\n"
        "over = {number: trio.Event() for number in range(4)}\n"
        "async def nap(record):\n"
        "    number = int(record['id'])\n"
        "    if number < 2:\n"
        "        await over[number + 1].wait()\n"
        "    over[number].set()\n"
    )
    (folder / "in.csv").write_text("id,text\n3,x\n")
    batch("--quiet", target="nap")
    (folder / "in.csv").write_text("id,text\n0,x\n1,x\n2,x\n3,x\n")
    assert batch("--resume", target="nap") == 0
    keys = [json.loads(line)["key"] for line in Path("out.jsonl").read_text().splitlines()]
    assert keys == ["3", "2", "1", "0"]


def test_in_order_means_all_of_the_output(folder: Path) -> None:
    mixed_with_new(folder, "39", "20", "2")
    assert batch("--resume", "--ordered") == 1
    keys = [json.loads(line)["key"] for line in Path("out.jsonl").read_text().splitlines()]
    assert keys == [str(n) for n in range(40)]


def test_standard_output_has_what_the_journal_has_first(
    capfdbinary: pytest.CaptureFixture[bytes], folder: Path
) -> None:
    kept = mixed_with_new(folder, "39", "7", "20")
    capfdbinary.readouterr()
    assert batch("--resume", "--limit", "3", "--output", "-") == 1
    out = [json.loads(line)["key"] for line in capfdbinary.readouterr().out.splitlines()]
    assert out[:3] == kept
    assert sorted(out) == sorted(str(n) for n in range(40))


def test_a_record_that_is_set_aside_now_is_none_of_those_kept(folder: Path) -> None:
    """It has no run either. Its line comes once it is on disk, after later ones that are read."""
    kept = mixed_with_new(folder, "2", "30", "39")
    assert batch("--resume", "--retry-failed", "--max-attempts", "1") == 1
    found = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [line["key"] for line in found[:2]] == kept[1:]
    [aside] = [line for line in found[2:] if line["key"] == "2"]
    assert aside["error"].startswith("SetAside: ")


@pytest.mark.skipif(os.name != "posix", reason="about links and modes of POSIX")
def test_a_resumed_batch_replaces_the_file_itself_and_keeps_its_mode(folder: Path) -> None:
    """A link was replaced by a file, and a file that nobody else could read by one that all can."""
    (folder / "private").mkdir()
    (folder / "private" / "results").touch(0o600)
    Path("out.jsonl").symlink_to("private/results")
    assert batch("--first", "1", "--overwrite") == 0
    Path("sum.json").symlink_to("private/summary")
    assert batch("--resume", "--summary", "sum.json") == 1
    assert Path("out.jsonl").is_symlink()
    assert Path("sum.json").is_symlink()
    assert len(lines()) == 3
    assert sorted(os.listdir("private")) == ["results", "summary"]
    assert Path("private/results").stat().st_mode & 0o777 == 0o600


def test_a_batch_that_is_cut_short_keeps_an_output_that_has_more(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seen first as results that were lost from an output: the input wasn't read to where they
    stand, and what had been written by then took the place of all."""
    mixed_with_new(folder, *map(str, range(600, 1_000)), of=1_000)
    before = Path("out.jsonl").read_bytes()
    capsys.readouterr()
    assert batch("--resume", "--policy", "fail-fast", "--limit", "1") == 1
    assert Path("out.jsonl").read_bytes() == before
    assert "results: run.db has them; out.jsonl is written when " in capsys.readouterr().err
    assert not Path("out.jsonl.part").exists()


def test_a_batch_that_is_cut_short_after_all_that_the_journal_has(folder: Path) -> None:
    mixed_with_new(folder, "0", of=1_000)
    assert batch("--resume", "--policy", "fail-fast", "--limit", "1") == 1
    found = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [line["status"] for line in found[:3]] == ["ok", "ok", "failed"]


def test_resume_may_be_given_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """So a supervisor can always give it."""
    assert batch("--resume") == 1
    assert calls() == ["1", "2", "3"]
    assert len(lines()) == 3


def test_a_set_aside_record_fails_with_that_reason(capsys: pytest.CaptureFixture[str]) -> None:
    batch()
    assert batch("--resume", "--retry-failed", "--max-attempts", "1") == 1
    [failed] = [line for line in lines() if line["status"] == "failed"]
    assert failed["error"].startswith("SetAside: item '2' is set aside: it was tried once")
    assert failed["attempts"] == 1


def test_records_that_cannot_be_read_are_known_again(folder: Path) -> None:
    (folder / "in.jsonl").write_text('{"id": "1"}\n{"id":\n{"id": "3"}\n')
    assert batch("--skip-bad", "--key", "id", source="in.jsonl") == 1
    first = without_seconds(lines())
    assert batch("--skip-bad", "--key", "id", "--resume", source="in.jsonl") == 1
    assert calls() == []
    assert without_seconds(lines()) == first
    (folder / "in.jsonl").write_text('{"id": "1"}\n{"id": "2.5"}\n{"id": "3"}\n')
    assert batch("--key", "id", "--resume", source="in.jsonl") == 0
    assert calls() == ["2.5"]


def test_plain_lines_are_known_by_their_place(folder: Path) -> None:
    (folder / "in.txt").write_text("a\nb\n")
    assert batch(target="line", source="in.txt") == 0
    (folder / "in.txt").write_text("a\nB\nc\n")
    assert batch("--resume", target="line", source="in.txt") == 0
    assert calls() == ["B", "c"]


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--resume"], "--resume says how to go on with a journal, and none is given"),
        (["--force"], "--force says how to go on with a journal"),
        (["--retry-failed"], "--retry-failed says how to go on with a journal"),
        (["--max-attempts", "3"], "--max-attempts says how to go on with a journal"),
        (["--code-version", "2"], "--code-version says how to go on with a journal"),
        (["--journal", "run.db", "--retry-failed"], "--retry-failed needs --resume"),
        (["--journal", "out.jsonl"], "--output and --journal both name 'out.jsonl'"),
        (["--journal", "in.csv"], "--input and --journal both name 'in.csv'"),
        (["--journal", "agent.py", "--resume"], "'agent.py' is not a journal"),
        (["--journal", "nowhere/run.db"], "nowhere/run.db"),
        (["--journal", "."], "'.' is a folder, and a journal is a file"),
        (["--journal", "-"], "--journal takes a file, or a postgresql:// address, not '-'"),
        (["--journal", ""], "--journal takes a file, or a postgresql:// address, not ''"),
        (["--journal", "run.db", "--max-attempts", "0"], "0 is not a whole number from 1"),
        (["--budget-tokens", "some"], "some is not a whole number from 1 upwards"),
        (["--budget-usd", "-1"], "-1 is not an amount above 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["batch", "agent.py:echo", "--input", "in.csv", "--output", "out.jsonl", *arguments]
    before = {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    assert main(words) == 2
    assert expected in capsys.readouterr().err
    assert calls() == []
    after = {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    assert after == before


@pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal", "-lock"])
def test_an_output_is_never_written_over_a_journal(
    end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seen first as a journal that was gone: --overwrite, or --resume, had said that it may be."""
    batch("--quiet")
    before = Path("run.db").read_bytes()
    Path(f"run.db{end}").touch()
    os.link(f"run.db{end}", "link")
    for name in (f"run.db{end}", "link"):
        assert batch("--resume", "--output", name) == 2
        assert batch("--resume", "--summary", name) == 2
        assert batch("--resume", "--report", name) == 2
        assert batch("--resume", "--trace", name) == 2
        assert journal("export", "run.db", "--output", name, "--overwrite") == 2
        said = capsys.readouterr().err
        assert said.count("give each its own file" if not end else "belongs to the journal") == 5
    assert Path("run.db").read_bytes() == before


def test_a_journal_of_an_older_version_is_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def next_version() -> None:
        number = len(_schema.MIGRATIONS)
        more = f"CREATE TABLE harness_later_{number} (id INTEGER)"
        monkeypatch.setattr(_schema, "MIGRATIONS", (*_schema.MIGRATIONS, more))

    assert batch() == 1
    next_version()
    assert journal("show", "run.db") == 2
    assert "the next session, or harness journal vacuum" in capsys.readouterr().err
    assert batch("--resume") == 1
    assert journal("show", "run.db") == 1
    next_version()
    assert journal("retry", "run.db", "--failed") == 0
    next_version()
    assert journal("vacuum", "run.db") == 0
    assert journal("show", "run.db") == 1


def test_an_unfinished_output_is_neither_the_journal_nor_the_input(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert batch("--journal", "out.jsonl.part", "--resume") == 2
    assert "--output and --journal both name 'out.jsonl.part'" in capsys.readouterr().err
    os.link("in.csv", "out.jsonl.part")
    assert batch("--resume") == 2
    assert "is the input itself" in capsys.readouterr().err
    assert (folder / "in.csv").read_text() == CSV


def test_another_target_or_setting_is_refused_with_the_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    batch()
    before = Path("out.jsonl").read_bytes()
    assert batch("--resume", "--key", "text", target="other") == 2
    said = capsys.readouterr().err
    assert "the function was 'agent.py:echo' and is 'agent.py:other'" in said
    assert "--key was 'id' and is 'text'" in said
    assert Path("out.jsonl").read_bytes() == before
    assert not Path("out.jsonl.part").exists()
    assert batch("--resume", "--force", target="other") == 1
    assert [line["value"] for line in lines()] == [{"of": "1"}, None, {"of": "3"}]


def test_code_of_another_version_is_refused_without_force(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The only way to tell, of a function or a prompt that has changed under the same name."""
    batch("--code-version", "1")
    assert batch("--resume", "--code-version", "1") == 1
    assert batch("--resume", "--code-version", "2") == 2
    assert "--code-version was '1' and is '2'" in capsys.readouterr().err
    assert batch("--resume") == 2
    assert "--code-version was '1' and is not given" in capsys.readouterr().err
    assert batch("--resume", "--code-version", "2", "--force") == 1
    journal("show", "run.db")
    assert "--code-version 2" in capsys.readouterr().out


def test_a_key_that_was_given_before_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["batch", "agent.py:echo", "--input", "in.csv", "--output", "out.jsonl"]
    assert main([*words, "--journal", "run.db"]) == 1
    assert main([*words, "--journal", "run.db", "--resume", "--key", "id"]) == 2
    assert "--key was not given and is 'id'" in capsys.readouterr().err


def test_a_password_in_an_address_is_not_shown() -> None:
    parts = shown_path("postgresql://me:pass@word@host:5432/nightly?x=1")
    assert parts == "postgresql://me@host:5432/nightly?x=1"
    with_option = shown_path("postgresql://host/nightly?user=me&password=pass&x=1")
    assert with_option == "postgresql://host/nightly?user=me&password=***&x=1"
    assert shown_path("postgresql://host/nightly") == "postgresql://host/nightly"
    assert shown_path("folder:a/run@.db") == "folder:a/run@.db"


def test_a_journal_that_was_being_made_when_its_process_was_killed() -> None:
    Path("run.db").touch()
    assert batch("--resume") == 1
    assert calls() == ["1", "2", "3"]


@pytest.mark.slow
def test_what_does_not_change_the_answers_may_change() -> None:
    batch("--first", "1")
    more = ["--limit", "1", "--timeout", "9", "--retry", "2", "--hedge", "5", "--ordered"]
    assert batch("--resume", "--policy", "fail-fast", *more) == 1


def test_dry_run_tells_of_the_journal_and_makes_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("--dry-run") == 0
    assert "  journal run.db, new\n" in capsys.readouterr().out
    assert not Path("run.db").exists()
    batch()
    assert batch("--resume", "--dry-run") == 0
    assert "  journal run.db, with 3 items (2 ok, 1 failed)\n" in capsys.readouterr().out


@needs_permissions
def test_a_journal_that_is_read_only(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    batch()
    folder.chmod(0o777)
    (folder / "run.db-lock").chmod(0o666)
    (folder / "run.db").chmod(0o444)
    with as_somebody(folder):
        assert batch("--resume") == 2
    assert "can't be written to" in capsys.readouterr().err


def test_a_damaged_journal_is_told_and_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    batch()
    content = bytearray(Path("run.db").read_bytes())
    content[100:] = b"\xff" * (len(content) - 100)
    Path("run.db").write_bytes(content)
    assert batch("--resume") == 2
    assert "damaged" in capsys.readouterr().err
    assert Path("run.db").read_bytes() == content


# Budgets and totals -------------------------------------------------------------------------------


def test_totals_cover_all_sessions() -> None:
    batch("--first", "1", target="spends")
    assert batch("--resume", "--summary", "sum.json", target="spends") == 0
    totals = json.loads(Path("sum.json").read_text())["totals"]
    assert totals["items"] == totals["ok"] == totals["attempts"] == 3
    assert (totals["tokens"], totals["cost_usd"], totals["sessions"]) == (30, 0.75, 2)


def test_a_resumed_batch_goes_on_with_what_is_left_of_the_budget(
    capsys: pytest.CaptureFixture[str],
) -> None:
    once = ["--limit", "1", "--budget-tokens"]
    assert batch(*once, "20", target="spends") == 1
    assert calls() == ["1", "2"]
    said = capsys.readouterr().err
    assert "the budget is used up, and nothing more was started" in said
    assert "20 tokens, $0.5000" in said
    assert "unfinished: run the same command with --resume to go on; run.db has the rest" in said
    assert batch("--resume", *once, "20", target="spends") == 1
    assert calls() == []
    assert batch("--resume", *once, "30", target="spends") == 0
    assert calls() == ["3"]
    assert [line["status"] for line in lines()] == ["ok", "ok", "ok"]


def test_a_budget_in_dollars_needs_no_journal() -> None:
    words = ["batch", "agent.py:spends", "--input", "in.csv", "--output", "out.jsonl"]
    assert main([*words, "--limit", "1", "--budget-usd", "0.5"]) == 1
    assert calls() == ["1", "2"]


# harness journal ----------------------------------------------------------------------------------


def journal(*words: str) -> int:
    return main(["journal", *words])


def test_show_says_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    batch("--quiet")
    assert journal("show", "run.db") == 1
    said = capsys.readouterr().out
    assert said.startswith("batch: 3 items (2 ok, 1 failed), 3 attempts, ")
    assert "  runs     agent.py:echo\n  with     --format csv, --key id\n" in said
    assert said.endswith("  2: ValueError: two (failed, 1 attempt)\n")
    assert journal("show", "run.db", "--batch", "nightly") == 2
    assert "has no batch 'nightly'; it has 'batch'" in capsys.readouterr().err
    assert journal("show", "none.db") == 2
    assert "there is no journal 'none.db'" in capsys.readouterr().err
    assert not Path("none.db").exists()


def test_show_lists_all_failures_on_request(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "in.csv").write_text("id,text\n" + "".join(f"2{n},x\n" for n in range(30)))
    (folder / "agent.py").write_text(AGENT.replace("in broken", '!= "20"'))
    batch("--quiet")
    capsys.readouterr()
    journal("show", "run.db")
    assert capsys.readouterr().out.count("ValueError") == 20
    journal("show", "run.db", "--failures")
    said = capsys.readouterr().out
    assert len(re.findall(r"(?m)^  \d+: ValueError: two \(failed", said)) == 29
    assert len(re.findall(r"in echo\n.*\n( .*\n)?    ValueError: two\n", said)) == 29
    assert "harness" not in said, "none of its own frames"


def test_a_later_session_still_has_the_tracebacks(folder: Path) -> None:
    """They were gone with the process, so nobody could tell why the night's items had failed."""
    batch("--quiet")
    batch("--quiet", "--resume", "--traceback")
    (text,) = [line["traceback"] for line in lines() if line["status"] == "failed"]
    assert text.startswith("Traceback")
    assert "in echo" in text
    assert "ValueError: two" in text


def test_export_as_jsonl_and_csv(capfd: pytest.CaptureFixture[str]) -> None:
    batch("--quiet", "--limit", "1")
    capfd.readouterr()
    assert journal("export", "run.db") == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(line["key"], line["value"], line["error"]) for line in found] == [
        ("1", {"of": "1"}, None),
        ("2", None, "ValueError: two"),
        ("3", {"of": "3"}, None),
    ]
    assert journal("export", "run.db", "--format", "csv", "--output", "all.csv") == 0
    with open("all.csv", newline="") as file:
        first, second, _ = csv.DictReader(file)
    assert first["value"] == '{"of": "1"}'
    assert (second["key"], second["status"], second["value"]) == ("2", "failed", "")
    assert (second["error"], second["error_type"]) == ("ValueError: two", "ValueError")
    assert journal("export", "run.db", "--output", "all.csv") == 2
    assert "already exists" in capfd.readouterr().err


@pytest.mark.slow
def test_export_is_written_as_its_name_says(capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    batch("--quiet", "--limit", "1")
    assert journal("export", "run.db", "--output", "all.parquet", "--where", "key != '2'") == 0
    rows = parquet.read_table("all.parquet").to_pylist()
    assert [(row["key"], json.loads(row["input"])["text"]) for row in rows] == [
        ("1", "one"),
        ("3", "three"),
    ]
    assert journal("export", "run.db", "--output", "all.xlsx") == 2
    assert "'all.xlsx' doesn't say how to write it" in capsys.readouterr().err
    assert journal("export", "run.db", "--output", "all.xlsx", "--format", "arrow") == 0
    assert Path("all.xlsx").read_bytes().startswith(b"ARROW1")


def test_export_names_the_extra_that_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    batch("--quiet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    before = files_in(folder)
    assert journal("export", "run.db", "--output", "all.parquet") == 2
    assert "run: pip install 'trio-harness[arrow]'" in capsys.readouterr().err
    assert files_in(folder) == before


def test_a_full_disk_ends_an_export(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    batch("--quiet")
    before = files_in(folder)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_inspect, "write_items", full)
    assert journal("export", "run.db", "--output", "all.csv") == 2
    assert "writing 'all.csv' failed: No space left on device" in capsys.readouterr().err
    assert files_in(folder) == before


def test_export_writes_what_other_programs_can_read(capfd: pytest.CaptureFixture[str]) -> None:
    """A program's journal holds nan and cut text; neither may cost the export its other rows."""

    async def value(item: tuple[str, float]) -> dict[str, float]:
        return {"is": item[1]}

    async def fill() -> None:
        items = [("\ud800", math.nan), ("b", 1.0)]
        async with open_journal("own.db") as own:
            await harness.fan_out(value, items, journal=own, key=lambda item: item[0], name="own")

    trio.run(fill)
    assert journal("export", "own.db", "--format", "csv") == 0
    assert [row.split(",")[0] for row in capfd.readouterr().out.splitlines()[1:]] == [
        "\\ud800",
        "b",
    ]
    assert journal("export", "own.db") == 0
    lines = capfd.readouterr().out.splitlines()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [(one["key"], one["value"]) for one in found] == [
        ("\ud800", '{"is":NaN}'),
        ("b", {"is": 1.0}),
    ]


def test_retry_lets_items_begin_anew(capsys: pytest.CaptureFixture[str]) -> None:
    batch("--quiet")
    assert journal("retry", "run.db", "--failed") == 0
    assert "1 item of 'batch' will be tried again" in capsys.readouterr().out
    assert journal("retry", "run.db", "1") == 0
    batch("--resume", "--quiet")
    assert calls() == ["1", "2"]
    assert journal("retry", "run.db") == 2
    assert journal("retry", "run.db", "1", "--failed") == 2
    assert journal("retry", "run.db", "17") == 2
    assert "has no item '17'" in capsys.readouterr().err


def test_forget_deletes_items_or_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    batch("--quiet")
    assert journal("forget", "run.db") == 2
    assert "say what to forget" in capsys.readouterr().err
    assert journal("forget", "run.db", "1", "3") == 0
    with read_journal("run.db") as reader:
        assert [item.key for item in reader.items("batch")] == ["2"]
    assert journal("forget", "run.db", "--batch", "batch") == 0
    assert "1 item of 'batch' forgotten" in capsys.readouterr().out
    assert batch("--overwrite", "--quiet") == 1
    assert calls() == ["1", "2", "3"]


def test_backup_copies_and_never_overwrites(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch() == 1
    capsys.readouterr()
    assert journal("backup", "run.db", "copy.db") == 0
    assert capsys.readouterr().out.startswith("copy.db has all of run.db (")
    assert journal("backup", "run.db", "copy.db") == 2
    assert "already exists" in capsys.readouterr().err
    with read_journal("copy.db") as reader:
        assert reader.counts("batch") == {"ok": 2, "failed": 1}


def test_vacuum_makes_a_journal_smaller(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch() == 1
    capsys.readouterr()
    assert journal("vacuum", "run.db") == 0
    assert "bytes smaller" in capsys.readouterr().out
    assert journal("vacuum", "run.db", "--older-than", "30") == 0
    assert capsys.readouterr().out.startswith("0 items forgotten\n")
    assert journal("vacuum", "run.db", "--older-than", "0") == 2


# Two at once --------------------------------------------------------------------------------------


TWICE = """
import os, subprocess, sys

async def work(record):
    if record["id"] == "3" and "FIRST" in os.environ:
        environment = {name: value for name, value in os.environ.items() if name != "FIRST"}
        for more in ([], ["--overwrite"]):
            second = subprocess.run([sys.executable, "-m", "harness", *sys.argv[1:], *more],
                capture_output=True, text=True, env=environment)
            with open("second.txt", "a") as file:
                file.write(f"{second.returncode} {second.stderr}")
    return record["id"]
"""


@pytest.mark.real_clock
def test_a_second_session_that_is_refused_changes_nothing_of_the_first(folder: Path) -> None:
    """Two runs of cron overlap. The second took the first one's results along when it was refused,
    and the first said that all were there."""
    (folder / "twice.py").write_text(TWICE)
    command = "batch twice.py:work --input in.csv --key id --journal run.db --output out.jsonl"
    words = [sys.executable, "-m", "harness", *command.split(), "--summary", "sum.json", "--limit"]
    subprocess.run([*words, "1", "--first", "2"], check=True, capture_output=True)
    environment = {**os.environ, "FIRST": "yes"}
    subprocess.run([*words, "1", "--resume"], check=True, capture_output=True, env=environment)
    said = (folder / "second.txt").read_text()
    assert said.count("2 Error: the journal 'run.db' is being written to by process ") == 2, said
    assert [line["key"] for line in lines()] == ["1", "2", "3"]
    assert not (folder / "out.jsonl.part").exists()


def files_in(folder: Path) -> dict[str, bytes]:
    # SQLite's index of the write-ahead log is shared memory, in which readers note that they read.
    return {one.name: one.read_bytes() for one in folder.glob("*.*") if one.suffix != ".db-shm"}


@pytest.mark.parametrize(
    "words",
    [
        "batch agent.py:echo --input in.csv --key id --journal run.db --output out.jsonl --resume"
        " --overwrite --summary sum.json",
        "batch agent.py:echo --input in.csv --key id --journal run.db --output new.jsonl --resume",
        "journal retry run.db --failed",
        "journal retry run.db 1",
        "journal forget run.db 1",
        "journal forget run.db --batch batch",
        "journal vacuum run.db",
        "journal vacuum run.db --older-than 1",
        "journal backup run.db out.jsonl",
        "journal export run.db --output run.db --overwrite",
        "journal export run.db --output out.jsonl",
    ],
)
async def test_a_second_session_of_any_command_is_refused_without_a_trace(
    words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a running one every file stays as it is, to the byte."""
    assert await trio.to_thread.run_sync(batch, "--summary", "sum.json") == 1
    capsys.readouterr()
    async with open_journal("run.db"):
        before = files_in(folder)
        assert await trio.to_thread.run_sync(main, words.split()) == 2
        assert files_in(folder) == before
    assert capsys.readouterr().err.startswith("Error: ")


@pytest.mark.skipif(os.name != "posix", reason="needs locks on files")
@pytest.mark.parametrize(
    "words",
    [
        "batch agent.py:echo --input in.csv --output out.jsonl --overwrite",
        "batch agent.py:echo --input in.csv --output out.jsonl --overwrite --summary sum.json",
        "batch agent.py:echo --input in.csv --key id --journal new.db --output out.jsonl --resume",
        "journal export run.db --output out.jsonl --overwrite",
    ],
)
def test_an_output_that_another_session_writes_is_refused(
    words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--overwrite`` emptied it under the hands of whoever wrote it, and both wrote on."""
    assert batch() == 1
    with Output("out.jsonl", overwrite=True, anew=False).open(sys.stdout) as writer:
        writer._write(b"a line\n")
        assert main(words.split()) == 2
        assert Path("out.jsonl").read_bytes() == b"a line\n"
    assert not Path("sum.json").exists()
    assert not Path("out.jsonl.part").exists()
    assert "is being written by another session" in capsys.readouterr().err
    assert main(words.split()) in (0, 1)


@pytest.mark.skipif(os.name != "posix", reason="needs locks on files")
@pytest.mark.parametrize("more", ["", "--overwrite", "--key id --journal new.db --resume"])
@pytest.mark.parametrize("shared", ["sum.json", "first.jsonl"])
def test_a_summary_of_two_sessions_is_refused(
    more: str, shared: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second replaced the first one's summary, or its output, when both had ended."""
    with (
        claimed("sum.json", replaces=False, stdout=sys.stdout) as write,
        Output("first.jsonl", overwrite=False, anew=False).open(sys.stdout),
    ):
        before = files_in(folder)
        words = f"batch agent.py:echo --input in.csv --output other.jsonl --summary {shared} {more}"
        assert main(words.split()) == 2
        assert {name: files_in(folder)[name] for name in before} == before
        assert re.search("another session|already exists", capsys.readouterr().err)
        write("the first")
    assert Path("sum.json").read_text() == "the first"
    assert not Path("sum.json.part").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs locks on files")
def test_two_sessions_that_rewrite_one_output_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with a journal of its own; the second took away what the first was writing."""
    words = "batch agent.py:echo --input in.csv --key id --journal new.db --output out.jsonl"
    with Output("out.jsonl", overwrite=False, anew=True).open(sys.stdout):
        before = files_in(folder)
        assert main([*words.split(), "--resume"]) == 2
        assert files_in(folder).items() >= before.items()
    assert "is being written by another session" in capsys.readouterr().err


def test_a_summary_goes_to_what_is_no_file(folder: Path) -> None:
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    words = "batch agent.py:echo --input in.csv --output out.jsonl --overwrite --summary pipe"
    assert main(words.split()) in (0, 1)
    assert json.loads(os.read(reader, 100_000))["items"] > 0
    os.close(reader)
    assert Path("pipe").is_fifo()


def test_an_output_that_somebody_took_away_is_not_said_to_be_there(folder: Path) -> None:
    """Somebody cleans up, or the disk has no locks: a second session makes a file of its own."""
    ours = Output("out.jsonl", overwrite=False, anew=True)
    theirs = Output("out.jsonl", overwrite=False, anew=True)
    with ours.open(sys.stdout):
        Path("out.jsonl.part").unlink()
        with theirs.open(sys.stdout):
            pass
    assert ours.finish(complete=True) is False
    assert theirs.finish(complete=True) is True
    assert (folder / "out.jsonl").exists()


# Kept failures, changed source, and values that aren't plain ------------------------------------


@pytest.mark.parametrize("policy", ["fail-fast", "best-effort"])
def test_a_kept_failure_is_no_success_the_next_night(
    policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output is replaced: everything has run, and nothing was cut short."""
    assert batch("--policy", policy) == 1
    Path("in.csv").write_text(f"{CSV}4,four\n")
    for _ in range(2):
        capsys.readouterr()
        assert batch("--policy", policy, "--resume", "--summary", "sum.json") == 1
        said = capsys.readouterr().err
        assert "3 ok, 1 failed" in said
        assert "of the failures 1 is from an earlier session; --retry-failed tries again" in said
        assert "results: out.jsonl" in said
        assert json.loads(Path("sum.json").read_text())["failed_in_earlier_sessions"] == 1
        assert sorted(line["status"] for line in lines()) == ["failed", "ok", "ok", "ok"]


def test_a_kept_failure_does_not_keep_an_output_from_being_replaced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A record that is gone from the input can't come any more: the whole input was read."""
    assert batch("--policy", "fail-fast", "--limit", "1") == 1
    assert batch("--policy", "fail-fast", "--resume") == 1
    Path("in.csv").write_text("id,text\n2,two\n3,three\n")
    capsys.readouterr()
    assert batch("--policy", "fail-fast", "--resume") == 1
    assert "results: out.jsonl" in capsys.readouterr().err
    assert [line["key"] for line in lines()] == ["2", "3"]


def test_changed_source_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch() == 1
    Path("agent.py").write_text(AGENT.replace('{"of": record["id"]}', '{"is": record["id"]}'))
    os.utime("agent.py", (1, 1))  # Else Python may take the new file for the old one.
    capsys.readouterr()
    assert batch("--resume") == 1
    said = capsys.readouterr().err
    assert said.count("warning: the batch 'batch' of the journal 'run.db'") == 1
    assert "the source has changed in echo()" in said
    assert batch("--resume") == 1
    assert "warning" not in capsys.readouterr().err, "it was told"


def test_changed_source_is_refused_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch() == 1
    assert batch("--resume", "--code-version", "source") == 1
    Path("agent.py").write_text(AGENT.replace('{"of": record["id"]}', '{"is": record["id"]}'))
    os.utime("agent.py", (1, 1))
    capsys.readouterr()
    before = Path("out.jsonl").read_bytes()
    assert batch("--resume", "--code-version", "source") == 2
    assert "the source has changed in echo()" in (said := capsys.readouterr().err)
    assert "--force to go on and keep them" in said
    assert Path("out.jsonl").read_bytes() == before
    assert batch("--resume", "--code-version", "source", "--force") == 1
    assert batch("--resume", "--quiet") == 1


VALUES = """
import dataclasses, datetime, decimal, enum, socket

class Colour(enum.Enum):
    RED = "red"

@dataclasses.dataclass
class Answer:
    on: datetime.date
    cost: decimal.Decimal
    colour: Colour

async def rich(record) -> Answer:
    return Answer(datetime.date(2030, 1, 2), decimal.Decimal("1.10"), Colour.RED)

calls = []

async def connects(record) -> socket.socket:
    calls.append(record)

async def wild(record):
    calls.append(record)
    return socket
"""


def test_rich_values_are_written_as_json_in_each_session() -> None:
    Path("agent.py").write_text(VALUES)
    for more in ([], ["--resume"]):
        assert batch(*more, target="rich") == 0
        assert [line["value"] for line in lines()] == [
            {"on": "2030-01-02", "cost": "1.10", "colour": "red"}
        ] * 3


def test_what_cannot_be_written_is_refused_before_it_is_paid_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("agent.py").write_text(VALUES)
    assert batch(target="connects") == 2
    assert "agent.py:connects is annotated to return socket" in capsys.readouterr().err
    assert calls() == []
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize("journal", [True, False])
def test_a_batch_ends_if_none_of_its_first_20_values_can_be_written(
    journal: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("agent.py").write_text(VALUES)
    Path("in.txt").write_text("x\n" * 500)
    if journal:
        assert batch("--limit", "2", target="wild", source="in.txt") == 1
    else:
        sys.modules.pop("agent", None)
        words = ["batch", "agent.py:wild", "--input", "in.txt", "--output", "out.jsonl"]
        assert main([*words, "--limit", "2"]) == 1
    assert "none of the first 20 values can be written" in capsys.readouterr().err
    assert 20 <= len(calls()) <= 22


@pytest.mark.slow
def test_values_of_a_program_are_exported_without_the_names_of_its_classes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @dataclasses.dataclass
    class Answer:
        on: datetime.date
        raw: bytes
        words: tuple[str, ...]

    async def answer(item: int) -> Answer | set[int]:
        return {item} if item == 2 else Answer(datetime.date(2030, 1, item), b"x", ("a",))

    async def program() -> None:
        async with open_journal("own.db") as journal:
            await harness.fan_out(answer, [1, 2], journal=journal, key=int, name="own")

    trio.run(program)
    assert main(["journal", "export", "own.db"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["value"] == {"on": "2030-01-01", "raw": "eA==", "words": ["a"]}
    assert second["value"] == {"$": "set", "v": [2]}, "JSON has no sets"
