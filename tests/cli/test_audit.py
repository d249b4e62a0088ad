"""``harness audit``: its targets, its formats and its exit statuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main

WRONG = (
    "_folder = None\n"
    "async def agent(folder):\n"
    "    global _folder\n"
    "    _folder = folder\n"
    "    return folder\n"
    "INPUTS = ['a', 'b']\n"
)


def audit(*arguments: str) -> int:
    return main(["audit", *arguments])


def test_only_a_terminal_sees_how_far_an_audit_has_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "quiet.py").write_text("x = 1\n")
    assert main(["audit", str(tmp_path)]) == 0
    assert capsys.readouterr() == ("nothing found\n", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["audit", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert told.out == "nothing found\n"
    assert "applying the rules" in told.err
    assert main(["audit", str(tmp_path), "--quiet"]) == 0
    assert capsys.readouterr() == ("nothing found\n", "")


@pytest.mark.parametrize("terminal", [True, False])
def test_ctrl_c_ends_an_audit_with_130_and_no_traceback(
    terminal: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """And gives back the cursor, which a bar on a terminal has hidden."""
    (tmp_path / "long.py").write_text("x = 1\n")

    def interrupted(paths: object, *, tell: Callable[[int, int], None] | None = None) -> None:
        if tell is not None:
            tell(1, 4)
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.cli._audit.audit_paths", interrupted)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["audit", str(tmp_path)]) == 130
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    assert told.err.count("\x1b[?25l") == told.err.count("\x1b[?25h") == int(terminal)


def test_nothing_found_is_0(clean_imports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clean_imports / "right.py").write_text("async def agent(x): return x\n")
    assert audit("right.py") == 0
    assert capsys.readouterr().out == "nothing found\n"


def test_findings_are_1(clean_imports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clean_imports / "wrong.py").write_text(WRONG)
    assert audit("wrong.py") == 1
    assert capsys.readouterr().out.startswith("wrong.py:4:5: module-global: _folder ")
    assert audit(".", "--format", "json") == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["path"], found["symbol"]) == ("wrong.py", "_folder")
    assert audit(".", "--format", "sarif") == 1
    assert json.loads(capsys.readouterr().out)["version"] == "2.1.0"


def test_a_module_is_imported_and_its_agent_is_run(
    clean_imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a path, with what the runs of `agent` with INPUTS leave behind."""
    (clean_imports / "wrong.py").write_text(WRONG)
    assert audit("wrong", "--format", "json") == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [(one["rule"], one["path"], one["line"], one["symbol"]) for one in found] == [
        ("module-global", "wrong.py", 4, "_folder"),
        ("left-behind", "wrong.py", 1, "wrong._folder"),
    ]


def test_a_function_of_a_module_is_run_with_the_inputs_given(
    clean_imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clean_imports / "app").mkdir()
    (clean_imports / "app" / "__init__.py").write_text("")
    (clean_imports / "app" / "tools.py").write_text(
        "SEEN = {}\nasync def look(record):\n    put(record)\n"
        "def put(record):\n    SEEN[record['id']] = 1\n"
    )
    assert audit("app.tools:look", "--input", '{"id": 7}', "--all", "--format", "json") == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {one["rule"] for one in found} == {"module-global", "left-behind"}
    assert "look({'id': 7})" in found[1]["message"]


def test_a_module_without_an_agent_is_only_read(
    clean_imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clean_imports / "wrong.py").write_text(WRONG.replace("INPUTS", "OTHERS"))
    assert audit("wrong") == 1
    assert "left-behind" not in capsys.readouterr().out


def test_a_maybe_is_counted_and_shown_with_all(
    clean_imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clean_imports / "names.py").write_text("NAMES = []\ndef note(name):\n    NAMES.append(name)\n")
    assert audit("names.py") == 0
    assert capsys.readouterr().out == "nothing found; 1 more with --all\n"
    assert audit("names.py", "--all") == 1
    assert "names.py:3:5: module-global: maybe: NAMES belongs" in capsys.readouterr().out
    assert audit("names.py", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == {"findings": []}
    assert audit("names.py", "--all", "--format", "sarif") == 1
    (result,) = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    assert result["level"] == "note"


def test_of_old_code_only_new_findings_fail(
    clean_imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever has moved since, and whatever became of what was known."""
    (clean_imports / "old.py").write_text(WRONG)
    assert audit("old.py", "--format", "json") == 1
    (clean_imports / "known.json").write_text(capsys.readouterr().out)
    (clean_imports / "old.py").write_text(f"import os\n\n\n{WRONG}")
    assert audit("./old.py", "--baseline", "known.json") == 0
    assert capsys.readouterr().out == "nothing new; 1 more in the baseline\n"
    more = "async def other(name):\n    global _folder\n    _folder = name\nSEEN = []\n"
    (clean_imports / "old.py").write_text(
        f"{WRONG}{more}async def see(x): SEEN.append(x); return SEEN\n"
    )
    assert audit("old.py", "--baseline", "known.json", "--format", "json") == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["symbol"], found["function"]) == ("SEEN", "see")
    (clean_imports / "old.py").write_text("async def agent(x): return x\n")
    assert audit("old.py", "--baseline", "known.json") == 0


def test_one_more_of_the_same_in_the_same_function_is_new(
    clean_imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silence = "LOG = []  # harness: shared\n"
    (clean_imports / "old.py").write_text(silence)
    audit("old.py", "--format", "json")
    (clean_imports / "known.json").write_text(capsys.readouterr().out)
    (clean_imports / "old.py").write_text(silence * 2)
    assert audit("old.py", "--baseline", "known.json") == 1
    assert "old.py:2:" in capsys.readouterr().out


def test_an_inventory_lists_and_fails_nobody(
    clean_imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clean_imports / "wrong.py").write_text(f"raise_at_import = 1\n{WRONG}")
    assert audit("wrong.py", "--inventory") == 0
    text = capsys.readouterr().out
    assert "wrong.py:2: _folder (module variable): nothing says" in text
    assert "written by agent (line 5)" in text
    assert text.endswith("2 pieces of state: 1 unknown, 1 constant\n")
    assert audit("wrong", "--inventory", "--format", "json") == 0
    (first, _) = json.loads(capsys.readouterr().out)["state"]
    assert (first["symbol"], first["standing"]) == ("_folder", "unknown")
    assert first["written_by"] == [{"function": "agent", "path": "wrong.py", "line": 5}]
    assert audit("wrong.py", "--inventory", "--format", "markdown") == 0
    assert "| `_folder` | wrong.py:2 | module variable | unknown: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["wrong.py", "--inventory", "--format", "sarif"], "sarif", id="no inventory"),
        pytest.param(["wrong.py", "--format", "markdown"], "--inventory", id="no findings"),
        pytest.param(["wrong.py", "--inventory", "--input", "1"], "neither", id="two things"),
        pytest.param(["wrong.py", "--baseline", "no.json"], "--format json", id="not a baseline"),
        pytest.param(["wrong.py", "--baseline", "wrong.py"], "not a baseline", id="other baseline"),
        pytest.param([], "Missing argument", id="nothing"),
        pytest.param(["nowhere.py"], "'nowhere.py'", id="no such file"),
        pytest.param(["nowhere"], "no module 'nowhere'", id="no such module"),
        pytest.param(["empty"], "no Python file", id="an empty folder"),
        pytest.param(["wrong.py:agent"], "never imported", id="a function of a file"),
        pytest.param(["wrong:agnet"], "did you mean 'agent'", id="a slip of the finger"),
        pytest.param(["wrong.py", "--format", "xml"], "xml", id="no such format"),
        pytest.param(["wrong:agent", "--input", "hello"], "is not JSON", id="no JSON"),
        pytest.param(["wrong.py", "--input", "1"], "MODULE:FUNCTION", id="an input for a file"),
        pytest.param(["bare:agent"], "--input", id="no inputs"),
        pytest.param(["sys"], "no Python source", id="a module without source"),
    ],
)
def test_wrong_usage_is_2_and_says_what_to_do(
    clean_imports: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (clean_imports / "wrong.py").write_text(WRONG)
    (clean_imports / "bare.py").write_text("async def agent(x): return x\n")
    (clean_imports / "empty").mkdir()
    assert audit(*arguments) == 2
    assert said in capsys.readouterr().err
