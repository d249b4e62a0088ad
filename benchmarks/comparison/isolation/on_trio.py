"""Which tasks of a nursery see each other's notes?"""

from contextvars import ContextVar

import trio
from trio.testing import MockClock

from benchmarks.comparison import _notes

own: ContextVar[list[int]] = ContextVar("own")
seen: list[tuple[bool, ...]] = []


async def agent(number: int) -> None:
    own.set([])
    for _ in range(3):
        _notes.take(number, own.get())
        await trio.sleep(1)
    seen.append(_notes.saw_others(own.get()))


async def main() -> None:
    async with trio.open_nursery() as nursery:
        for number in _notes.RUNS:
            nursery.start_soon(agent, number)
    _notes.show(seen, offered="a context variable, set in the task")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
