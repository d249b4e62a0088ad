"""Finding the function that a command names."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from textwrap import dedent

import pytest

from harness.cli._errors import InputError
from harness.cli._target import load_named, load_target

pytestmark = pytest.mark.usefixtures("clean_imports")

MODULE = """
import functools
from collections.abc import Awaitable

async def classify(record): ...
async def two(record, other): ...
async def nothing(): ...
async def keyword_only(*, record): ...
async def with_default(record, model="small"): ...
async def any_number(*records): ...
async def stream(record):
    yield record
def plain(record): return record
def annotated(record) -> Awaitable[str]: return classify(record)
def text_annotated(record) -> "Awaitable[str]": return classify(record)

@functools.wraps(classify)
def wrapped(record): return classify(record)

bound_first = functools.partial(two, other=1)
plain_first = functools.partial(plain)

class Agent:
    async def __call__(self, record): ...
    async def answer(self, record): ...
    def plain(self, record): ...

agent = Agent()
number = 3
"""


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    path = tmp_path / "tickets.py"
    path.write_text(MODULE)
    return path


def refusal(target: str) -> str:
    with pytest.raises(InputError) as caught:
        load_target(target)
    assert caught.value.exit_code == 2
    return caught.value.message


@pytest.mark.parametrize(
    "name",
    [
        "classify",
        "with_default",
        "any_number",
        "annotated",
        "text_annotated",
        "wrapped",
        "bound_first",
        "agent",
        "agent.answer",
    ],
)
@pytest.mark.parametrize("place", ["tickets", "tickets.py", "./tickets.py"])
@pytest.mark.usefixtures("tickets")
@pytest.mark.slow
def test_target_is_any_callable_of_one_argument_that_returns_an_awaitable(
    place: str, name: str
) -> None:
    assert callable(load_target(f"{place}:{name}"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("two", r"takes \(record, other\), but a batch calls it with one argument"),
        ("nothing", "takes no argument"),
        ("keyword_only", r"takes \(\*, record\)"),
        ("stream", "async generator"),
        ("plain", "write `async def`"),
        ("plain_first", "plain function"),
        ("agent.plain", "plain function"),
        ("Agent", "is a class"),
        ("Agent.answer", "a method of a class, taken from the class itself; make an instance"),
        ("number", "of type int and can't be called"),
        ("clasify", "tickets has no 'clasify'; did you mean 'classify'"),
        ("agent.anser", "did you mean 'answer'"),
        ("zzz", "its async functions are agent, any_number, bound_first, classify"),
    ],
)
@pytest.mark.usefixtures("tickets")
def test_target_of_another_kind_is_refused_with_what_to_do(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_target(f"tickets:{name}")


def test_coroutine_in_place_of_a_function_names_the_line_to_change(tmp_path: Path) -> None:
    """Warnings are errors here, so this also sees a coroutine that was never awaited."""
    (tmp_path / "called.py").write_text(
        "async def classify(record): ...\n\nready = classify('x')\n"
    )
    said = refusal("called:ready")
    assert f"in line 3 of {tmp_path / 'called.py'}, remove the parentheses" in said


@pytest.mark.parametrize("target", ["tickets", "tickets:", ":classify", ""])
def test_target_without_a_function_says_the_forms(target: str) -> None:
    assert "module:function or path.py:function" in refusal(target)


@pytest.mark.usefixtures("tickets")
def test_module_that_is_not_there_is_told_from_one_that_fails() -> None:
    said = refusal("tikets:classify")
    assert "there is no module 'tikets'" in said
    assert said.endswith("; did you mean 'tickets'?")
    assert "there is no module 'nowhere'" in refusal("nowhere.agents:classify")


def test_file_that_is_not_there_names_its_neighbours(tickets: Path) -> None:
    assert refusal("ticket.py:classify").endswith("is not there; did you mean 'tickets.py'?")
    assert refusal("zzz.py:classify").endswith("; write module:function or path.py:function")
    assert "is a folder" in refusal(f"{tickets.parent}/:classify")


@pytest.mark.parametrize("target", ["broken:run", "broken.py:run"])
def test_error_inside_the_users_module_shows_their_lines_and_not_ours(
    tmp_path: Path, target: str
) -> None:
    (tmp_path / "broken.py").write_text(
        dedent(
            """
            def set_up():
                return {}["missing"]

            set_up()
            """
        )
    )
    said = refusal(target)
    assert "KeyError: 'missing'" in said
    assert 'return {}["missing"]' in said
    assert "harness" not in said
    assert "importlib" not in said


@pytest.mark.parametrize("target", ["needs:run", "needs.py:run"])
def test_import_that_fails_inside_the_users_module_is_shown_as_theirs(
    tmp_path: Path, target: str
) -> None:
    """The missing module is not the target: the advice for that would mislead."""
    (tmp_path / "needs.py").write_text("import not_installed_anywhere\n")
    said = refusal(target)
    assert "ModuleNotFoundError: No module named 'not_installed_anywhere'" in said
    assert "line 1" in said


def test_file_that_is_not_python_shows_the_line(tmp_path: Path) -> None:
    (tmp_path / "typo.py").write_text("async def run(record)\n    pass\n")
    said = refusal("typo.py:run")
    assert "SyntaxError" in said
    assert "async def run(record)" in said


def test_script_that_ends_the_program_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nsys.exit(3)\n")
    assert "__main__" in refusal("script.py:run")


def test_file_finds_the_modules_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "helpers_beside.py").write_text("LABEL = 'x'\n")
    (folder / "agent.py").write_text(
        "from helpers_beside import LABEL\nasync def run(record): return LABEL\n"
    )
    assert load_target("app/agent.py:run").__name__ == "run"


def test_file_with_the_name_of_a_known_module_does_not_replace_it(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("async def run(record): ...\n")
    known = sys.modules["json"]
    load_target(f"{tmp_path}/json.py:run")
    assert sys.modules["json"] is known
    assert isinstance(sys.modules["harness_target_json"], types.ModuleType)


def test_a_scorer_that_is_not_there_gets_the_plain_functions(clean_imports: Path) -> None:
    (clean_imports / "marks.py").write_text("def right(sample, output):\n    return True\n")
    with pytest.raises(InputError, match="its functions are right"):
        load_named("marks:zzzz", "--scorer")
