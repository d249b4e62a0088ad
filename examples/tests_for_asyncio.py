"""Test someone else's asyncio code under every order of its tasks, without editing it.

`Desk` and `Typists` stand for a library that you use: plain asyncio, no harness in
sight. The tests below are ordinary async tests, and each passes when it is run once.
The kit runs them in every order that matters, or with each task cancelled at each
checkpoint; two of the three break.

Run:     pytest examples/tests_for_asyncio.py     (needs pytest-asyncio)
Or:      python examples/tests_for_asyncio.py     to see in a few lines what is found
Prints:  test_letters_are_answered_in_order passes in every order
         test_what_was_handed_in_is_answered fails:
           answered ['a']
         test_four_letters_are_typed fails:
           task 'Typists.type' was cancelled while it waited in Typists.type
           (tests_for_asyncio.py:69):
           an asyncio.Semaphore is still held: task 'Typists.type' took it in
           Typists.type (tests_for_asyncio.py:68)
"""

import asyncio
import textwrap
from collections.abc import Callable, Coroutine
from typing import Any

from harness.errors import ScheduleError
from harness.testing import explore_cancellations, explore_schedules

# The library ------------------------------------------------------------------------------------


class Desk:
    """Takes letters, and answers them in the background, two at once, until it is closed."""

    def __init__(self) -> None:
        self.answered: list[str] = []
        self.closing = False
        self._letters: asyncio.Queue[str | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._work(), name="desk")

    async def hand_in(self, letter: str) -> None:
        if self.closing:
            raise RuntimeError("the desk is closed")
        await self._note(f"got {letter}")
        self._letters.put_nowait(letter)

    async def close(self) -> None:
        """Answer what was handed in, and end."""
        self.closing = True
        await self._note("closing")
        self._letters.put_nowait(None)
        await self._task

    async def _work(self) -> None:
        while (letter := await self._letters.get()) is not None:
            self.answered.append(letter)

    async def _note(self, line: str) -> None:
        await asyncio.sleep(0)  # Where it writes to a log.


class Typists:
    """Type letters, two at once."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(2)

    async def type(self, letter: str) -> str:
        await self._free.acquire()
        await asyncio.sleep(1)
        self._free.release()
        return letter.upper()


# Your tests -------------------------------------------------------------------------------------


@explore_schedules(search="distinct")
async def test_letters_are_answered_in_order() -> None:
    desk = Desk()
    for letter in ("a", "b"):
        await desk.hand_in(letter)
    await desk.close()
    assert desk.answered == ["a", "b"]


@explore_schedules(search="distinct")
async def test_what_was_handed_in_is_answered() -> None:
    desk = Desk()
    await asyncio.gather(desk.hand_in("a"), desk.hand_in("b"), desk.close())
    assert len(desk.answered) == 2, f"answered {desk.answered}"


@explore_cancellations
async def test_four_letters_are_typed() -> None:
    typists = Typists()
    typed = await asyncio.gather(*(typists.type(letter) for letter in "abcd"))
    assert typed == ["A", "B", "C", "D"]


def show(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Say what a test found, without its order of steps, which pytest shows."""
    try:
        asyncio.run(test())
    except ScheduleError as error:
        print(f"{test.__name__} fails:")
        for line in dict.fromkeys(str(error.__cause__).splitlines()):
            print(textwrap.indent(textwrap.fill(line.strip(), 72), "  "))
    else:
        print(f"{test.__name__} passes in every order")


if __name__ == "__main__":
    show(test_letters_are_answered_in_order)
    show(test_what_was_handed_in_is_answered)
    show(test_four_letters_are_typed)
