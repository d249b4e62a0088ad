"""``harness init``: the project that it writes works at once, and nothing is written over."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.cli import main
from tests.scale import PATIENCE_SECONDS
from tests.support.permissions import as_somebody, needs_permissions

FILES = [
    ".github/workflows/tests.yml",
    ".gitignore",
    "README.md",
    "agent.py",
    "messages.csv",
    "nightly.py",
    "pyproject.toml",
    "test_agent.py",
]


@pytest.fixture
def project(clean_imports: Path) -> Path:
    assert main(["init", "project"]) == 0
    return clean_imports / "project"


def files_in(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): None if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python there, with nothing that could name a provider or hold its key."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=project,
        env={**kept, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parents[2]), "."))},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


@pytest.mark.slow
def test_its_own_tests_pass_at_once(project: Path) -> None:
    """Offline, and with what is installed here."""
    ran = run(project, "-m", "pytest", "-q", "-p", "no:asyncio", "--schedules=40")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout


@pytest.mark.full
def test_its_tests_find_an_agent_that_leaks(project: Path) -> None:
    """And limits that aren't kept, and an answer that is asked for twice: so much for passing."""
    agent = project / "agent.py"
    text = agent.read_text().replace(
        "@tool\ndef opening_hours(day: str) -> str:",
        "asked: list[str] = []\n\n\n@tool\nasync def opening_hours(day: str) -> str:",
    )
    text = re.sub(
        r"    return \"closed\".*",
        "    asked.append(day)\n    await trio.sleep(0)\n    return asked[-1] * len(asked)",
        text,
    )
    agent.write_text(text.replace("import attrs\n", "import attrs\nimport trio\n"))
    tests = project / "test_agent.py"
    tests.write_text(tests.read_text().replace("limiter=LIMITS)", "limiter=None)"))
    batch = project / "nightly.py"
    batch.write_text(batch.read_text().replace('"--resume", ', '"--overwrite", '))
    ran = run(project, "-m", "pytest", "-q", "-p", "no:asyncio", "--schedules=40")
    assert "3 failed" in ran.stdout, ran.stdout + ran.stderr
    assert "agent.asked  (list)" in ran.stdout


def test_it_has_what_is_needed_and_no_more(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sorted(files_in(project)) == FILES
    assert main(["init", "again"]) == 0
    said = capsys.readouterr().out.replace("again", "project")
    assert said.splitlines() == [
        *(str(Path("project") / name) for name in FILES),
        'next: cd project; pip install --editable ".[test]"; pytest',
    ]
    assert main(["audit", str(project / "agent.py"), str(project / "nightly.py")]) == 0


@pytest.mark.skipif(find_spec("ruff") is None, reason="needs ruff")
def test_it_is_written_as_ruff_has_it(project: Path) -> None:
    linted = run(project, "-m", "ruff", "check", "--isolated", "--line-length=100", ".")
    assert linted.returncode == 0, linted.stdout
    formatted = run(project, "-m", "ruff", "format", "--isolated", "--line-length=100", "--check")
    assert formatted.returncode == 0, formatted.stdout


def test_the_commands_in_its_readme_are_there(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (project / "README.md").read_text()
    text += (project / ".github/workflows/tests.yml").read_text()
    commands = re.findall(r"harness ((?:journal )?\w+)( .*)", text)
    assert [name for name, _ in commands] == [
        *("journal show", "journal export", "verify", "audit"),
    ]
    for name, arguments in commands:
        capsys.readouterr()
        assert main([*name.split(), "--help"]) == 0
        known = capsys.readouterr().out
        for option in re.findall(r"--[a-z-]+", arguments):
            assert option in known, name
        for file in re.findall(r"\w+\.(?:py|csv|toml)", arguments):
            assert (project / file).exists()


@pytest.mark.parametrize(
    ("folder", "name"),
    [("My Agents_2.0", "my-agents-2-0"), ("Größe", "gr-e"), ("__", "project")],
)
def test_the_project_is_called_like_its_folder(
    folder: str, name: str, clean_imports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clean_imports / folder).mkdir()
    monkeypatch.chdir(folder)
    assert main(["init"]) == 0
    assert tomllib.loads(Path("pyproject.toml").read_text())["project"]["name"] == name
    assert Path("README.md").read_text().startswith(f"# {name}\n")


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_written_over(
    name: str, clean_imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is half a project left: all is looked at first. A link to nothing is something, too."""
    taken = clean_imports / "new" / name
    taken.parent.mkdir(parents=True)
    if name == "README.md":
        taken.symlink_to("nowhere")
    else:
        taken.write_text("mine")
    before = files_in(clean_imports)
    assert main(["init", "new"]) == 2
    assert files_in(clean_imports) == before
    assert f"'new' already has {name}, and nothing is overwritten" in capsys.readouterr().err


def test_a_folder_that_cant_be_made_is_named(
    clean_imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("mine")
    assert main(["init", "file"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("Error: 'file")
    assert Path("file").read_text() == "mine"


@needs_permissions
def test_a_folder_without_permission_is_named(
    clean_imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("closed").mkdir(mode=0o500)
    with as_somebody(clean_imports):
        assert main(["init", "closed"]) == 2
    assert "can't be written: Permission denied" in capsys.readouterr().err
