"""Run what the documents show: doctests, the blocks of README and docs, and the examples.

In README.md and the pages of docs, in whatever folder:

- A block fenced as ``python`` is a whole program. It is run, and the block fenced as ``text`` that
  comes next, before any other code, is what it prints; without one it prints nothing.
- A block fenced as ``console`` is for reading. Under ``<!-- run -->`` its lines after ``$ `` are
  run by a shell, in an empty folder; the other lines are what they print. If the page speaks of
  ``examples/``, the folder holds them.
- A block of any language under ``<!-- file: NAME -->`` is saved there first, for such commands.
- A block fenced as ``ipython`` is a cell. The cells of a page are run by IPython's shell, one after
  the other; output is shown as for ``python``.
- ``<!-- continues -->`` over a python block: it goes on in the names of the block before.
- ``<!-- not run: REASON -->`` over a python block: it is only looked at (it must parse).

So the tutorial is typed along. With HARNESS_TUTORIAL_PYTHON the commands are those of another
environment, for instance one with nothing but the wheel:

    HARNESS_TUTORIAL_PYTHON=DIR/bin/python pytest tests/test_documents.py -k "console and tutorial"

Wherever output is compared, ``...`` stands for anything, as in doctests. What an example prints is
compared with its header in tests/examples; here stands only that each has such a test.
"""

import ast
import asyncio
import contextlib
import contextvars
import doctest
import importlib
import io
import itertools
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import harness
from tests.scale import PATIENCE_SECONDS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(
        page
        for page in DOCS.rglob("*.md")
        if page.relative_to(DOCS).parts[0] not in ("_build", "changes")
    ),
]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CHANGES = sorted((DOCS / "changes").glob("*.md"))
PROSE = [*PAGES, *CHANGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>[\w-]*)[^`]*$")
# A batch tells its progress if it takes a second, which depends on the machine.
PROGRESS = re.compile(r"^[\d,]+ of [\d,]+ done, .*\n", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
COMMENT = re.compile(r"^<!-- (?P<said>.*?) -->$")


def name_of(page: Path) -> str:
    """Return a page's path from the root."""
    return str(page.relative_to(ROOT))


@attrs.frozen
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    line: int
    """The line of the page on which the text begins."""
    said: str
    """The comment right above the block, or an empty string."""


def blocks_in(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order."""
    said = ""
    lines = iter(enumerate(page.splitlines(), start=1))
    for number, line in lines:
        comment = COMMENT.match(line)
        opening = FENCE.match(line)
        if comment:
            said = comment["said"]
        elif opening:
            inner: list[str] = []
            for _, text in lines:
                if text.rstrip() == opening["fence"]:
                    break
                inner.append(text + "\n")
            yield Block(opening["language"], "".join(inner), number + 1, said)
            said = ""
        elif line.strip():
            said = ""


def long_lines(page: str) -> list[str]:
    """Return the lines of prose that could be wrapped at 100 columns and aren't."""
    prose = re.sub(r"^(`{3,}).*?^\1", "", page, flags=re.MULTILINE | re.DOTALL)
    return [
        line
        for line in prose.splitlines()
        if len(line) > 100 and not line.startswith(("|", "#", "<!--")) and " " in line.strip()
    ]


def broken_links(page: Path) -> list[str]:
    """Return the links of a page to files and headings that don't exist.

    Sphinx looks at those between the pages of the site; this, at those from outside it, too.
    """
    broken = []
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        name, _, heading = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists():
            broken.append(target)
        elif heading:
            titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]
            if heading not in slugs:
                broken.append(target)
    return broken


def check_output(expected: str, printed: str, where: str) -> None:
    """Fail with a diff unless the output is as shown, ``...`` standing for anything."""
    checker = doctest.OutputChecker()
    options = doctest.ELLIPSIS | doctest.REPORT_NDIFF
    if not checker.check_output(expected, printed, options):
        example = doctest.Example("", expected)
        pytest.fail(f"{where}\n{checker.output_difference(example, printed, options)}", False)


def run_python_blocks(page: str, name: str) -> int:
    """Run the python blocks of a page, compare what they print, and return how many ran."""
    blocks = [block for block in blocks_in(page) if block.language in ("python", "text")]
    names: dict[str, Any] = {}
    ran = 0
    for block, after in itertools.zip_longest(blocks, blocks[1:]):
        if block.language != "python":
            continue
        where = f"{name}:{block.line}"
        # Blank lines in front, so that a traceback names the line of the page.
        source = "\n" * (block.line - 1) + block.text
        if block.said.startswith(("not run:", "file:")):
            ast.parse(source, name)
            continue
        if block.said != "continues":
            names = {"__name__": "__main__"}
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, name, "exec"), names)
        expected = after.text if after is not None and after.language == "text" else ""
        check_output(expected, printed.getvalue(), where)
        ran += 1
    return ran


SHELL = """
import contextlib, io, json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="nocolor")
printed = []
for cell in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        shell.run_cell(cell, store_history=True).raise_error()
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


def run_ipython_blocks(page: str, name: str, folder: Path) -> int:
    """Run the cells of a page, compare what they print, and return how many ran."""
    blocks = [block for block in blocks_in(page) if block.language in ("ipython", "text")]
    cells = [block for block in blocks if block.language == "ipython"]
    if not cells:
        return 0
    done = subprocess.run(
        [sys.executable, "-c", SHELL],
        cwd=folder,
        env={**os.environ, "IPYTHONDIR": str(folder)},
        input=json.dumps([cell.text for cell in cells]),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{name}:{cells[0].line}\n{done.stderr}"
    printed = iter(json.loads(done.stdout))
    for block, after in itertools.zip_longest(blocks, blocks[1:]):
        if block.language == "ipython":
            expected = after.text if after is not None and after.language == "text" else ""
            check_output(expected, next(printed), f"{name}:{block.line}")
    return len(cells)


def run_console_blocks(page: str, name: str, folder: Path) -> int:
    """Run the console blocks of a page that ask for it, and return how many commands ran."""
    if "examples/" in page:
        (folder / "examples").symlink_to(ROOT / "examples")
    python = os.environ.get("HARNESS_TUTORIAL_PYTHON", sys.executable)
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    environment["PATH"] = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
    # Not the plugins that this environment happens to have: a reader doesn't.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    ran = 0
    for block in blocks_in(page):
        if block.said.startswith("file: "):
            (folder / block.said.removeprefix("file: ")).write_text(block.text, encoding="utf-8")
        if block.language != "console" or block.said != "run":
            continue
        for shown in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, expected = shown.split("\n", 1)
            done = subprocess.run(
                ["sh", "-c", command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE_SECONDS,
                check=False,
            )
            printed = done.stdout
            if not PROGRESS.search(expected):
                printed = PROGRESS.sub("", printed)
            check_output(expected, printed, f"{name}:{block.line} $ {command}")
            ran += 1
    return ran


# What the documents show -------------------------------------------------------------------------

MODULES = ["harness"] + [
    module.name
    for module in pkgutil.walk_packages(harness.__path__, "harness.")
    if not module.name.endswith("__main__")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_doctests(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    with contextlib.chdir(tmp_path):  # What a page writes is gone with it.
        run_python_blocks(text, name_of(page))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_cells_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    run_ipython_blocks(page.read_text(encoding="utf-8"), name_of(page), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_console_blocks_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    run_console_blocks(page.read_text(encoding="utf-8"), name_of(page), tmp_path)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_every_example_has_a_test(example: Path) -> None:
    """The tests of the examples compare what each prints with what its header promises."""
    tests = ROOT / "tests" / "examples" / f"test_{example.name}"
    assert tests.is_file()
    if "__main__" in example.read_text(encoding="utf-8"):
        assert "promised_output(" in tests.read_text(encoding="utf-8")


def test_the_table_of_what_shows_what_has_all_tests_and_no_others() -> None:
    page = (DOCS / "explanations" / "index.md").read_text(encoding="utf-8")
    named = re.findall(r"\btests/[\w/]*\w(?:\.py)?", page)
    assert [name for name in named if not (ROOT / name).exists()] == []
    folders = {one.parent.relative_to(ROOT).parts[1] for one in ROOT.glob("tests/*/**/test_*.py")}
    assert [one for one in folders - {"support"} if f"tests/{one}" not in page] == []


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_change_says_its_kind_in_its_name(change: Path) -> None:
    """`docs/changes/README.md` says how an entry is named and written."""
    if change.name != "README.md":
        assert re.fullmatch(r"[a-z0-9-]+\.(added|changed|fixed|removed)\.md", change.name)
        assert change.read_text(encoding="utf-8").strip()


def test_a_change_is_short_and_told_once() -> None:
    """The changelog is read by people who look for what concerns them."""
    told: dict[str, str] = {}
    for change in CHANGES:
        text = change.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 12, f"{change.name} is long: keep what users must know"
        for sentence in re.split(r"(?<=[.:])\s+", text):
            words = " ".join(sentence.split())
            if len(words) > 60 and not words.startswith("See "):
                assert words not in told, f"{change.name} and {told[words]} say the same"
                told[words] = change.name
    assert len(told) > 500


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_prose_wraps_at_100_columns(page: Path) -> None:
    """Diffs and editors show whole lines. Code, tables and what can't be broken may be longer."""
    assert long_lines(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_the_table_for_those_from_asyncio_names_what_exists() -> None:
    table = (DOCS / "reference" / "from-asyncio.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2:5] for line in table.splitlines() if line.startswith("| ")][2:]
    places: list[tuple[object, ...]] = [
        (asyncio, asyncio.AbstractEventLoop, asyncio.Task, contextvars),
        (trio, trio.testing, trio.to_thread, trio.CancelScope, contextvars),
        (harness, trio),
    ]
    unknown = [
        code
        for row in rows
        for cell, where in zip(row, places, strict=True)
        for code in re.findall(r"`([\w.]+)(?:\([^`]*)?`", cell)
        if not any(hasattr(place, code.rpartition(".")[2]) for place in where)
    ]
    assert len(rows) > 20
    assert unknown == []


def test_the_changelog_is_made_of_the_changes() -> None:
    """`towncrier build` moves them there at a release; a draft writes nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "1.2.3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = [line.strip() for line in done.stdout.replace("](docs/", "](../").splitlines()]
    kinds = [line.removeprefix("### ") for line in said if line.startswith("### ")]
    assert kinds == [kind for kind in ("Added", "Changed", "Fixed", "Removed") if kind in kinds]
    for change in CHANGES:
        if change.name != "README.md":
            first = change.read_text(encoding="utf-8").splitlines()[0]
            assert f"- {first}" in said, f"{change.name} is not in the changelog"


# The reading of documents can fail ---------------------------------------------------------------

PAGE = """\
```python
print("one of", 1 + 1)
```

It prints:

```text
one of ...
```

<!-- continues -->
```python
import math as names_stay
```
<!-- continues -->
```python
assert names_stay.pi > 3
```

<!-- not run: it would wait for ever -->
```python
while True: pass
```
"""


def test_a_page_that_tells_the_truth_passes() -> None:
    assert run_python_blocks(PAGE, "page.md") == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("one of ...", "two of 2", id="other output"),
        pytest.param("```text\none of ...\n```", "", id="output that is not shown"),
    ],
)
def test_a_page_that_shows_other_output_fails(old: str, new: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"page\.md:2"):
        run_python_blocks(PAGE.replace(old, new), "page.md")


def test_an_error_in_a_page_names_its_line() -> None:
    with pytest.raises(AssertionError) as caught:
        run_python_blocks(PAGE.replace("pi > 3", "pi > 4"), "page.md")
    assert caught.traceback[-1].lineno + 1 == 17


def test_names_do_not_stay_unless_a_page_says_so() -> None:
    with pytest.raises(NameError):
        run_python_blocks(PAGE.replace("<!-- continues -->", ""), "page.md")


def test_long_prose_is_told_apart_from_what_may_be_long() -> None:
    long = "word " * 30
    page = f"{long}1\n| {long} |\n```text\n{long}\n```\n````md\n```\n{long}\n```\n````\n- {long}2\n"
    assert [line[-1] for line in long_lines(page)] == ["1", "2"]


def test_links_that_lead_nowhere_are_told(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A `title`, really\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md#a-title-really) [b](there.md#title) [c](gone.md) [d](https://e.example/f.md)",
        encoding="utf-8",
    )
    assert broken_links(page) == ["there.md#title", "gone.md"]


def test_console_blocks_are_compared_too(tmp_path: Path) -> None:
    page = (
        "<!-- run -->\n```console\n$ echo a; echo b\na\nb\n$ true\n```\n```console\n$ false\n```\n"
    )
    (tmp_path / "true").mkdir()
    (tmp_path / "false").mkdir()
    assert run_console_blocks(page, "page.md", tmp_path / "true") == 2
    with pytest.raises(pytest.fail.Exception, match=r"page\.md:3 \$ echo"):
        run_console_blocks(page.replace("b\n$", "c\n$"), "page.md", tmp_path / "false")


def test_a_slow_machine_may_show_progress(tmp_path: Path) -> None:
    shown = "```console\n$ printf '5 of 12 done, 0 failed\\n12 items\\n'\n12 items\n```\n"
    assert run_console_blocks(f"<!-- run -->\n{shown}", "page.md", tmp_path) == 1


def test_files_are_saved_for_the_commands(tmp_path: Path) -> None:
    page = "<!-- file: a.txt -->\n```text\nhello\n```\n"
    page += "<!-- run -->\n```console\n$ cat a.txt\nhello\n```\n"
    assert run_console_blocks(page, "page.md", tmp_path) == 1


@pytest.mark.slow
def test_cells_are_compared_too(tmp_path: Path) -> None:
    page = "```ipython\n%autoawait trio\n1 + 1\n```\n```text\nOut[1]: 2\n```\n"
    assert run_ipython_blocks(page, "page.md", tmp_path) == 1
    with pytest.raises(pytest.fail.Exception, match=r"page\.md:2"):
        run_ipython_blocks(page.replace("2\n```", "3\n```"), "page.md", tmp_path)
    with pytest.raises(AssertionError, match=r"page\.md:2[\s\S]*ZeroDivisionError"):
        run_ipython_blocks(page.replace("1 + 1", "1 / 0"), "page.md", tmp_path)
