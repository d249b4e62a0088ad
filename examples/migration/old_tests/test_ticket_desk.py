"""The desk's own tests, which it had before the move and has after it."""

from ticket_desk import TicketDesk, answer_all


def model(messages: list[str]) -> str:
    """Say how many messages there are, and stop at spam."""
    return f"{len(messages)}: {messages[-1]}{', stop' if 'spam' in messages[-1] else ''}"


DESK = TicketDesk(model)


def test_it_answers_in_two_turns() -> None:
    assert DESK.answer("lost card") == (
        "[lost card] 1: look up lost card; [lost card] 2: reply to lost card"
    )


def test_it_stops_when_the_model_says_so() -> None:
    assert DESK.answer("spam") == "[spam] 1: look up spam, stop"


def test_one_ticket_after_the_other() -> None:
    for ticket in ("lost card", "spam", "new pin", "lost card"):
        assert DESK.answer(ticket) == TicketDesk(model).answer(ticket)


def test_a_pool_of_one_keeps_the_order() -> None:
    answers = answer_all(DESK, ["spam", "new pin"], workers=1)
    assert answers == [DESK.answer("spam"), DESK.answer("new pin")]
