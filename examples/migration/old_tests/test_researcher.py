"""The researcher's own tests, which it had before the move and has after it."""

import asyncio

from researcher import Researcher, research_all


async def read(what: str) -> str:
    """Read a source; the web has the answer to what is easy."""
    await asyncio.sleep(0)
    return f"{what}{', the answer' if 'easy' in what else ''}"


RESEARCHER = Researcher(read)


def test_it_reads_two_sources() -> None:
    assert asyncio.run(RESEARCHER.research("tides")) == (
        "tides: web on tides; archive on tides (web, archive)"
    )


def test_it_reads_no_further_than_the_answer() -> None:
    assert asyncio.run(RESEARCHER.research("easy")) == "easy: web on easy, the answer (web)"


def test_one_question_after_the_other() -> None:
    async def main() -> list[str]:
        return [await RESEARCHER.research(question) for question in ("tides", "easy", "tides")]

    first, easy, again = asyncio.run(main())
    assert first == again != easy


def test_all_of_one_question() -> None:
    assert asyncio.run(research_all(RESEARCHER, ["easy"])) == [
        "easy: web on easy, the answer (web)"
    ]
