"""A task that never gets on is named, with what it waits for and who takes it; others aren't."""

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from harness.errors import LivelockError, StarvationError
from harness.testing import Found, NotFound, find_schedule, run_schedule
from tests.testing.exploration.thread_races import at_once

pytestmark = pytest.mark.slow


class ReadersFirst:
    """A lock for readers and writers: a writer waits until nobody reads."""

    def __init__(self) -> None:
        self.readers = 0
        self.changed = trio.Condition()

    async def write(self) -> None:
        async with self.changed:
            while self.readers:
                await self.changed.wait()

    async def enter(self) -> None:
        async with self.changed:
            self.readers += 1
            self.changed.notify_all()

    async def leave(self) -> None:
        async with self.changed:
            self.readers -= 1
            self.changed.notify_all()


def overlapping_readers(rounds: int) -> Callable[[], Awaitable[None]]:
    """Return a program in which somebody always reads while a writer waits."""

    async def program() -> None:
        lock = ReadersFirst()

        async def read() -> None:
            for _ in range(rounds):
                await lock.enter()
                await lock.enter()
                await lock.leave()
            for _ in range(rounds):
                await lock.leave()

        await lock.enter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lock.write, name="writer")
            nursery.start_soon(read, name="reader")
            await trio.sleep(1)
            await lock.leave()

    return program


def test_a_starved_task_is_named_with_its_line_and_with_who_takes() -> None:
    found = find_schedule(overlapping_readers(40), schedules=3, starved_after=100)
    assert isinstance(found, Found)
    assert isinstance(found.error, StarvationError)
    words = str(found.error)
    assert "task 'writer' is starved: others made" in words
    assert "ReadersFirst.write (test_starvation.py:" in words
    assert "last task 'reader'" in words


def test_who_only_waits_long_is_not_starved() -> None:
    """The same program, whose writer gets its turn before the bound."""
    found = find_schedule(overlapping_readers(3), schedules=20, starved_after=100)
    assert isinstance(found, NotFound)


@pytest.mark.long
def test_an_endless_program_says_who_is_starved_without_being_asked() -> None:
    error = LivelockError("")

    async def program() -> None:
        turns = 0
        busy = False

        async def greedy() -> None:
            nonlocal busy, turns
            while True:
                busy = True
                await trio.lowlevel.checkpoint()
                turns += 1
                busy = False
                busy = True

        async def polite() -> None:
            while busy:
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(greedy)
            await trio.lowlevel.checkpoint()
            nursery.start_soon(polite)

    from_run = run_schedule(program, most_steps=3_000)
    assert isinstance(from_run.error, type(error))
    found = find_schedule(program, schedules=1, shrink=False)
    assert isinstance(found, Found)
    assert isinstance(found.error, StarvationError)
    assert "task 'polite' is starved" in str(found.error)
    assert "last task 'greedy'" in str(found.error)


@pytest.mark.parametrize("waits_for", ["event", "item", "poll"])
def test_who_waits_for_something_that_nobody_takes_is_not_starved(waits_for: str) -> None:
    """A consumer without work, a task that waits for the end: they only wait."""

    async def program() -> None:
        event = trio.Event()
        send, receive = trio.open_memory_channel[int](0)
        is_over = False
        done = [0]

        async def wait() -> None:
            if waits_for == "event":
                await event.wait()
            elif waits_for == "item":
                await receive.receive()
            else:
                while not is_over:
                    await trio.lowlevel.checkpoint()

        async def work() -> None:
            nonlocal is_over
            for _ in range(150):
                done[0] += 1
                await trio.lowlevel.checkpoint()
            event.set()
            is_over = True
            if waits_for == "item":
                await send.send(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(work)

    found = find_schedule(program, schedules=3, starved_after=100)
    assert isinstance(found, NotFound)


def test_who_comes_back_to_the_same_line_with_something_done_is_not_starved() -> None:
    async def program() -> None:
        send, receive = trio.open_memory_channel[int](0)
        got: list[int] = []

        async def consume() -> None:
            async for item in receive:
                got.append(item)

        async def produce() -> None:
            async with send:
                for item in range(80):
                    await send.send(item)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            nursery.start_soon(produce)
        assert got == [*range(80)]

    found = find_schedule(program, schedules=3, starved_after=40)
    assert isinstance(found, NotFound)


def test_a_starved_task_of_asyncio_is_named() -> None:
    async def program() -> None:
        free = asyncio.Condition()
        held = True

        async def greedy() -> None:
            nonlocal held
            for _ in range(100):
                async with free:
                    held = False
                    free.notify_all()
                    held = True
                await asyncio.sleep(0)
            held = False
            async with free:
                free.notify_all()

        async def polite() -> None:
            async with free:
                while held:
                    await free.wait()

        await asyncio.gather(greedy(), polite())

    found: Any = find_schedule(program, schedules=3, starved_after=60, backend="asyncio")
    assert isinstance(found.error, StarvationError)
    assert "polite (test_starvation.py:" in str(found.error)


class ReadersFirstInThreads:
    """The same for threads."""

    def __init__(self) -> None:
        self.readers = 0
        self.changed = threading.Condition()

    def write(self) -> None:
        with self.changed:
            while self.readers:
                self.changed.wait()

    def enter(self) -> None:
        with self.changed:
            self.readers += 1
            self.changed.notify_all()

    def leave(self) -> None:
        with self.changed:
            self.readers -= 1
            self.changed.notify_all()


@pytest.mark.parametrize("rounds", [100, 2])
def test_a_starved_thread_is_named_with_its_line_and_with_who_takes(rounds: int) -> None:
    def program() -> None:
        lock = ReadersFirstInThreads()
        lock.enter()

        def read() -> None:
            for _ in range(rounds):
                lock.enter()
                lock.leave()
            lock.leave()

        at_once(lock.write, read)

    found = find_schedule(program, schedules=1, starved_after=500, shrink=False)
    if rounds == 2:
        assert isinstance(found, NotFound), "it got its turn before the bound"
        return
    assert isinstance(found, Found)
    assert isinstance(found.error, StarvationError)
    words = str(found.error)
    assert "is starved: others made" in words
    assert "ReadersFirstInThreads.write (test_starvation.py:" in words
    assert "last thread '" in words


def test_a_thread_that_polls_is_starved_if_others_take_it_back_each_time() -> None:
    def program() -> None:
        state = {"busy": True, "turns": 0}

        def greedy() -> None:
            for _ in range(100):
                state["busy"] = True
                state["turns"] += 1
                state["busy"] = False
                state["busy"] = True
            state["busy"] = False

        def polite() -> None:
            while state["busy"]:
                pass

        at_once(greedy, polite)

    found = find_schedule(program, schedules=3, starved_after=200, shrink=False)
    assert isinstance(found, Found)
    assert isinstance(found.error, StarvationError)
    assert "polite (test_starvation.py:" in str(found.error)


@pytest.mark.parametrize("waits_for", ["event", "item", "poll", "end"])
def test_a_thread_that_waits_for_something_that_nobody_takes_is_not_starved(waits_for: str) -> None:
    def program() -> None:
        event = threading.Event()
        items: queue.Queue[int] = queue.Queue()
        state = {"is over": False}
        done = [0]

        def wait() -> None:
            if waits_for == "event":
                event.wait()
            elif waits_for == "item":
                items.get()
            while waits_for == "poll" and not state["is over"]:
                pass

        def work() -> None:
            for _ in range(60):
                done[0] += 1
            event.set()
            items.put(1)
            state["is over"] = True

        at_once(wait, work)

    found = find_schedule(program, schedules=3, starved_after=100)
    assert isinstance(found, NotFound)


def test_a_thread_that_takes_one_item_after_the_other_is_not_starved() -> None:
    def program() -> None:
        items: queue.Queue[int] = queue.Queue(1)
        got: list[int] = []

        def consume() -> None:
            got.extend(items.get() for _ in range(20))

        def produce() -> None:
            for item in range(20):
                items.put(item)

        at_once(consume, produce)
        assert got == [*range(20)]

    found = find_schedule(program, schedules=3, starved_after=100)
    assert isinstance(found, NotFound)


def test_a_thread_that_comes_to_new_lines_is_not_starved() -> None:
    """It changes nothing, and others change what it looks at; but it gets on."""

    def program() -> None:
        state = {"busy": True}

        def look() -> list[bool]:
            first = state["busy"]
            second = state["busy"]
            third = state["busy"]
            return [first, second, third]

        def work() -> None:
            for _ in range(600):
                state["busy"] = True

        at_once(work, look)

    # In one of these it has the lowest priority, and makes a step in 250.
    found = find_schedule(program, schedules=4, search="priorities", depth=1, starved_after=300)
    assert isinstance(found, NotFound)
