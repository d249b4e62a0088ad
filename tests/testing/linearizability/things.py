"""Counters, caches and queues for threads, trio and asyncio: right ones, and wrong ones."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
import trio


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def increase(self) -> int:
        self.count += 1
        return self.count

    def read(self) -> int:
        return self.count


class LockedCounter(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def increase(self) -> int:
        with self.lock:
            return super().increase()


class PeekingQueue:
    """Looks whether there is something, and then takes it."""

    def __init__(self) -> None:
        self.items: list[int] = []

    def put(self, item: int) -> None:
        self.items.append(item)

    def take(self) -> int | None:
        return self.items.pop(0) if self.items else None


class SafeQueue:
    def __init__(self) -> None:
        self.queue: queue.Queue[int] = queue.Queue()

    def put(self, item: int) -> None:
        self.queue.put(item)

    def take(self) -> int:
        return self.queue.get()


class Cache:
    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    async def get(self, key: str) -> int | None:
        return self.values.get(key)

    async def add(self, key: str, value: int) -> bool:
        if key in self.values:
            return False
        await trio.sleep(0.1)
        self.values[key] = value
        return True

    async def evict(self, key: str) -> int | None:
        return self.values.pop(key, None)


class LockedCache(Cache):
    def __init__(self) -> None:
        super().__init__()
        self.lock = trio.Lock()

    async def add(self, key: str, value: int) -> bool:
        async with self.lock:
            return await super().add(key, value)

    async def evict(self, key: str) -> int | None:
        async with self.lock:
            return await super().evict(key)


class Channel:
    """Its readers wait while there is nothing; each item wakes one."""

    def __init__(self) -> None:
        self.items: deque[int] = deque()
        self.waiting: deque[asyncio.Event] = deque()

    async def put(self, item: int) -> None:
        self.items.append(item)
        if self.waiting:
            self.waiting.popleft().set()

    async def take(self) -> int:
        while not self.items:
            woken = asyncio.Event()
            await self.before_waiting()
            self.waiting.append(woken)
            await woken.wait()
        return self.items.popleft()

    async def before_waiting(self) -> None:
        pass


class LosingChannel(Channel):
    """An item that comes between the look and the wait wakes nobody."""

    async def before_waiting(self) -> None:
        await asyncio.sleep(0)


@attrs.frozen
class Thing:
    wrong: Callable[[], Any]
    right: Callable[[], Any]
    operations: Callable[[Any], list[Any]]
    says: str
    """What the report on the wrong one has."""


THINGS = {
    "counter": Thing(
        Counter,
        LockedCounter,
        lambda of: [of.increase, of.read],
        "  increase() gives 1; then increase() gives 2",
    ),
    "queue": Thing(
        PeekingQueue,
        SafeQueue,
        lambda of: [(of.put, 1), (of.put, 2), of.take],
        "raised IndexError: pop from empty list",
    ),
    "cache": Thing(
        Cache,
        LockedCache,
        lambda of: [(of.get, "a"), (of.add, "a", 1), (of.add, "a", 2), (of.evict, "a")],
        "gets True from add('a', 2)",
    ),
    "channel": Thing(
        LosingChannel,
        Channel,
        lambda of: [(of.put, 1), (of.put, 2), of.take],
        "never gets anything from take()",
    ),
}
