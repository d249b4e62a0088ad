"""Seven classic faults of concurrent code, each small and each passing in the plain order.

Every toy is an async test: it raises `AssertionError` when the fault shows. Each comes in two
forms. In the *even* form all tasks begin together, so the critical steps are near each other in
many orders. In the *uneven* form they begin many steps apart, and an order that shows the fault
must hold one task back for long.
"""

from collections.abc import Awaitable, Callable

import trio

Toy = Callable[[], Awaitable[None]]


async def steps(count: int) -> None:
    """Do something that takes so many steps and touches nothing."""
    for _ in range(count):
        await trio.lowlevel.checkpoint()


def class_level_list(spread: int) -> Toy:
    """All instances write to one list, which the class owns."""

    async def toy() -> None:
        class Scribe:
            lines: list[str] = []  # noqa: RUF012 - that is the fault

            async def answer(self, question: str) -> str:
                self.lines.append(question)
                await steps(3)
                self.lines.append(question.upper())
                await steps(2)
                answer = " ".join(self.lines)
                self.lines.clear()
                return answer

        answers: dict[str, str] = {}

        async def ask(place: int, question: str) -> None:
            await steps(place * spread)
            answers[question] = await Scribe().answer(question)

        async with trio.open_nursery() as nursery:
            for place, question in enumerate(("one", "two", "three")):
                nursery.start_soon(ask, place, question)
        assert answers == {question: f"{question} {question.upper()}" for question in answers}

    return toy


def checked_then_spent(spread: int) -> Toy:
    """Each checks whether there is budget left, waits, and spends."""

    async def toy() -> None:
        left = 3

        async def buy(place: int) -> None:
            nonlocal left
            await steps(4 + place * spread)
            if left > 0:
                await steps(1)
                left -= 1
            await steps(3)

        async with trio.open_nursery() as nursery:
            for place in range(4):
                nursery.start_soon(buy, place)
        assert left >= 0, f"{-left} too much was spent"

    return toy


def shared_cancelled_flag(spread: int) -> Toy:
    """A cancelled task says so in a shared flag, for the duration of its cleanup."""

    async def toy() -> None:
        cancelled = False
        seen: list[bool] = []
        scope = trio.CancelScope()

        async def victim() -> None:
            nonlocal cancelled
            with scope:
                try:
                    await steps(8 + spread)
                finally:
                    with trio.CancelScope(shield=True):
                        cancelled = True
                        await steps(1)
                        cancelled = False

        async def stopper() -> None:
            await steps(3 + spread)
            scope.cancel()

        async def bystander() -> None:
            await steps(6)
            seen.append(cancelled)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(victim)
            nursery.start_soon(stopper)
            nursery.start_soon(bystander)
            nursery.start_soon(bystander)
        assert seen == [False, False]

    return toy


def lost_update(spread: int) -> Toy:
    """Two read a number, wait, and write it back one larger."""

    async def toy() -> None:
        count = 0

        async def increase(place: int) -> None:
            nonlocal count
            await steps(6 + place * spread)
            read = count
            await steps(1)
            count = read + 1
            await steps(4)

        async with trio.open_nursery() as nursery:
            for place in range(2):
                nursery.start_soon(increase, place)
        assert count == 2

    return toy


def two_locks(spread: int) -> Toy:
    """Two tasks take the same two locks, each in its own order."""

    async def toy() -> None:
        left, right = trio.Lock(), trio.Lock()

        async def both(first: trio.Lock, second: trio.Lock, late: int) -> None:
            await steps(5 + late)
            async with first:
                async with second:
                    pass
            await steps(4)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(both, left, right, 0)
            nursery.start_soon(both, right, left, spread)

    return toy


def shared_event_queue(spread: int) -> Toy:
    """Two runs send their events through one channel, and each reads as many as it sent."""

    async def toy() -> None:
        sender, receiver = trio.open_memory_channel[tuple[int, int]](100)
        read: dict[int, list[tuple[int, int]]] = {}

        async def run(number: int) -> None:
            await steps(3 + number * spread)
            for event in range(2):
                await sender.send((number, event))
            read[number] = [await receiver.receive() for _ in range(2)]
            await steps(2)

        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(run, number)
        assert read == {number: [(number, 0), (number, 1)] for number in range(2)}

    return toy


def torn_read(spread: int) -> Toy:
    """One writes two values that belong together; another reads them with a wait in between."""

    async def toy() -> None:
        first = second = 0
        pair = (0, 0)

        async def write() -> None:
            nonlocal first, second
            await steps(8)
            first = 1
            await steps(4)
            second = 1
            await steps(8)

        async def read() -> None:
            nonlocal pair
            await steps(6 + spread)
            seen = first
            await steps(5)
            pair = (seen, second)
            await steps(6)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(read)
            nursery.start_soon(steps, 15)
            nursery.start_soon(steps, 15)
        assert pair != (0, 1), "half of it was old"

    return toy


TOYS: dict[str, Toy] = {
    f"{make.__name__}, {form}": make(spread)
    for make, far in (
        (class_level_list, 12),
        (checked_then_spent, 8),
        (shared_cancelled_flag, 22),
        (lost_update, 20),
        (two_locks, 20),
        (shared_event_queue, 16),
        (torn_read, 22),
    )
    for form, spread in (("even", 0), ("uneven", far))
}
