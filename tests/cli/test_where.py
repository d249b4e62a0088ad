"""The language of ``--where``: what it answers, what it refuses, and that it runs no code."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.cli._errors import InputError
from harness.cli._where import CHARACTERS_AT_MOST, FIELDS, STATUSES, Where

Fields = dict[str, Any]


def holds(text: str, **fields: Any) -> bool:
    known: Fields = dict.fromkeys(FIELDS) | fields
    return Where(text).matches(known.__getitem__)


# What it answers ----------------------------------------------------------------------------------


def less(left: Any, right: Any) -> bool:
    try:
        return bool(left < right)
    except TypeError:
        return False


def topic(one: Fields) -> Any:
    return one["value"].get("topic") if isinstance(one["value"], dict) else None


PLAIN: list[tuple[str, Callable[[Fields], Any]]] = [
    (
        'status == "timed_out" and attempts > 2',
        lambda one: one["status"] == "timed_out" and one["attempts"] > 2,
    ),
    ("not (seconds < 1.5 or degraded)", lambda one: not (one["seconds"] < 1.5 or one["degraded"])),
    ("1 <= attempts < 3", lambda one: 1 <= one["attempts"] < 3),
    ('key in ["a1", "b2"]', lambda one: one["key"] in ["a1", "b2"]),
    ('"4" in key', lambda one: "4" in one["key"]),
    ('"429" not in error', lambda one: one["error"] is None or "429" not in one["error"]),
    ("error is not None", lambda one: one["error"] is not None),
    ("tokens > -1", lambda one: less(-1, one["tokens"])),
    ('value.topic == "refund"', lambda one: topic(one) == "refund"),
    ('value["topic"] != None', lambda one: topic(one) is not None),
    (
        'input.topic == "refund"',
        lambda one: isinstance(one["input"], dict) and one["input"]["topic"] == "refund",
    ),
    ("value.topic < 3", lambda one: less(topic(one), 3)),
    ("value.topic", lambda one: bool(topic(one))),
    (
        "value.tags[1] == 'x'",
        lambda one: isinstance(one["value"], dict) and one["value"].get("tags", [])[1:2] == ["x"],
    ),
    (
        "'x' in value.tags",
        lambda one: isinstance(one["value"], dict) and "x" in one["value"].get("tags", []),
    ),
    ('key.startswith("a")', lambda one: one["key"].startswith("a")),
    ('key.endswith("2")', lambda one: one["key"].endswith("2")),
    (
        'error.matches("*rate*4*")',
        lambda one: "rate" in (one["error"] or "") and "4" in one["error"].partition("rate")[2],
    ),
    (
        'error_type.matches("*Error") or status in ("ok", "open")',
        lambda one: (one["error_type"] or "").endswith("Error") or one["status"] in ("ok", "open"),
    ),
]


def drawn(draw: random.Random) -> Fields:
    kind = draw.choice(["ValueError", "Timeout", None])
    message = draw.choice(["rate limit 429", "4 of rate", "boom", ""])
    value = draw.choice(
        [
            None,
            3,
            "text",
            ["x"],
            {"topic": draw.choice(["refund", 2, 5.5, None, ["a"], {}])},
            {"tags": draw.choice([[], ["x"], ["y", "x"]])},
        ]
    )
    return {
        "key": draw.choice("ab") + str(draw.randrange(5)),
        "status": draw.choice(STATUSES),
        "input": draw.choice([None, {"topic": "refund"}, {"topic": "card"}]),
        "value": value,
        "error": None if kind is None else f"{kind}: {message}",
        "error_type": kind,
        "error_message": None if kind is None else message,
        "attempts": draw.randrange(5),
        "seconds": draw.uniform(0, 3),
        "tokens": draw.choice([None, 0, 100]),
        "cost_usd": draw.choice([None, 0.5]),
        "degraded": draw.random() < 0.3,
    }


@pytest.mark.parametrize(("text", "plain"), PLAIN, ids=[text for text, _ in PLAIN])
def test_it_answers_as_python_would(text: str, plain: Callable[[Fields], Any]) -> None:
    draw, where = random.Random(text), Where(text)
    answers = set()
    for _ in range(300):
        one = drawn(draw)
        answer = where.matches(one.__getitem__)
        assert answer == bool(plain(one)), one
        answers.add(answer)
    assert answers == {True, False}, "else the records show nothing"


def test_combinations_answer_as_python_would() -> None:
    """The parts are right alone; this is for and, or and not around each other."""
    draw = random.Random(0)
    for _ in range(200):
        pairs = [draw.choice(PLAIN) for _ in range(3)]
        nots, words = [draw.random() < 0.5 for _ in pairs], [draw.choice(["and", "or"]), "and"]
        texts = [
            f"not ({text})" if is_not else f"({text})"
            for (text, _), is_not in zip(pairs, nots, strict=True)
        ]
        where = Where(f"{texts[0]} {words[0]} ({texts[1]} {words[1]} {texts[2]})")
        for _ in range(10):
            one = drawn(draw)
            a, b, c = (
                bool(plain(one)) != is_not for (_, plain), is_not in zip(pairs, nots, strict=True)
            )
            assert where.matches(one.__getitem__) == (
                (a and (b and c)) if words[0] == "and" else (a or (b and c))
            )


def test_what_is_not_there_is_none_and_what_has_no_order_is_neither_less_nor_greater() -> None:
    assert holds("value.a.b[3].c is None", value={"a": 1})
    assert not holds("value.a > 3", value={"a": "4"})
    assert not holds("value.a <= 3", value={"a": "4"})
    assert not holds("tokens > 3")
    assert not holds('error.startswith("x") or "x" in error')
    assert not holds("3 in error", error="3")


@pytest.mark.parametrize(
    ("pattern", "text", "answer"),
    [
        ("", "", True),
        ("*", "", True),
        ("**", "any", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("*a*b*", "ba", False),
        ("*ab*ab", "ab", False),
        ("x.z", "xyz", False),
        ("[a]*", "a", False),
    ],
)
def test_only_a_star_stands_for_any_text(pattern: str, text: str, answer: bool) -> None:
    assert holds(f'key.matches("{pattern}")', key=text) is answer


# What it refuses ----------------------------------------------------------------------------------

HOSTILE = [
    '__import__("os").system("touch ran")',
    'open("ran", "w")',
    "value.__class__.__bases__[0].__subclasses__()",
    "().__class__",
    'key.__class__ == "x"',
    'key.format("x")',
    '"{0.__class__}".format(key)',
    '"%s" % key == "x"',
    "[x for x in value]",
    "(lambda: 1)()",
    "(x := 1)",
    "9 ** 9 ** 9 ** 9 == 1",
    "'a' * 10 ** 10 == key",
    'f"{key}" == "x"',
    "value[key]",
    "value[0:1]",
    "{**value}",
    "{1, 2}",
    "b'x' == key",
    "... is None",
    "1j == attempts",
    "not_a_field",
    "key.startswith(key)",
    'key.startswith("a", 3)',
    'key.startswith(prefix="a")',
    'key.startswith(*["a"])',
    "-key == 3",
    "~attempts == 3",
    "key if key else key",
    "await key",
    "key; key",
    "import os",
    "key == 'a",
    "",
    "   ",
    "(" * 500 + ")" * 500,
    "not " * 400 + "key",
    "[" * 150 + "]" * 150 + " == value",
    "value" + ".a" * 600,
    " or ".join(["attempts == 1"] * 110),
    "key == '" + "x" * CHARACTERS_AT_MOST + "'",
    "key == '\0'",
    "key == \udc80",
]


@pytest.mark.parametrize("text", HOSTILE, ids=[ascii(text[:40]) for text in HOSTILE])
def test_what_could_run_code_or_never_end_is_refused_before_anything_is_read(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        Where(text)
    assert not list(tmp_path.iterdir())


def test_a_part_whose_name_is_that_of_a_method_is_a_part() -> None:
    assert holds('value.__class__ == "x" and value.keys == 1', value={"__class__": "x", "keys": 1})
    assert holds("value.__class__ is None", value={})


def test_long_texts_are_matched_without_going_back() -> None:
    begun = time.process_time()
    pattern = "*a" * 400 + "*b"
    assert not holds(f'error.matches("{pattern}")', error="a" * 1_000_000)
    assert not holds('"aaaaaaaaab" in error', error="a" * 1_000_000)
    assert time.process_time() - begun < 2


def test_values_too_deep_to_compare_are_not_equal() -> None:
    class Deep:
        def __eq__(self, other: object) -> bool:
            raise RecursionError

        __hash__ = None  # type: ignore[assignment]

    assert not holds("value.a == value.b", value={"a": Deep(), "b": 1})


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("status == timed_out", 10, "timed_out is not a field; if it is a text, put it in quotes"),
        ('key == "é" and foo(1)', 15, "this can't be called"),
        ('status == "timeout"', 10, "a status is one of ok, failed, timed_out"),
        ('attempts > 1 and status in ["ok", "bad"]', 34, "a status is one of"),
        ("key.name == 1", 0, "only input and value have parts"),
        ("value[key] == 1", 6, "a part is named by a text or a number"),
        ("attempts is 3", 12, "`is` only compares with None"),
        ("attempts = 3", 9, "it can't be read"),
        ("key.matches(3)", 0, 'matches takes one text: .matches("...")'),
        ("attempts ** 2", 0, "this is not allowed"),
    ],
)
def test_an_error_marks_the_place_and_says_what_is_allowed(
    text: str, place: int, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        Where(text)
    said = caught.value.message
    first, shown, marks, allowed = said.split("\n")
    assert words in first
    assert f"at character {place + 1}" in first
    assert shown == f"  {text}"
    assert marks.index("^") - 2 == place
    assert all(name in allowed for name in FIELDS)


# In the commands ----------------------------------------------------------------------------------

AGENT = """
async def answer(record):
    if record["id"] in ("b", "c"):
        raise ValueError("rate limit " + record["id"])
    return {"topic": "refund" if record["id"] == "a" else "\\x1b[2Jother"}
"""


@pytest.fixture
def run_db(clean_imports: Path) -> Path:
    (clean_imports / "agent.py").write_text(AGENT)
    (clean_imports / "in.csv").write_text("id\na\nb\nc\nd\n")
    batch = "batch agent.py:answer --input in.csv --key id --journal run.db --quiet"
    assert main([*batch.split(), "--output", "out.jsonl", "--limit", "1"]) == 1
    return clean_imports


def test_show_lists_the_items_it_holds_for(
    run_db: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["journal", "show", "run.db", "--where", 'error.matches("*limit c")']) == 0
    said = capsys.readouterr()
    assert said.out.startswith("c: ValueError: rate limit c (failed, 1 attempt, ")
    assert said.err == "1 item\n"
    assert main(["journal", "show", "run.db", "--where", 'value.topic.endswith("other")']) == 0
    said = capsys.readouterr()
    assert said.out.startswith('d: {"topic": "\\u001b[2Jother"} (ok, ')
    assert main(["journal", "show", "run.db", "--where", 'input.id == "c"']) == 0
    assert capsys.readouterr().out.startswith("c: ValueError")
    assert main(["journal", "show", "run.db", "--where", "attempts > 5"]) == 1


def test_export_retry_and_forget_take_it(run_db: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = ["journal", "export", "run.db", "--format", "csv", "--where"]
    assert main([*export, "value.topic == 'refund'"]) == 0
    assert [line[:2] for line in capsys.readouterr().out.splitlines()[1:]] == ["a,"]
    assert main(["journal", "retry", "run.db", "--where", 'error.endswith("b")']) == 0
    assert "1 item of 'batch' will be tried again" in capsys.readouterr().out
    assert main(["journal", "show", "run.db", "--where", 'status == "open"']) == 0
    assert capsys.readouterr().out.startswith("b (open, 0 attempts, ")
    assert main(["journal", "forget", "run.db", "--where", 'status in ["failed", "open"]']) == 0
    assert "2 items of 'batch' forgotten" in capsys.readouterr().out
    assert main(["journal", "forget", "run.db", "--where", "attempts > 5"]) == 0
    assert "0 items of 'batch' forgotten" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["retry", "run.db", "a", "--where", "attempts > 1"],
        ["retry", "run.db", "--failed", "--where", "attempts > 1"],
        ["retry", "run.db", "--where", "attempts > "],
        ["forget", "run.db", "a", "--where", "attempts > 1"],
        ["forget", "run.db", "--where", "oops"],
    ],
)
def test_nothing_is_changed_if_it_is_not_clear_what_is_meant(
    words: list[str], run_db: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run_db / "run.db").read_bytes()
    assert main(["journal", *words]) == 2
    assert "--where" in capsys.readouterr().err
    assert (run_db / "run.db").read_bytes() == before


@pytest.mark.slow
def test_verify_draws_only_from_what_it_holds_for(
    run_db: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verify = "verify {} --target agent.py:answer --input in.csv --key id --quiet --where"
    for results in ("run.db", "out.jsonl"):
        assert main([*verify.format(results).split(), 'value.topic == "refund"']) == 0
        said = capsys.readouterr().out
        assert said.startswith("0 of 1 differ")
        assert "without a result" not in said  # They have one, which isn't looked at.
