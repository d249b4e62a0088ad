"""The migration in `examples/migration`: five lines for each class, and what they change."""

from __future__ import annotations

import ast
import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from migration import compare
from tests.examples.headers import promised_output
from tests.scale import PATIENCE_SECONDS

MIGRATION = Path(__file__).parents[3] / "examples" / "migration"
HARNESSES = sorted(path.name for path in (MIGRATION / "before").glob("*.py"))
LINES_AT_MOST = 5


def run_tests(tests: str, folder: str, at: Path) -> tuple[str, dict[str, str]]:
    """Run the tests of a folder against one of the two, and return the output and the outcomes."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", str(MIGRATION / tests)],
        cwd=at,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(MIGRATION / folder), *sys.path])},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    outcomes = {}
    for line in done.stdout.splitlines():
        outcome, _, rest = line.partition(" ")
        if outcome in ("PASSED", "FAILED", "ERROR"):
            outcomes[rest.partition("::")[2].partition(" ")[0]] = outcome
    assert outcomes, done.stdout + done.stderr
    return done.stdout, outcomes


def class_of_lines(source: str) -> dict[int, str]:
    """Return the name of the class that each line of a module is in, with its decorators."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            first = min([node.lineno, *[one.lineno for one in node.decorator_list]])
            for line in range(first, (node.end_lineno or first) + 1):
                found[line] = node.name
    return found


def changed_lines(name: str) -> dict[str | None, list[str]]:
    """Return the lines that a move takes away and adds, by class; None outside of any.

    A line that takes the place of another is counted twice; blank lines are not counted.
    """
    before = (MIGRATION / "before" / name).read_text(encoding="utf-8")
    after = (MIGRATION / "after" / name).read_text(encoding="utf-8")
    sides = {"-": class_of_lines(before), "+": class_of_lines(after)}
    numbers = {"-": 0, "+": 0}
    changed: dict[str | None, list[str]] = {}
    for line in difflib.ndiff(before.splitlines(), after.splitlines()):
        sign, text = line[0], line[2:]
        if sign == "?":
            continue
        for side in ("-", "+"):
            numbers[side] += sign in (" ", side)
        if sign != " " and text.strip():
            changed.setdefault(sides[sign].get(numbers[sign]), []).append(line)
    return changed


@pytest.mark.parametrize("name", HARNESSES)
def test_each_class_is_moved_in_five_lines_at_most(name: str) -> None:
    changed = changed_lines(name)
    outside = changed.pop(None, [])
    assert changed, "nothing was moved"
    for of_class, lines in changed.items():
        assert len(lines) <= LINES_AT_MOST, (of_class, lines)
    # Besides, there is an import that goes, one that comes, and a `RunLocal`.
    assert len(outside) <= 3, outside


def test_what_is_counted_are_the_lines_of_a_class() -> None:
    assert class_of_lines("a = 1\n\n\n@b\nclass C:\n    d = 2\n\n\ne = 3\n") == {
        4: "C",
        5: "C",
        6: "C",
    }
    (lines,) = [lines for of, lines in changed_lines("reviewer.py").items() if of == "Reviewer"]
    assert [line[0] for line in lines] == ["-", "+", "+", "+", "+"]


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["before", "after"])
def test_the_old_tests_pass_unchanged_before_and_after(folder: str, tmp_path: Path) -> None:
    _, outcomes = run_tests("old_tests", folder, tmp_path)
    assert len(outcomes) == 11
    assert set(outcomes.values()) == {"PASSED"}


@pytest.mark.slow
@pytest.mark.real_clock
def test_the_new_tests_fail_before_and_pass_after(tmp_path: Path) -> None:
    """Each of them, so each finds a leak and none is there for nothing."""
    said, before = run_tests("new_tests", "before", tmp_path)
    assert len(before) == 7
    assert set(before.values()) == {"FAILED"}
    # The kit says which objects, one for each place that state was kept in.
    for state in ("current.text", "current.channel[0]", "current.cancelled", "Review.remarks"):
        assert re.search(rf"{re.escape(state)} .*\((attribute|list)\)", said), state
    assert "had contents of their own for each run, every run gave what it gives alone" in said
    _, after = run_tests("new_tests", "after", tmp_path)
    assert after == dict.fromkeys(before, "PASSED")


@pytest.mark.slow
def test_the_comparison_prints_what_its_header_promises(capsys: pytest.CaptureFixture[str]) -> None:
    compare.main()
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    promised = [line.split() for line in promised_output(compare)]
    assert printed[0] == promised[0]
    for row, promise in zip(printed[1:], promised[1:], strict=True):
        before, after = promise[: promise.index("...")], promise[promise.index("...") + 1 :]
        assert row[: len(before)] == before
        assert row[-len(after) :] == after
        assert row[len(before) + 1] == "µs"
