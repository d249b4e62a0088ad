"""The program around the commands: help, version, completion, and the missing extra."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import harness
import harness.cli
from harness.cli import main
from tests.scale import PATIENCE_SECONDS

ROOT = Path(harness.cli.__file__).parents[2]


def python(*arguments: str, code: int = 0) -> str:
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ran.returncode == code, ran.stderr
    return ran.stdout + ran.stderr


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"harness, version \d+\.\d+.*\n", capsys.readouterr().out)


def test_help_of_batch_has_examples_and_explains_every_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["batch", "--help"]) == 0
    said = capsys.readouterr().out
    assert said.count("harness batch ") >= 5
    options = (
        "input output format key skip-bad first sample seed limit timeout retry hedge "
        "priority policy grace overwrite ordered summary quiet log-level dry-run"
    )
    for option in options.split():
        described = re.search(rf"--{option}\b.*?(?=\n  -|\Z)", said, re.DOTALL)
        assert described is not None
        assert len(described[0]) > 40
    assert "Exit status: 0" in said


def test_examples_in_the_help_are_commands_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    """An option that was renamed must not live on in an example."""
    main(["batch", "--help"])
    said = capsys.readouterr().out
    used = set(re.findall(r"--[a-z-]+", said.partition("Examples:")[2].partition("Ctrl-C")[0]))
    known = set(re.findall(r"^  (--[a-z-]+)", said.partition("Options:")[2], re.MULTILINE))
    assert used
    assert used <= known


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_asks_the_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"_HARNESS_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_completion_answers_what_the_script_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_HARNESS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "harness batch agent.py:run --su")
    monkeypatch.setenv("COMP_CWORD", "3")
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 0
    assert "--summary" in capsys.readouterr().out


Importer = Callable[[str], types.ModuleType]


@pytest.fixture
def import_afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Importer]:
    """What imports the command line where something is not installed; all is undone afterwards."""
    before = set(sys.modules)
    # The import binds the new module to the package, where other tests would find it.
    monkeypatch.setattr(harness, "cli", harness.cli)

    def import_without(missing: str) -> types.ModuleType:
        for name in list(sys.modules):
            if name.partition(".")[0] == missing or name.startswith("harness.cli"):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, missing, None)
        return importlib.import_module("harness.cli")

    yield import_without
    # What wasn't there before has classes of its own, which other tests wouldn't know.
    for name in set(sys.modules) - before:
        if name.startswith("harness.cli"):
            del sys.modules[name]


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_missing_extra_is_named(
    missing: str, import_afresh: Importer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert import_afresh(missing).main(["--version"]) == 2
    said = capsys.readouterr().err
    assert "run: pip install 'trio-harness[cli]'" in said
    assert missing in said


def test_other_missing_modules_are_not_hidden(import_afresh: Importer) -> None:
    """A bug of ours must not look like a missing extra."""
    program = import_afresh("harness.cli._target")
    with pytest.raises(ImportError, match="_target"):
        program.main(["batch", "agent.py:run", "--input", "in.csv", "--output", "out.jsonl"])


@pytest.mark.slow
def test_program_runs_as_a_module() -> None:
    assert "Usage: harness" in python("-m", "harness", "--help")
    assert "No such command 'bacth'" in python("-m", "harness", "bacth", code=2)


@pytest.mark.slow
def test_library_does_not_load_the_command_line() -> None:
    program = (
        "import sys, harness\nprint(sorted({'click', 'rich', 'harness.cli'} & set(sys.modules)))\n"
    )
    assert python("-c", program) == "[]\n"


LOADED = """
import contextlib, io, sys
from harness.cli import main

with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())), contextlib.suppress(SystemExit):
    main(sys.argv[1:])
folders = {name.split(".")[1] for name in sys.modules if name.startswith("harness.")}
dear = {"h11", "msgspec", "pytest", "rich.console", "trio.testing"} & set(sys.modules)
always = {"cli", "errors", "fanout", "policies", "runs"}
assert always <= folders
print(*sorted({name for name in folders - always if name[0] != "_"} | dear))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "loaded"),
    [
        ("--help", ""),
        ("--version", ""),
        ("completion bash", ""),
        ("batch --help", ""),
        ("eval --help", ""),
        ("journal --help", "journal shared"),
        ("audit --help", "testing"),
        ("audit agent.py", "testing"),
        ("ghostwrite --help", "testing"),
        ("sim-provider --help", "budgets limits models testing"),
        (
            "batch agent.py:echo --input in.txt --output out.jsonl --journal run.db",
            "journal limits observe rich.console shared",
        ),
        ("doctor --help", ""),
        ("doctor", ""),
        ("dump --help", "limits observe rich.console"),
        ("top --help", "limits observe rich.console"),
        ("journal show run.db", "journal shared"),
    ],
)
def test_a_command_imports_what_it_needs_and_no_more(
    command: str, loaded: str, tmp_path: Path
) -> None:
    """Who asks for help, or presses a key for a completion, waits for nothing else.

    And none imports pytest, as `trio.testing` does where it is installed.
    """
    (tmp_path / "agent.py").write_text("async def echo(record):\n    return record\n")
    (tmp_path / "in.txt").write_text("one\n")
    arguments = [sys.executable, "-c", LOADED, *command.split()]
    ran = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == loaded.split()


@pytest.mark.slow
def test_completing_an_option_loads_no_more_than_help() -> None:
    program = (
        "import os\n"
        "os.environ |= {'_HARNESS_COMPLETE': 'bash_complete', 'COMP_CWORD': '2',"
        " 'COMP_WORDS': 'harness batch --su'}\n"
    )
    assert python("-c", program + LOADED) == "\n"
