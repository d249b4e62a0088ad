"""What the three harnesses have to do as well: give at once what they give alone.

Each of these fails in `before` and passes in `after`. The kit controls trio's steps, so there it
finds the object, too. In threads and on asyncio a stress test has to do, with models that wait, so
that the calls overlap: ten at once for a start, and then ten times as many as there will ever be.
"""

import asyncio
import time

import pytest
import trio
from researcher import Researcher, research_all
from reviewer import Reviewer
from ticket_desk import TicketDesk, answer_all
from trio.testing import MockClock

import harness
from harness.testing import assert_isolated

COUNTS = [10, 200]


def inputs(count: int, word: str) -> list[str]:
    """Return different inputs, every third of which has the word that ends a call early."""
    return [f"{word if number % 3 == 0 else 'item'} {number}" for number in range(count)]


@pytest.mark.parametrize("count", COUNTS)
def test_tickets_in_threads(count: int) -> None:
    def model(messages: list[str]) -> str:
        time.sleep(0.001)
        return f"{len(messages)}: {messages[-1]}{', stop' if 'spam' in messages[-1] else ''}"

    tickets = inputs(count, "spam")
    alone = [TicketDesk(model).answer(ticket) for ticket in tickets]
    assert answer_all(TicketDesk(model), tickets, workers=10) == alone


@pytest.mark.parametrize("count", COUNTS)
def test_questions_on_asyncio(count: int) -> None:
    async def read(what: str) -> str:
        for _ in range(sum(what.encode()) % 5):  # Each takes a time of its own.
            await asyncio.sleep(0)
        return f"{what}{', the answer' if 'easy' in what else ''}"

    questions = inputs(count, "easy")
    alone = [asyncio.run(Researcher(read).research(question)) for question in questions]
    assert asyncio.run(research_all(Researcher(read), questions)) == alone


async def check(side: str, text: str) -> str:
    await trio.sleep(len(side) / 10)
    return f"{side} of {text}{' rewrite' if side == 'tone' and 'rude' in text else ''}"


def no_waiting() -> MockClock:
    return MockClock(autojump_threshold=0)


@pytest.mark.parametrize("count", COUNTS)
def test_texts_on_trio(count: int) -> None:
    async def main() -> list[str]:
        return (await harness.fan_out(Reviewer(check).review, texts, limit=count)).values()

    texts = inputs(count, "rude")
    alone = [trio.run(Reviewer(check).review, text, clock=no_waiting()) for text in texts]
    assert trio.run(main, clock=no_waiting()) == alone


REVIEWER = Reviewer(check)


def test_texts_by_the_kit() -> None:
    trio.run(assert_isolated, REVIEWER.review, ["a poem", "rude"])
