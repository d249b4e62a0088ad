"""Programs on asyncio, in pairs like those on trio."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from harness.testing import after_cancel


async def permit_faulty() -> None:
    permits = asyncio.Semaphore(2)

    async def work() -> None:
        await permits.acquire()
        await asyncio.sleep(1)
        permits.release()

    await asyncio.gather(work(), work(), work())


async def permit_right() -> None:
    permits = asyncio.Semaphore(2)

    async def work() -> None:
        async with permits:
            await asyncio.sleep(1)

    await asyncio.gather(work(), work(), work())


async def lock_faulty() -> None:
    lock = asyncio.Lock()

    async def work() -> None:
        await lock.acquire()
        try:
            await asyncio.sleep(1)
        except Exception:
            lock.release()
            raise
        lock.release()

    async with asyncio.TaskGroup() as group:
        group.create_task(work(), name="first")
        group.create_task(work(), name="second")


async def lock_right() -> None:
    lock = asyncio.Lock()

    async def work() -> None:
        async with lock:
            await asyncio.sleep(1)

    async with asyncio.TaskGroup() as group:
        group.create_task(work())
        group.create_task(work())


# A pool that hands a connection to a waiter that was cancelled while it woke.
class Pool:
    def __init__(self, *, looks_again: bool) -> None:
        self.idle = [1]
        self.waiters: deque[asyncio.Future[int]] = deque()
        self.looks_again = looks_again

    async def take(self) -> int:
        if self.idle:
            return self.idle.pop()
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if self.looks_again and waiter.done() and not waiter.cancelled():
                self.give(waiter.result())
            raise

    def give(self, connection: int) -> None:
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        self.idle.append(connection)


async def _hands_over(*, looks_again: bool) -> None:
    pool = Pool(looks_again=looks_again)
    after_cancel(lambda: len(pool.idle) == 1)

    async def use() -> None:
        connection = await pool.take()
        try:
            await asyncio.sleep(1)
        finally:
            pool.give(connection)

    await asyncio.gather(use(), use())


async def handed_over_faulty() -> None:
    await _hands_over(looks_again=False)


async def handed_over_right() -> None:
    await _hands_over(looks_again=True)


# A task that was started on the side, and is forgotten when its starter is cancelled.
async def left_alive_faulty() -> None:
    async def beat() -> None:
        while True:  # noqa: ASYNC110 - that is the case
            await asyncio.sleep(1)

    async def request() -> None:
        beats = asyncio.create_task(beat(), name="beats")
        await asyncio.sleep(3)
        beats.cancel()

    await asyncio.create_task(request())


async def left_alive_right() -> None:
    async def beat() -> None:
        while True:  # noqa: ASYNC110 - that is the case
            await asyncio.sleep(1)

    async def request() -> None:
        beats = asyncio.create_task(beat(), name="beats")
        try:
            await asyncio.sleep(3)
        finally:
            beats.cancel()

    await asyncio.create_task(request())


# A helper that takes every end for a timeout, so that its caller goes on.
async def swallowed_faulty() -> None:
    async def read() -> str:
        try:
            await asyncio.sleep(1)
        except BaseException:
            return ""
        return "line"

    async def work() -> None:
        for _ in range(3):
            await read()

    await asyncio.create_task(work(), name="reads")


async def swallowed_right() -> None:
    async def read() -> str:
        try:
            async with asyncio.timeout(0.5):
                await asyncio.sleep(1)
        except TimeoutError:
            return ""
        return "line"

    async def work() -> None:
        for _ in range(3):
            await read()
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)  # Says goodbye, and then ends.
            raise

    await asyncio.create_task(work(), name="reads")


async def lost_item_faulty() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()
    done: list[int] = []
    for item in range(3):
        queue.put_nowait(item)

    @after_cancel
    def nothing_is_lost() -> None:
        assert queue.qsize() + len(done) == 3

    async def work() -> None:
        while not queue.empty():
            item = await queue.get()
            await asyncio.sleep(0.1)
            done.append(item)

    await asyncio.gather(work(), work())


async def lost_item_right() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()
    done: list[int] = []
    for item in range(3):
        queue.put_nowait(item)

    @after_cancel
    def nothing_is_lost() -> None:
        assert queue.qsize() + len(done) == 3

    async def work() -> None:
        while not queue.empty():
            item = await queue.get()
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                queue.put_nowait(item)
                raise
            done.append(item)

    await asyncio.gather(work(), work())


async def half_written_faulty() -> None:
    record: dict[str, int] = {}
    after_cancel(lambda: len(record) in (0, 2))

    async def write() -> None:
        record["header"] = 1
        await asyncio.sleep(0.1)
        record["body"] = 2

    await asyncio.wait_for(write(), 5)


async def half_written_right() -> None:
    record: dict[str, int] = {}
    after_cancel(lambda: len(record) in (0, 2))

    async def write() -> None:
        await asyncio.sleep(0.1)
        record.update(header=1, body=2)

    await asyncio.wait_for(write(), 5)


# Right programs that a careless tool would take for faulty ones ----------------------------------


async def workers_right() -> None:
    """Workers that are cancelled when the queue is empty, and end quietly."""
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def work() -> None:
        with suppress(asyncio.CancelledError):
            while True:
                await queue.get()
                await asyncio.sleep(0.1)
                queue.task_done()

    workers = [asyncio.create_task(work()) for _ in range(2)]
    try:
        for item in range(4):
            await queue.put(item)
        await queue.join()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def condition_right() -> None:
    ready = asyncio.Condition()
    items: list[int] = []

    async def take() -> None:
        async with ready:
            await ready.wait_for(lambda: items)
            items.pop()

    async def give() -> None:
        await asyncio.sleep(0.1)
        async with ready:
            items.append(1)
            ready.notify()

    async with asyncio.TaskGroup() as group:
        group.create_task(take())
        group.create_task(give())


async def nested_groups_right() -> None:
    async def inner(seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(seconds))
            group.create_task(asyncio.sleep(seconds / 2))

    async with asyncio.TaskGroup() as group:
        group.create_task(inner(1))
        group.create_task(inner(2))
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            await asyncio.shield(asyncio.sleep(0.5))
            await asyncio.sleep(5)


async def background_right() -> None:
    """A task that the test leaves to `asyncio.run`, cancelled or not."""
    background = asyncio.create_task(asyncio.sleep(100), name="background")
    await asyncio.sleep(1)
    assert not background.done()
