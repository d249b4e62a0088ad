"""What a function is made of is compared from session to session, and told if it has changed."""

from __future__ import annotations

import functools
import importlib.util
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import HarnessWarning, JournalMismatchError
from harness.flow import Pipeline
from harness.journal import open_journal, read_journal
from harness.journal._source import fingerprint
from tests.support.checkpoints import cancel_at_every_checkpoint

AGENT = '''
import functools, json
from dataclasses import dataclass

PROMPT = "Say {}"
MOST = 3
calls = 0

@dataclass
class Answer:
    text: str
    def upper(self):
        return self.text.upper()

def helper(item):
    return inner(item)

def inner(item):
    return f"{item}"

def unused(item):
    return item

async def classify(item):
    """Classify."""
    global calls
    calls += 1
    return Answer(PROMPT.format(helper(item))).upper()[:MOST]

class Classifier:
    def __init__(self):
        self.seen = []
    async def __call__(self, item):
        return self.help(item)
    def help(self, item):
        return item
    def unused(self):
        return 1

small = lambda item: item
'''

Prints = Callable[..., dict[str, str]]


@pytest.fixture
def prints(tmp_path: Path) -> Prints:
    """Return what makes a module of the text above, changed, and takes a fingerprint in it."""
    count = iter(range(100))

    def load(old: str = "", new: str = "", name: str = "classify") -> dict[str, str]:
        path = tmp_path / f"agent{next(count)}.py"  # Else Python reads the old one from memory.
        assert old in AGENT
        path.write_text(AGENT.replace(old, new) if old else AGENT)
        module = loaded(path)
        function = getattr(module, name)
        return fingerprint(function() if isinstance(function, type) else function, {})

    return load


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("agent_of_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["agent_of_test"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["agent_of_test"]
    return module


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("[:MOST]", "[1:MOST]", {"classify()"}),
        ('"Say {}"', '"Tell {}"', {"PROMPT"}),
        ("MOST = 3", "MOST = 4", {"MOST"}),
        ('f"{item}"', 'f"<{item}>"', {"inner()"}),
        ("self.text.upper()", "self.text.lower()", {"Answer"}),
        ("return inner(item)", "return str(item)", {"helper()", "inner()"}),
        ("return item\n\nasync", "return 2\n\nasync", set()),
        ("calls = 0", "calls = 7", set()),
        ("    return inner(item)", "    # Inner.\n\n    return (inner( item ))", set()),
        ("import functools, json", "import functools\n\n\nimport json", set()),
    ],
)
def test_what_a_function_uses_of_its_module_counts(
    prints: Prints, old: str, new: str, parts: set[str]
) -> None:
    """Not comments, layout, place, state, or what it doesn't use."""
    assert changed(prints(), prints(old, new)) == parts


def test_methods_count_that_a_callable_calls(prints: Prints) -> None:
    before = prints(name="Classifier")
    assert changed(before, prints("return self.help", "return 1 or self.help", "Classifier")) == {
        "Classifier.__call__()"
    }
    change = "help(self, item):\n        return item", "help(self, item):\n        return 2"
    assert changed(before, prints(*change, "Classifier")) == {"Classifier.help()"}
    assert changed(before, prints("return 1", "return 2", "Classifier")) == set()


def test_a_lambda_counts_by_its_code(prints: Prints) -> None:
    """Its source is whole lines, with whatever else is in them."""
    before = prints(name="small")
    assert before
    assert changed(before, prints("lambda item: item", "lambda item:  item ", "small")) == set()
    assert changed(before, prints("lambda item: item", "lambda item: [item]", "small"))


def made(prompt: str, state: list[int]) -> Any:
    async def classify(item: Any) -> Any:
        await trio.lowlevel.checkpoint()
        state.append(item)
        return f"{prompt}{item}"

    return classify


def test_texts_around_a_function_and_given_to_it_count() -> None:
    first = fingerprint(made("old", []), {})
    assert changed(first, fingerprint(made("old", [1]), {})) == set()
    assert changed(first, fingerprint(made("new", []), {})) == {"prompt"}
    one, other = (functools.partial(made("old", []), model=name) for name in "ab")
    assert changed(fingerprint(one, {}), fingerprint(other, {})) == {"argument model"}
    whole = fingerprint(Pipeline(made("old", [])), {})
    assert whole == first
    assert fingerprint(len, {}) == {}


class Odd:
    """Breaks whatever looks at it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_odd_objects_break_nothing() -> None:
    odd = Odd()

    async def uses(item: Any) -> Any:
        return odd

    assert set(fingerprint(uses, {})) == {"uses()"}


def test_a_function_is_read_once_in_a_session() -> None:
    """Each item of a fan-out may have a fan-out of its own."""
    digests: dict[Any, str] = {}
    fingerprint(made("a", []), digests)
    digests.update(dict.fromkeys(digests, "kept"))
    assert fingerprint(made("a", []), digests)["classify()"] == "kept"


# Over sessions ------------------------------------------------------------------------------------


async def session(path: str, function: Any, **options: Any) -> list[Any]:
    async with open_journal(path, **options) as journal:
        results = await harness.fan_out(function, ["x"], journal=journal, key=str, name="n")
    return list(results.values())


async def test_changed_source_is_told_once_and_what_is_kept_stays(
    journal_path: str, autojump_clock: MockClock
) -> None:
    """It said nothing, and half of the answers were those of another prompt."""
    assert await session(journal_path, made("old ", [])) == ["old x"]
    assert await session(journal_path, made("old ", [])) == ["old x"]
    with pytest.warns(
        HarnessWarning, match="the source has changed in prompt; what it has is kept"
    ):
        assert await session(journal_path, made("new ", [])) == ["old x"]
    assert await session(journal_path, made("new ", [])) == ["old x"]
    with read_journal(journal_path) as reader:
        [batch] = reader.batches()
        assert batch.settings == {}


async def test_a_warning_that_is_an_error_leaves_the_batch_as_it_was(
    journal_path: str, autojump_clock: MockClock
) -> None:
    await session(journal_path, made("old ", []))
    for _ in range(2):
        with pytest.raises(HarnessWarning, match="the source has changed"):
            await session(journal_path, made("new ", []))
    with read_journal(journal_path) as reader:
        [batch] = reader.batches()
        assert batch.sessions == 1


async def test_changed_source_is_refused_if_the_version_is_the_source(
    journal_path: str, autojump_clock: MockClock
) -> None:
    await session(journal_path, made("old ", []))  # It is recorded in any case.
    assert await session(journal_path, made("old ", []), version="source") == ["old x"]
    for _ in range(2):
        with pytest.raises(JournalMismatchError, match="the source has changed in prompt"):
            await session(journal_path, made("new ", []), version="source")
    assert await session(journal_path, made("new ", []), version="source", force=True) == ["old x"]
    assert await session(journal_path, made("new ", []), version="source") == ["old x"]


async def test_nothing_is_left_open_by_a_refusal(tmp_path: Path, autojump_clock: MockClock) -> None:
    path = str(tmp_path / "run.db")
    await session(path, made("old ", []))
    async with open_journal(path, version="source") as journal:
        options: dict[str, Any] = {"journal": journal, "key": str, "name": "n"}
        with pytest.raises(JournalMismatchError):
            await harness.fan_out(made("new ", []), ["x"], **options)
        assert (await harness.fan_out(made("old ", []), ["x"], **options)).values() == ["old x"]


def test_long_settings_are_quoted_from_where_they_differ(tmp_path: Path) -> None:
    async def open_with(instructions: str) -> None:
        async with open_journal(tmp_path / "run.db") as journal:
            settings = {"instructions": instructions}
            await (await journal.open_batch("b", target="t", settings=settings)).close()

    same = "x" * 10_000
    trio.run(open_with, f"{same}old {same}")
    with pytest.raises(JournalMismatchError) as caught:
        trio.run(open_with, f"{same}new {same}")
    words = str(caught.value)
    assert "instructions was ...xxxxxxxxxxxxxxxxxxxxold x" in words
    assert len(words) < 1_000


@pytest.mark.slow
async def test_a_change_is_told_wherever_the_session_that_finds_it_is_cancelled(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The new source is recorded only after it was told; cut short before, it is told again."""
    path = tmp_path / "run.db"
    told: list[str] = []

    async def new_session() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                assert await session(str(path), made("new ", [])) == ["old x"]
            finally:
                told.extend(str(one.message) for one in caught)

    async def check() -> None:
        await new_session()
        assert len(told) in (1, 2)
        assert all("the source has changed in prompt" in words for words in told)
        told.clear()
        await begin()

    async def begin() -> None:
        path.unlink(missing_ok=True)
        await session(str(path), made("old ", []))

    await begin()
    assert await cancel_at_every_checkpoint(new_session, check) > 5
