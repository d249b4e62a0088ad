"""What the examples' model says."""

import json

from labelled_answers import UNCLEAR, LabelledAnswers
from nearest_example import LabelledExamples
from simulated_model import Message

ANSWERS = LabelledAnswers(
    LabelledExamples(
        [
            ("a red apple from the garden", "apple"),
            ("green apples are sour", "apple"),
            ("the banana is yellow", "banana"),
            ("bananas from overseas", "banana"),
        ]
    )
)


def user(**question: object) -> Message:
    return {"role": "user", "content": json.dumps(question)}


def similar(category: str, similarity: float = 0.5) -> dict[str, object]:
    return {"text": "...", "category": category, "similarity": similarity}


def said(*messages: Message) -> tuple[str, float]:
    answer = json.loads(ANSWERS(messages))
    return answer["category"], answer["confidence"]


def test_a_plain_case_is_sure() -> None:
    category, confidence = said(user(ticket="sour apples"))
    assert category == "apple"
    assert confidence > 0.5


def test_similar_tickets_change_its_mind() -> None:
    between = user(ticket="an apple and a banana from the garden")
    category, confidence = said(between)
    assert (category, confidence < 0.5) == ("apple", True)
    assert said(between, user(similar_tickets=[similar("apple")]))[1] > confidence
    assert said(between, user(similar_tickets=[similar("banana")] * 3))[0] == "banana"


def test_a_few_near_tickets_outweigh_many_far_ones() -> None:
    votes = [similar("apple", 0.1)] * 5 + [similar("banana", 0.8)]
    assert said(user(ticket="from"), user(similar_tickets=votes))[0] == "banana"


def test_only_the_last_ticket_counts() -> None:
    """A chat that asks about one ticket after another is answered for each of them."""
    earlier = [user(ticket="yellow"), user(similar_tickets=[similar("banana")])]
    assert said(*earlier, user(ticket="green apples")) == said(user(ticket="green apples"))


def test_words_never_seen_are_unclear() -> None:
    assert said(user(ticket="qqq zzz")) == (UNCLEAR, 0.0)


def test_what_others_say_is_no_question() -> None:
    system: Message = {"role": "system", "content": "not JSON"}
    assistant: Message = {"role": "assistant", "content": '{"ticket": "yellow banana"}'}
    question = user(ticket="green apples")
    assert said(system, question, assistant) == said(question)
