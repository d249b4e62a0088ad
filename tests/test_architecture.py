"""Hold docs/architecture.md, CONTRIBUTING.md and README.md to the tree as it is now.

The floors are drawn by tests/floors.py. The rest is written by hand, so what can go stale in it is
looked up: each file it names, and each function and class it names as a step.
"""

import re
from pathlib import Path

import pytest

from tests.floors import PAGE, table, with_table
from tests.test_layers import FLOORS, PACKAGE

ROOT = PACKAGE.parent
PAGES = [PAGE, ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
PATH = re.compile(
    r"(?<![\w/])((?:harness|harness_command|harness_pytest|tests|docs|examples|benchmarks|\.ci)/[\w./-]*)"
)
CODE = re.compile(r"`([^`\n]+)`")


def missing_files(page: str, root: Path) -> list[str]:
    """Return the files and folders that a page names in code but that don't exist."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    named = {path for code in CODE.findall(prose) for path in PATH.findall(code)}
    return sorted(path for path in named if not (root / path).exists())


def missing_names(life: str, root: Path) -> list[str]:
    """Return the functions and classes of a life that none of the files it names defines.

    What counts as one: ``Class.method``, ``_private``, and what stands in parentheses behind a
    file, which has to be in that very file.
    """
    sources = {
        path: (root / path).read_text(encoding="utf-8")
        for path in PATH.findall(life)
        if (root / path).is_file()
    }

    def is_defined(name: str, texts: list[str]) -> bool:
        return all(
            any(re.search(rf"\b(?:def|class) {part}\b", text) for text in texts)
            for part in name.split(".")
        )

    missing = [
        name
        for name in CODE.findall(life)
        if re.fullmatch(r"[A-Z]\w*\.\w+|_\w+", name)
        and not is_defined(name, list(sources.values()))
    ]
    for path, names in re.findall(r"`([^`\n]+\.py)`\s+\(((?:`[\w.]+`,?\s*)+)\)", life):
        missing += [
            f"{name} in {path}"
            for name in CODE.findall(names)
            if not is_defined(name, [sources.get(path, "")])
        ]
    return missing


def lives(page: str) -> dict[str, str]:
    """Return the sections of a page that describe a life, by title."""
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    titled = {section.split("\n", 1)[0]: section for section in sections}
    return {title: text for title, text in titled.items() if title.startswith("The life of ")}


@pytest.mark.slow
def test_the_floors_are_drawn_from_the_imports() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page, table(PACKAGE, FLOORS)), "stale: run python -m tests.floors"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    assert missing_files(page.read_text(encoding="utf-8"), ROOT) == []


@pytest.mark.parametrize(
    "life", lives(PAGE.read_text(encoding="utf-8")).values(), ids=lambda life: life.split("\n")[0]
)
def test_each_step_of_a_life_is_where_it_says(life: str) -> None:
    assert missing_names(life, ROOT) == []


def test_the_readme_leads_to_where_a_retry_is_decided() -> None:
    """Two steps: the README names the page and the question, and the page names the file."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"docs/architecture\.md.{1,400}\bretry\b", readme, flags=re.DOTALL)
    item = lives(PAGE.read_text(encoding="utf-8"))["The life of an item"]
    assert re.search(r"\*\*Retry or not:\*\* `harness/[\w/]+\.py`", item)


# The checks can fail -----------------------------------------------------------------------------


def test_a_part_without_its_imports_is_told(tmp_path: Path) -> None:
    house = tmp_path / "house"
    for part, text in {
        "runs/__init__.py": '"""Runs. And more."""\nfrom house import errors',
        "fanout/__init__.py": '"""Many\nitems."""',
        "fanout/_engine.py": "def f() -> None:\n    from house.runs._run import Run",
        "errors.py": '"""Errors."""',
    }.items():
        (house / part).parent.mkdir(parents=True, exist_ok=True)
        (house / part).write_text(text, encoding="utf-8")
    drawn = table(house, {"errors": 0, "runs": 1, "fanout": 2, "planned": 3})
    assert drawn.splitlines()[2:] == [
        "| 2 | `fanout` | Many items | `runs` |",
        "| 1 | `runs` | Runs |  |",
        "| 0 | `errors` | Errors |  |",
    ]


def test_a_file_that_has_moved_is_told(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page = "see `docs/` and `docs/gone.md`\n```console\n$ `docs/shown.md`\n```\n"
    assert missing_files(page, tmp_path) == ["docs/gone.md"]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param("`harness/a.py` (`Work.start`, `go`) and `_nap`", [], id="sound"),
        pytest.param("`harness/a.py`: `Work.stop`", ["Work.stop"], id="a method"),
        pytest.param("`harness/a.py`: `_doze`", ["_doze"], id="a private function"),
        pytest.param(
            "`harness/a.py` (`go`), `harness/b.py`\n  (`go`)",
            ["go in harness/b.py"],
            id="another file than it says",
        ),
    ],
)
def test_a_step_that_has_moved_is_told(tmp_path: Path, step: str, expected: list[str]) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "b.py").write_text("", encoding="utf-8")
    (tmp_path / "harness" / "a.py").write_text(
        "class Work:\n    def start(self): ...\ndef go(): ...\ndef _nap(): ...\n", encoding="utf-8"
    )
    assert missing_names(step, tmp_path) == expected
