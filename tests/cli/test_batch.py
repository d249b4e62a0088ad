"""``harness batch`` from the command line to the exit status, in this process."""

from __future__ import annotations

import io
import json
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main

AGENT = """
import logging
import sys

calls = []

async def echo(record):
    calls.append(record)
    return record

async def chatty(record):
    print("printed for", record)
    logging.getLogger("agent").info("logged for %s", record)
    return record

async def tells(record):
    raise ValueError("\\x1b[2J Bearer abcdefgh12345678")

async def fails_at_two(record):
    if record["id"] == "2":
        raise ValueError("two")
    return record["id"]

async def changes(record):
    value = record.pop("id")
    record["id"] = value + 1
    return value

async def leaves(record):
    sys.exit(7)

async def interrupts(record):
    raise KeyboardInterrupt

async def ask(record):
    return "yes"

async def forgets(record):
    return ask(record)

async def forgets_inside(record):
    return {"answers": [ask(record), ask(record)]}

async def misspells(record):
    return record["txet"]

def plain(record):
    return record
"""

CSV = "id,text\n1,one\n2,two\n3,three\n"


@pytest.fixture(autouse=True)
def folder(clean_imports: Path) -> Path:
    (clean_imports / "agent.py").write_text(AGENT)
    (clean_imports / "in.csv").write_text(CSV)
    return clean_imports


def batch(target: str, *arguments: str, source: str = "in.csv", output: str = "out.jsonl") -> int:
    return main(["batch", f"agent.py:{target}", "--input", source, "--output", output, *arguments])


def lines(path: str = "out.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def column(name: str) -> list[Any]:
    return [line[name] for line in lines()]


def calls() -> list[Any]:
    found: list[Any] = sys.modules["agent"].calls
    return found


def standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


# What comes out ---------------------------------------------------------------------------------


def test_with_input_each_line_has_its_record_as_it_was_read() -> None:
    """Also if the function changes it, and however it ends."""
    records = [
        {"id": 1, "status": "mine", "é\u2028": ["\ud800", None, 10**30, 0.1]},
        {"id": "2"},
        ["no", "object"],
    ]
    texts = [*map(json.dumps, records), "1e999", "not JSON"]
    Path("in.jsonl").write_text("\n".join(texts))
    assert batch("changes", "--with-input", "--skip-bad", "--traceback", source="in.jsonl") == 1
    found = sorted(lines(), key=lambda line: line["index"])
    assert [line["input"] for line in found] == [*records, "Infinity", None]
    assert len(Path("out.jsonl").read_text().splitlines()) == 5
    assert [line["status"] for line in found] == ["ok", "failed", "failed", "failed", "failed"]
    assert batch("echo", "--with-input", "--overwrite", "--first", "1") == 0
    assert column("input") == [{"id": "1", "text": "one"}]
    assert batch("echo", "--overwrite", "--first", "1") == 0
    assert "input" not in lines()[0]


@pytest.mark.filterwarnings("error")  # Python's warning of the same would be a second one.
def test_a_forgotten_await_is_named_as_from_python() -> None:
    assert batch("forgets", "--retry", "3") == 1
    words = "f() returned the coroutine ask(), which nobody awaited; write `return await ask(...)`"
    assert lines()[0]["error"] == f"UnwritableValueError: {words.replace('f()', 'forgets()')}"
    assert column("attempts") == [1, 1, 1]
    assert batch("forgets_inside", "--overwrite") == 1
    words = "the value['answers'][0] is the coroutine ask(), which nobody awaited; write `await"
    assert words in lines()[0]["error"]


def test_a_misspelt_column_is_named_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert batch("misspells", "--traceback") == 1
    told = "the record has the fields id, text; did you mean 'text'?"
    assert f"0: KeyError: 'txet' ({told})" in capsys.readouterr().err
    assert f"KeyError: 'txet'\n{told}" in lines()[0]["traceback"]


# What goes in ----------------------------------------------------------------------------------


def test_csv_rows_reach_the_function_as_dicts() -> None:
    assert batch("echo") == 0
    assert sorted(call["id"] for call in calls()) == ["1", "2", "3"]
    assert {"id": "1", "text": "one"} in column("value")


def test_separator_that_the_first_row_tells_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """What was guessed has to be seen, by people and by programs."""
    Path("in.csv").write_text("id;text\n1;one, two\n")
    assert batch("echo", "--summary", "sum.json") == 0
    assert column("value") == [{"id": "1", "text": "one, two"}]
    assert "input: columns separated by ';'\n" in capsys.readouterr().err
    assert json.loads(Path("sum.json").read_text())["delimiter"] == ";"
    assert batch("echo", "--dry-run", "--overwrite") == 0
    assert "(CSV separated by ';')" in capsys.readouterr().out


@pytest.mark.parametrize("given", ["tab", "\\t", "\t"])
def test_separator_may_be_given(given: str) -> None:
    Path("in.csv").write_text("a,b\tc\n1\t2\n")
    assert batch("echo", "--delimiter", given) == 0
    assert column("value") == [{"a,b": "1", "c": "2"}]


def test_tsv_has_tabs_whatever_its_first_row_has() -> None:
    Path("in.tsv").write_text("a,b\tc\n1\t2\n")
    assert batch("echo", source="in.tsv") == 0
    assert column("value") == [{"a,b": "1", "c": "2"}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--delimiter", ",,"], "one character"),
        (["--delimiter", '"'], "one character"),
        (["--delimiter", ";", "--format", "lines"], "--delimiter is for CSV"),
    ],
)
def test_separator_that_cannot_be_one_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch("echo", *arguments) == 2
    assert words in capsys.readouterr().err


def test_jsonl_values_reach_the_function_as_they_are() -> None:
    Path("in.jsonl").write_text('{"a": [1]}\nnull\n"text"\n')
    assert batch("echo", "--ordered", source="in.jsonl") == 0
    assert column("value") == [{"a": [1]}, None, "text"]


def test_plain_lines_reach_the_function_as_text() -> None:
    Path("in.txt").write_text("one\n two\n")
    assert batch("echo", "--ordered", source="in.txt") == 0
    assert column("value") == ["one", " two"]


def test_standard_input_is_lines_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    standard_input(monkeypatch, b'{"id": 1}\n')
    assert batch("echo", source="-") == 0
    assert column("value") == ['{"id": 1}']
    standard_input(monkeypatch, b'{"id": 1}\n')
    assert batch("echo", "--format", "jsonl", "--overwrite", source="-") == 0
    assert column("value") == [{"id": 1}]


def test_format_overrules_the_suffix() -> None:
    assert batch("echo", "--format", "lines", "--ordered") == 0
    assert column("value") == CSV.splitlines()


def test_first_and_sample_choose_records_and_keep_their_index() -> None:
    assert batch("echo", "--first", "2") == 0
    assert sorted(column("index")) == [0, 1]
    Path("in.txt").write_text("".join(f"{i}\n" for i in range(100)))
    arguments = ["--sample", "5", "--seed", "3", "--ordered", "--overwrite"]
    assert batch("echo", *arguments, source="in.txt") == 0
    drawn = column("index")
    assert len(drawn) == 5
    assert drawn == sorted(drawn)
    assert column("value") == [str(i) for i in drawn] == column("key")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(folder: Path) -> None:
    """A million lines must need no more than some thousand; results and records pile up nowhere."""

    def peak_bytes(count: int) -> int:
        Path("in.jsonl").write_text(
            "".join(f'{{"id": {i}, "x": "{"x" * 200}"}}\n' for i in range(count))
        )
        tracemalloc.start()
        try:
            assert batch("forget", "--quiet", "--overwrite", source="in.jsonl") == 0
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    (folder / "agent.py").write_text("async def forget(record): ...\n")
    peak_bytes(100)  # What is imported, compiled and cached at the first time doesn't count.
    small, large = peak_bytes(3_000), peak_bytes(10_000)  # Both fill what is read ahead.
    # The records alone would be 7,000 * 600 bytes more.
    assert large - small < 500_000


def test_empty_input_is_an_empty_output(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text("")
    assert batch("echo", source="in.txt") == 0
    assert lines() == []
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == ["the input has no records", "results: out.jsonl"]


# Keys ------------------------------------------------------------------------------------------


def test_key_is_the_index_as_text_or_a_field() -> None:
    batch("echo", "--ordered")
    assert column("key") == ["0", "1", "2"]
    batch("echo", "--ordered", "--overwrite", "--key", "text")
    assert column("key") == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("1,one\n,two\n3,three\n", "in.csv, line 3: the key 'id' is empty"),
        ("1,one\n1,two\n3,three\n", "in.csv, line 3: the key 'id' is '1', as in an earlier"),
    ],
)
def test_missing_or_duplicate_key_ends_the_batch_and_keeps_what_ended(
    rows: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("in.csv").write_text("id,text\n" + rows)
    assert batch("echo", "--key", "id") == 2
    assert column("key") == ["1"]
    assert words in capsys.readouterr().err


def test_key_that_no_record_has_leaves_no_output_behind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Else the corrected command would be refused because the output exists."""
    assert batch("echo", "--key", "ID") == 2
    assert "the record's fields are 'id', 'text'" in capsys.readouterr().err
    assert not Path("out.jsonl").exists()


def test_key_of_plain_lines_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text("one\n")
    assert batch("echo", "--key", "id", source="in.txt") == 2
    assert "plain lines have none" in capsys.readouterr().err


# What comes out --------------------------------------------------------------------------------


def test_failed_items_are_exit_status_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("fails_at_two", "--key", "id", "--summary", "sum.json") == 1
    assert sorted(column("status")) == ["failed", "ok", "ok"]
    said = capsys.readouterr()
    assert said.out == ""
    assert "3 items in " in said.err
    assert "2 ok, 1 failed" in said.err
    assert "errors: 1 ValueError\n  2: ValueError: two\n" in said.err
    summary = json.loads(Path("sum.json").read_text())
    assert summary.pop("seconds") > 0
    assert summary.pop("items_per_second") > 0
    assert summary == {
        "target": "agent.py:fails_at_two",
        "input": "in.csv",
        "output": "out.jsonl",
        "journal": None,
        "delimiter": ",",
        "items": 3,
        "ok": 2,
        "failed": 1,
        "timed_out": 0,
        "cancelled": 0,
        "skipped": 0,
        "attempts": 3,
        "hedges": 0,
        "hedges_won": 0,
        "hedge_seconds_saved": 0.0,
        "errors": {"ValueError": 1},
        "limits": None,
        "from_journal": 0,
        "failed_in_earlier_sessions": 0,
        "waiting": 0,
        "totals": None,
        "interrupted": False,
        "input_error": None,
        "output_error": None,
        "function_error": None,
        "journal_error": None,
        "over_budget": None,
        "too_many_failures": None,
        "window_over": None,
        "did_not_fit": None,
        "forecast_seconds": None,
        "exit_status": 1,
    }


def test_lines_on_standard_output_are_alone_there(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """What the function prints would else be lines that are no JSON."""
    assert batch("chatty", "--log-level", "info", output="-") == 0
    said = capfd.readouterr()
    assert [json.loads(line)["status"] for line in said.out.splitlines()] == ["ok"] * 3
    assert said.err.count("printed for") == 3
    assert said.err.count("INFO batch/") == 3
    assert "3 items" in said.err
    assert said.err.endswith("\nresults: standard output\n")
    assert "no records" not in said.err
    assert sys.stdout is not sys.stderr


def test_quoted_errors_hold_no_secret_and_do_not_act_on_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert batch("tells") == 1
    assert "ValueError: \\x1b[2J Bearer [key]\n" in capsys.readouterr().err


def test_quiet_shows_errors_only(capsys: pytest.CaptureFixture[str]) -> None:
    """Of failed items one line: who runs it at night gets a mail only if something is said."""
    assert batch("fails_at_two", "--quiet") == 1
    words = "Error: of 3 items 1 failed; the first error is that of 1: ValueError: two\n"
    assert capsys.readouterr() == ("", words)
    assert batch("fails_at_two", "--quiet", "--overwrite", "--policy", "fail-fast") == 1
    assert "failed" in capsys.readouterr().err
    assert batch("echo", "--quiet", "--overwrite") == 0
    assert capsys.readouterr() == ("", "")
    assert batch("fails_at_two", "--quiet", "--overwrite", "--key", "ID") == 2
    assert "'ID' is missing" in capsys.readouterr().err


def test_logging_is_as_it_was_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("chatty", "--log-level", "error") == 0
    assert "logged for" not in capsys.readouterr().err


def test_overwrite_replaces_and_its_absence_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    Path("out.jsonl").write_text("precious\n")
    assert batch("echo") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert Path("out.jsonl").read_text() == "precious\n"
    assert "agent" not in sys.modules
    assert batch("echo", "--overwrite") == 0
    assert len(lines()) == 3


@pytest.mark.skipif(os.name != "posix", reason="links")
def test_output_is_never_the_input_nor_a_link_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    os.link("in.csv", "hard.jsonl")
    os.symlink("in.csv", "soft.jsonl")
    for output in ("in.csv", "hard.jsonl", "soft.jsonl", "./in.csv"):
        assert batch("echo", "--overwrite", output=output) == 2
        assert "is the input itself" in capsys.readouterr().err
        assert batch("echo", "--overwrite", "--summary", output) == 2
        assert "is the input itself" in capsys.readouterr().err
    assert Path("in.csv").read_text() == CSV


def test_summary_has_a_file_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("echo", "--summary", "./out.jsonl") == 2
    assert "give each its own file" in capsys.readouterr().err
    assert batch("echo", "--summary", "-") == 2
    assert "--summary takes a file" in capsys.readouterr().err
    Path("sum.json").write_text("precious\n")
    assert batch("echo", "--summary", "sum.json") == 2
    assert Path("sum.json").read_text() == "precious\n"


def test_records_that_cannot_be_read_are_skipped_if_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("in.jsonl").write_text('{"id": 1}\n{oops\n{"id": 3}\n')
    assert batch("echo", source="in.jsonl") == 2
    said = capsys.readouterr().err
    assert "in.jsonl, line 2: expected one JSON value on the line" in said
    assert "--skip-bad" in said
    assert column("value") == [{"id": 1}]
    assert batch("echo", "--skip-bad", "--overwrite", "--ordered", source="in.jsonl") == 1
    assert column("status") == ["ok", "failed", "ok"]
    assert lines()[1]["error"].startswith("BadRecordError: line 2: expected one JSON value")


# What ends it otherwise ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--limit", "0", "0 is not a whole number from 1 upwards; say how many items"),
        ("--limit", "many", "many is not a whole number"),
        ("--retry", "0", "1 is a single attempt without a retry"),
        ("--timeout", "-1", "-1 is not a number of seconds above 0"),
        ("--timeout", "nan", "nan is not a number of seconds"),
        ("--timeout", "0", "leave it out if an attempt may take any time"),
        ("--grace", "-0.5", "from 0 upwards; 0 cancels at once"),
        ("--first", "0", "say how many records to read"),
        ("--sample", "-3", "say how many records to draw"),
        ("--policy", "quorum", "best-effort"),
        ("--format", "xml", "jsonl"),
        ("--log-level", "loud", "warning"),
        ("--frist", "3", "--first"),
        ("--concurrency", "5", "write --limit N to run at most N items at once, or --concurrent N"),
        ("--max-concurrency", "5", "--limit N to run at most N items at once, or --concurrent N"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(
    option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch("echo", option, value) == 2
    said = capsys.readouterr().err
    assert option in said
    assert words in said
    assert "agent" not in sys.modules
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["batch", "agent.py:echo", "--input", "in.csv"], "--output"),
        (["batch", "agent.py:echo", "--output", "x"], "--input"),
        (["batch", "--input", "in.csv", "--output", "x"], "TARGET"),
        (["batch", "agent.py:plain", "--input", "in.csv", "--output", "x"], "async def"),
        (["batch", "agent.py:ehco", "--input", "in.csv", "--output", "x"], "'echo'"),
        (["batch", "agent.py:echo", "--input", "none.csv", "--output", "x"], "is not there"),
        (["batch", "agent.py:echo", "--input", "in.csv", "--output", "no/x"], "no folder 'no'"),
        (["bacth"], "bacth"),
    ],
)
def test_wrong_usage_is_exit_status_two_and_leaves_nothing(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    before = sorted(os.listdir(folder))
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
    assert sorted(os.listdir(folder)) == before


def test_dry_run_shows_the_plan_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("echo", "--dry-run", "--key", "id", "--limit", "7", "--retry", "3") == 0
    said = capsys.readouterr().out
    assert "would run agent.py:echo" in said
    assert "7 at once, up to 3 attempts, best-effort" in said
    assert '1: {"id": "1", "text": "one"}' in said
    assert "nothing was run" in said
    assert calls() == []
    assert not Path("out.jsonl").exists()


def test_dry_run_says_how_many_records_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text("".join(f"{i:05}\n" for i in range(9_999)))
    assert batch("echo", "--dry-run", source="in.txt") == 0
    assert "about 9,999 records of in.txt (plain lines)" in capsys.readouterr().out
    assert batch("echo", "--dry-run", "--first", "50", source="in.txt") == 0
    assert "  on      50 records" in capsys.readouterr().out
    assert batch("echo", "--dry-run", "--sample", "400", source="in.txt") == 0
    assert "a sample of 400 records" in capsys.readouterr().out
    assert batch("echo", "--dry-run") == 0
    assert "  on      3 records of in.csv (CSV)" in capsys.readouterr().out


def test_dry_run_finds_what_a_run_would_find(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("plain", "--dry-run") == 2
    assert batch("echo", "--dry-run", "--key", "ID") == 2
    Path("out.jsonl").touch()
    assert batch("echo", "--dry-run") == 2
    assert "already exists" in capsys.readouterr().err


def test_function_that_exits_ends_the_batch_and_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Else the command would end silently, with a status that means something else."""
    assert batch("leaves", "--summary", "sum.json") == 1
    said = capsys.readouterr().err
    assert "Error: the function raised SystemExit(7)\n" in said
    assert "results:" not in said, "there are none, so there is no file"
    assert not Path("out.jsonl").exists()
    assert "no records" not in said
    summary = json.loads(Path("sum.json").read_text())
    assert summary["function_error"] == "the function raised SystemExit(7)"
    assert summary["exit_status"] == 1


def test_function_that_interrupts_is_an_interruption() -> None:
    assert batch("interrupts") == 130


def test_full_disk_says_so_and_keeps_whole_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.FileIO):
        def write(self, data: Any, /) -> int:
            if self.tell():
                raise OSError(28, "No space left on device")
            return super().write(data)

    monkeypatch.setattr("harness.cli._output.open_output", lambda *a, **k: Full("out.jsonl", "w"))
    assert batch("echo", "--limit", "1") == 1
    assert "writing the results failed: No space left on device" in capsys.readouterr().err
    assert len(lines()) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_device_that_is_full_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("echo", output="/dev/full") == 1
    assert "No space left on device" in capsys.readouterr().err


def test_a_name_that_says_csv_is_warned_of(
    clean_imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("agent_csv.py").write_text("async def same(record):\n    return record\n")
    Path("one.jsonl").write_text("{}\n")
    main(["batch", "agent_csv.py:same", "--input", "one.jsonl", "--output", "out.csv", "--quiet"])
    told = capsys.readouterr().err
    assert told.count("JSON lines") == 1
    assert "harness journal export" in told
