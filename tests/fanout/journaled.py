"""What the tests of journaled fan-outs run, and how they kill it."""

from __future__ import annotations

from typing import Any

import trio

import harness
from tests.fanout.probes import Boom
from tests.support.memory_journal import MemoryJournal


def key_of(item: Any) -> str:
    return f"k{item}"


class Body:
    """A function that notes for which items it ran, and how many at once."""

    def __init__(self, *, seconds: float = 1, fails: Any = lambda item: False) -> None:
        self.seconds = seconds
        self.fails = fails
        self.ran: list[Any] = []
        self.running: set[Any] = set()
        self.beside: dict[Any, int] = {}
        """How many others ran while an item did, at most."""

    async def __call__(self, item: Any) -> Any:
        self.ran.append(item)
        self.running.add(item)
        for one in self.running:
            self.beside[one] = max(self.beside.get(one, 0), len(self.running) - 1)
        try:
            await trio.sleep(self.seconds)
        finally:
            self.running.discard(item)
        if self.fails(item):
            raise Boom(item)
        return (item, {"square": item * item})


async def run(journal: MemoryJournal, body: Any, items: Any, **options: Any) -> Any:
    options = {"policy": harness.BestEffort(), "limit": 4, **options}
    return await harness.fan_out(body, items, journal=journal, key=key_of, **options)


async def killed(journal: MemoryJournal, items: Any, *, at: float, **options: Any) -> MemoryJournal:
    """Run a session, and return what the file has when it is killed at that time."""
    found: list[MemoryJournal] = []

    async def kill() -> None:
        await trio.sleep(at)
        found.append(journal.after_a_crash())
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        await run(journal, options.pop("body", None) or Body(), items, **options)
    return found[0]
