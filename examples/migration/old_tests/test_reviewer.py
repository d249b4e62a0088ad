"""The reviewer's own tests, which it had before the move and has after it."""

import trio
from reviewer import Reviewer


async def check(side: str, text: str) -> str:
    """Remark on one side of a text; a rude one has to be written anew."""
    await trio.lowlevel.checkpoint()
    return f"{side} of {text}{' rewrite' if (side, text) == ('tone', 'rude') else ''}"


REVIEWER = Reviewer(check)


def test_it_looks_at_three_sides() -> None:
    assert trio.run(REVIEWER.review, "a poem") == (
        "a poem: facts of a poem, style of a poem, tone of a poem"
    )


def test_what_is_to_be_rewritten_gets_no_remarks_on_style() -> None:
    assert trio.run(REVIEWER.review, "rude") == "rude: facts of rude, tone of rude rewrite"


def test_one_text_after_the_other() -> None:
    async def main() -> list[str]:
        return [await REVIEWER.review(text) for text in ("a poem", "rude", "a poem")]

    first, rude, again = trio.run(main)
    assert first == again != rude
