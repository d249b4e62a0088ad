"""What the plain scorers take for right, and how scorers are named and refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from harness.evals import Choice, Contains, Exact, Fields, Number, Sample
from harness.evals._scorers import BY_NAME, checked_score, is_async, named_scorers


def scored(scorer: Any, expected: Any, output: Any) -> Any:
    return scorer(Sample(1, "?", expected), output)


@pytest.mark.parametrize(
    ("scorer", "expected", "output", "score"),
    [
        (Exact(), "blue", " blue\n", True),
        (Exact(), "blue", "Blue", False),
        (Exact(ignore_case=True), "blue", "Blue", True),
        (Exact(), "7", 7, True),  # From CSV, everything is text.
        (Exact(), [1, 2], [1, 2], True),
        (Exact(), "blue", "it is blue", False),
        (Contains(), "Blue", "it is blue.", True),
        (Contains(), "blue", "red", False),
        (Number(), "1234.5", "so it is $1,234.50", True),
        (Number(), 42, "first 41, then 42", True),
        (Number(), "42", "42, or rather 43", False),
        (Number(absolute=1), "42", "43", True),
        (Number(relative=0.01), -100, "-100.9", True),
        (Number(), "42", "no idea", False),
        (Number(), "3e8", "3E8 m/s", True),
        (Choice(), "B", "B", True),
        (Choice(), "B", "(B).", True),
        (Choice(), "B", "A is tempting, but the answer is B, not C", True),
        (Choice(), "A", "a guess: it must be B", False),
        (Choice(), "B", "a guess: it must be B", True),
        (Choice(), "B", "A or B", False),
        (Choice(), "B", "none of them", False),
        (Choice(("card arrival", "card")), "card", "It is card_x or Card arrival", False),
        (Choice(("card arrival", "card")), "card arrival", "It is Card arrival", True),
        (Fields(), {"a": "1", "b": 2}, '{"a": 1, "b": 3, "c": 4}', 0.5),
        (Fields(), '{"a": 1}', {"a": 1}, 1.0),
        (Fields(("a",)), {"a": 1, "b": 2}, {"a": 1}, 1.0),
        (Fields(), {"a": 1}, "not JSON", 0.0),
        (Fields(), {"a": 1}, "[1]", 0.0),
    ],
)
def test_what_counts_as_right(scorer: Any, expected: Any, output: Any, score: Any) -> None:
    found = scored(scorer, expected, output)
    assert found == score
    assert type(found) is type(score)


@pytest.mark.parametrize(
    ("scorer", "expected", "words"),
    [
        (Number(), "a lot", "there is no number in what is expected, 'a lot'"),
        (Choice(), "Z", "'Z' is expected, and the choices are A, B, C, D, E"),
        (Fields(), {}, "hasn't got the fields"),
        (Fields(("b",)), {"a": 1}, "hasn't got the fields"),
    ],
)
def test_an_expectation_that_nothing_can_meet_is_no_wrong_answer(
    scorer: Any, expected: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        scored(scorer, expected, "x")


def length(sample: Sample, output: str) -> int:
    return len(output)


async def asks(sample: Sample, output: str) -> bool:
    return True


class Asks:
    async def __call__(self, sample: Sample, output: str) -> bool:
        return True


def test_scorers_have_names() -> None:
    assert list(named_scorers([length, "exact", Contains(), partial(asks)])) == [
        "length",
        "exact",
        "contains",
        "asks",
    ]
    assert list(named_scorers({"mine": length, "exact": Exact()})) == ["mine", "exact"]
    assert set(BY_NAME) == {"exact", "contains", "number", "choice", "fields"}


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ([], ValueError, "there are no scorers"),
        (["exakt"], ValueError, "there is no scorer 'exakt'; there are exact, contains"),
        ("exact", TypeError, r"write \['exact'\]"),
        (length, TypeError, "takes a list of scorers"),
        ([7], TypeError, "called with a sample and an output"),
        ([Exact], TypeError, "called with a sample and an output"),
        (["exact", Exact()], ValueError, "two scorers are called 'exact'"),
    ],
)
def test_what_is_no_list_of_scorers_is_refused(
    given: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        named_scorers(given)


def test_what_is_asked_of_somebody_is_told_from_what_is_called() -> None:
    assert [is_async(one) for one in (asks, partial(asks), Asks())] == [True] * 3
    assert [is_async(one) for one in (length, Exact(), partial(length))] == [False] * 3


class OfNumpy:
    """As numpy's numbers do, it says what it is in Python's."""

    def item(self) -> bool:
        return True


def test_a_score_is_a_bool_a_finite_number_or_nothing() -> None:
    assert checked_score(OfNumpy()) is True
    assert [checked_score(one) for one in (True, 3, 0.5, None)] == [True, 3.0, 0.5, None]
    for bad, error in (("1", TypeError), (float("nan"), ValueError), (float("inf"), ValueError)):
        with pytest.raises(error, match="a score is a"):
            checked_score(bad)
    with pytest.raises(TypeError, match="define it with async def"):
        checked_score(asks(Sample(1, ""), ""))
