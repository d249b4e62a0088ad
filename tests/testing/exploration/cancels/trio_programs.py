"""Programs on trio. Each pair of functions is a test: ``x_faulty`` and ``x_right``.

The shapes are those of public reports: about connection pools, caches, streams and workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from harness.limits import Limiter
from harness.testing import after_cancel


# A lock taken by hand, with a wait before the `try`.
async def lock_by_hand_faulty() -> None:
    lock = trio.Lock()

    async def work() -> None:
        await lock.acquire()
        await trio.sleep(0.1)
        try:
            await trio.sleep(0.1)
        finally:
            lock.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(work)


async def lock_by_hand_right() -> None:
    lock = trio.Lock()

    async def work() -> None:
        await lock.acquire()
        try:
            await trio.sleep(0.1)
            await trio.sleep(0.1)
        finally:
            lock.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(work)


# A permit given back only when all went well.
async def permit_faulty() -> None:
    permits = trio.Semaphore(2)

    async def work() -> None:
        await permits.acquire()
        await trio.sleep(1)
        permits.release()

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(work)


async def permit_right() -> None:
    permits = trio.Semaphore(2)

    async def work() -> None:
        async with permits:
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(work)


# A token of a capacity limiter, kept by an error handler that only knows errors.
async def token_faulty() -> None:
    limiter = trio.CapacityLimiter(1)

    async def work() -> None:
        await limiter.acquire()
        try:
            await trio.sleep(1)
        except Exception:
            limiter.release()
            raise
        limiter.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(work)


async def token_right() -> None:
    limiter = trio.CapacityLimiter(1)

    async def work() -> None:
        await limiter.acquire()
        try:
            await trio.sleep(1)
        except BaseException:
            limiter.release()
            raise
        limiter.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(work)


# A limiter's reservation, granted without waiting and not given back.
async def reservation_faulty() -> None:
    limiter = Limiter(requests_per_minute=600, concurrent=2)
    reservation = limiter.reserve_nowait(tokens=1)
    await trio.sleep(1)
    if reservation is not None:
        async with reservation:
            await trio.sleep(1)


async def reservation_right() -> None:
    limiter = Limiter(requests_per_minute=600, concurrent=2)
    async with limiter.reserve(tokens=1):
        await trio.sleep(1)
    reservation = limiter.reserve_nowait(tokens=1)
    if reservation is not None:
        async with reservation:
            await trio.sleep(1)


# Money that has left one account and hasn't come to the other.
async def half_written_faulty() -> None:
    accounts = {"a": 100, "b": 0}
    after_cancel(lambda: sum(accounts.values()) == 100)
    accounts["a"] -= 30
    await trio.sleep(0.1)
    accounts["b"] += 30


async def half_written_right() -> None:
    accounts = {"a": 100, "b": 0}
    after_cancel(lambda: sum(accounts.values()) == 100)
    await trio.sleep(0.1)
    accounts["a"] -= 30
    accounts["b"] += 30
    await trio.sleep(0.1)


# An item taken from one queue, and lost before it is put into the next.
async def lost_item_faulty() -> None:
    todo, done = deque(range(4)), list[int]()
    under_way: list[int] = []

    @after_cancel
    def nothing_is_lost() -> None:
        assert sorted([*todo, *done, *under_way]) == [0, 1, 2, 3]

    async def work() -> None:
        while todo:
            item = todo.popleft()
            await trio.sleep(0.1)
            done.append(item)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(work)


async def lost_item_right() -> None:
    todo, done = deque(range(4)), list[int]()

    @after_cancel
    def nothing_is_lost() -> None:
        assert sorted([*todo, *done]) == [0, 1, 2, 3]

    async def work() -> None:
        while todo:
            item = todo.popleft()
            try:
                await trio.sleep(0.1)
            except BaseException:
                todo.appendleft(item)
                raise
            done.append(item)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(work)


# A cleanup that waits, and is cancelled at once.
class Connection:
    def __init__(self) -> None:
        self.open = False

    async def connect(self) -> None:
        await trio.sleep(0.1)
        self.open = True

    async def close(self) -> None:
        await trio.sleep(0.1)
        self.open = False


async def unshielded_cleanup_faulty() -> None:
    connection = Connection()
    after_cancel(lambda: not connection.open)
    await connection.connect()
    try:
        await trio.sleep(1)
    finally:
        await connection.close()


async def unshielded_cleanup_right() -> None:
    connection = Connection()
    after_cancel(lambda: not connection.open)
    try:
        await connection.connect()
        await trio.sleep(1)
    finally:
        with trio.move_on_after(5, shield=True):
            await connection.close()


# A worker that goes on after a cancel.
async def swallowed_faulty() -> None:
    async def work() -> None:
        try:
            await trio.sleep(1)
        except BaseException:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)


async def swallowed_right() -> None:
    async def work() -> None:
        with trio.move_on_after(0.5):
            await trio.sleep(1)
        try:
            await trio.sleep(1)
        except Exception:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)


# A retry loop that takes a cancel for a failure, and never ends.
async def retried_faulty() -> None:
    async def work() -> None:
        for _ in range(1_000):
            try:
                await trio.sleep(1)
            except BaseException:
                continue
            return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)


async def retried_right() -> None:
    async def work() -> None:
        for _ in range(1_000):
            try:
                await trio.sleep(1)
            except Exception:
                continue
            return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)


# A cancel that becomes an error of the library's own.
async def became_an_error_faulty() -> None:
    async def call() -> None:
        try:
            await trio.sleep(1)
        except BaseException as error:
            raise ConnectionError("the server went away") from error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)


async def became_an_error_right() -> None:
    async def call() -> None:
        try:
            await trio.sleep(1)
        except OSError as error:
            raise ConnectionError("the server went away") from error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)


# A cleanup for what was never set up.
async def cleanup_of_nothing_faulty() -> None:
    handles: dict[str, int] = {}

    async def work() -> None:
        try:
            await trio.sleep(0.1)
            handles["work"] = 1
            await trio.sleep(0.1)
        finally:
            del handles["work"]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)


async def cleanup_of_nothing_right() -> None:
    handles: dict[str, int] = {}

    async def work() -> None:
        try:
            await trio.sleep(0.1)
            handles["work"] = 1
            await trio.sleep(0.1)
        finally:
            handles.pop("work", None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)


# A helper in somebody else's nursery, which outlives the request that started it.
async def left_alive_faulty() -> None:
    async def beat(stop: trio.Event) -> None:
        await stop.wait()

    async def request(nursery: trio.Nursery) -> None:
        stop = trio.Event()
        nursery.start_soon(beat, stop)
        await trio.sleep(1)
        stop.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(request, nursery)


async def left_alive_right() -> None:
    async def beat(stop: trio.Event) -> None:
        await stop.wait()

    async def request(nursery: trio.Nursery) -> None:
        stop = trio.Event()
        nursery.start_soon(beat, stop)
        try:
            await trio.sleep(1)
        finally:
            stop.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(request, nursery)


# A single flight whose leader is cancelled, and whose key stays taken forever.
async def single_flight_faulty() -> None:
    flights: dict[str, trio.Event] = {}

    async def fetch(key: str) -> None:
        while key in flights:
            await flights[key].wait()
        flights[key] = trio.Event()
        await trio.sleep(0.1)
        flights.pop(key).set()

    @after_cancel
    async def the_key_is_free() -> None:
        with trio.fail_after(10):
            await fetch("k")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch, "k")
        nursery.start_soon(fetch, "k")


async def single_flight_right() -> None:
    flights: dict[str, trio.Event] = {}

    async def fetch(key: str) -> None:
        while key in flights:
            await flights[key].wait()
        flights[key] = trio.Event()
        try:
            await trio.sleep(0.1)
        finally:
            flights.pop(key).set()

    @after_cancel
    async def the_key_is_free() -> None:
        with trio.fail_after(10):
            await fetch("k")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch, "k")
        nursery.start_soon(fetch, "k")


# A pool whose connection is checked outside the `try` that gives it back.
class Pool:
    def __init__(self, size: int, *, checks_inside: bool) -> None:
        self.idle = list(range(size))
        self.free = trio.Semaphore(size)
        self.checks_inside = checks_inside

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[int]:
        async with self.free:
            one = self.idle.pop()
            if not self.checks_inside:
                await trio.sleep(0.1)
            try:
                if self.checks_inside:
                    await trio.sleep(0.1)
                yield one
            finally:
                self.idle.append(one)


async def _uses_pool(*, checks_inside: bool) -> None:
    pool = Pool(2, checks_inside=checks_inside)
    after_cancel(lambda: len(pool.idle) == 2)

    async def use() -> None:
        async with pool.connection():
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(use)


async def pool_faulty() -> None:
    await _uses_pool(checks_inside=False)


async def pool_right() -> None:
    await _uses_pool(checks_inside=True)


# A shielded cleanup that waits for the very task that was cancelled.
async def shield_hangs_faulty() -> None:
    answered = trio.Event()

    async def ask() -> None:
        try:
            await trio.sleep(1)
        finally:
            with trio.CancelScope(shield=True):
                await answered.wait()

    async def answer() -> None:
        await trio.sleep(0.5)
        await trio.sleep(0.1)
        answered.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(answer)


async def shield_hangs_right() -> None:
    answered = trio.Event()

    async def ask() -> None:
        try:
            await trio.sleep(1)
        finally:
            with trio.move_on_after(5, shield=True):
                await answered.wait()

    async def answer() -> None:
        await trio.sleep(0.5)
        await trio.sleep(0.1)
        answered.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(answer)


# Right programs that a careless tool would take for faulty ones ----------------------------------


async def waits_for_an_event_right() -> None:
    """One task sets what the other waits for: cancelled alone, it never does."""
    ready = trio.Event()

    async def prepare() -> None:
        await trio.sleep(1)
        ready.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(prepare)
        nursery.start_soon(ready.wait)


async def polls_right() -> None:
    ready: list[int] = []

    async def prepare() -> None:
        await trio.sleep(1)
        ready.append(1)

    async def poll() -> None:
        while not ready:  # noqa: ASYNC110 - that is the case
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(prepare)
        nursery.start_soon(poll)


async def bounded_buffer_right() -> None:
    """Permits that one task takes and another gives back, with items left in between."""
    free, full = trio.Semaphore(2), trio.Semaphore(0)
    buffer: deque[int] = deque()

    async def produce() -> None:
        for item in range(4):
            await free.acquire()
            buffer.append(item)
            full.release()
            await trio.sleep(0.1)

    async def consume() -> None:
        for _ in range(4):
            await full.acquire()
            buffer.popleft()
            free.release()
            await trio.sleep(0.3)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        nursery.start_soon(consume)


async def server_right() -> None:
    """A service started with `nursery.start`, a timeout, an expected error, and an assertion."""
    results: list[int] = []
    send, receive = trio.open_memory_channel[int](1)

    async def serve(*, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        await trio.sleep(0.1)
        async with send:
            task_status.started(7)
            for number in range(3):
                await send.send(number)

    async def fail() -> None:
        await trio.sleep(0.1)
        raise ValueError("expected")

    async with trio.open_nursery() as nursery:
        assert await nursery.start(serve) == 7
        async with receive:
            async for number in receive:
                results.append(number)
        try:
            async with trio.open_nursery() as inner:
                inner.start_soon(fail)
                inner.start_soon(trio.sleep, 5)
        except* ValueError:
            results.append(3)
        with trio.move_on_after(1) as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught
    assert results == [0, 1, 2, 3]


async def threads_right() -> None:
    limiter = trio.CapacityLimiter(1)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(partial(trio.to_thread.run_sync, sum, [1, 2], limiter=limiter))
