"""The classifier behind the examples' model."""

import csv
from pathlib import Path

import pytest

from nearest_example import LabelledExamples, category_of

EXAMPLES = Path(__file__).parents[2] / "examples"

FRUIT = [
    ("a red apple from the garden", "apple"),
    ("green apples are sour", "apple"),
    ("the banana is yellow", "banana"),
    ("bananas from overseas", "banana"),
]


def test_the_same_text_is_nearest_to_itself() -> None:
    examples = LabelledExamples(FRUIT)
    for text, category in FRUIT:
        nearest = examples.nearest(text, 2)[0]
        assert (nearest.text, nearest.category) == (text, category)
        assert nearest.similarity == pytest.approx(1)


def test_nearest_first_and_nothing_that_shares_nothing() -> None:
    neighbours = LabelledExamples(FRUIT).nearest("an apple from the garden", 10)
    similarities = [near.similarity for near in neighbours]
    assert neighbours[0].category == "apple"
    assert similarities == sorted(similarities, reverse=True)
    assert all(0 < similarity <= 1.000001 for similarity in similarities)
    assert LabelledExamples(FRUIT).nearest("zzz qqq", 10) == []
    assert LabelledExamples(FRUIT).nearest("", 10) == []


def test_equally_near_examples_come_in_their_order() -> None:
    """Ties must not depend on hashes, which differ from process to process."""
    examples = LabelledExamples([("same words", "first"), ("same words", "second")])
    assert [near.category for near in examples.nearest("same words", 2)] == ["first", "second"]


def test_pieces_of_words_meet() -> None:
    """A typo or another ending still finds its category."""
    similarities = LabelledExamples(FRUIT).category_similarities("BANANNA!!")
    assert max(similarities, key=lambda category: similarities[category]) == "banana"


def test_a_question_changes_nothing() -> None:
    """Every run shares the examples, so nothing may be written to them by asking."""
    examples = LabelledExamples(FRUIT)
    before = repr(vars(examples))
    examples.nearest("a word never seen", 3)
    examples.category_similarities("another word never seen")
    assert repr(vars(examples)) == before


def test_no_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="no labelled examples"):
        LabelledExamples([])


@pytest.mark.parametrize("content", ["text,topic\nhello,greeting\n", "text,category\nhello,\n"])
def test_a_file_of_another_shape_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "labelled.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"labelled\.csv, line 2: .*'text' and a 'category'"):
        LabelledExamples.from_csv(path)


def test_the_category_may_be_called_label() -> None:
    assert category_of({"text": "hello", "label": "greeting"}) == "greeting"
    assert category_of({"text": "hello", "category": "", "label": "greeting"}) == "greeting"
    assert category_of({"text": "hello"}) is None


def test_our_tickets_are_many_labelled_and_not_among_the_examples() -> None:
    """A ticket that is also an example would be found, not classified."""
    with (EXAMPLES / "tickets.csv").open(newline="", encoding="utf-8") as file:
        tickets = list(csv.DictReader(file))
    with (EXAMPLES / "tickets_labelled.csv").open(newline="", encoding="utf-8") as file:
        labelled = list(csv.DictReader(file))
    texts = {ticket["text"] for ticket in tickets}
    assert len(texts) == len(tickets) >= 120
    assert {ticket["category"] for ticket in tickets} == {row["category"] for row in labelled}
    assert texts.isdisjoint(row["text"] for row in labelled)
    for mark in ('"', ",", "\n", "  ", "°"):
        assert any(mark in text for text in texts), f"no ticket has {mark!r} any more"
