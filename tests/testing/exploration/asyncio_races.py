"""Twenty-two races of asyncio programs, as people have reported them, each with its correction.

Each is a small test that fails under some order of its tasks. With ``right=True`` it is written as
the reports say it should have been, and fails under none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Protocol

from harness.testing import faultable


class Race(Protocol):
    """One of the tests."""

    __name__: str

    def __call__(self, *, right: bool) -> Awaitable[None]: ...


RACES: list[Race] = []


def race(test: Race) -> Race:
    RACES.append(test)
    return test


async def io() -> None:
    """Wait as for a network."""
    await asyncio.sleep(0)


async def at_once(*functions: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.TaskGroup() as group:
        for function in functions:
            group.create_task(_call(function), name=function.__qualname__)


async def _call(function: Callable[[], Awaitable[object]]) -> None:
    await function()


@race
async def check_then_act(*, right: bool) -> None:
    """A balance is checked before an await, and spent after it."""
    left = 100
    lock = asyncio.Lock()

    async def spend(amount: int) -> None:
        nonlocal left
        if left >= amount:
            await io()
            left -= amount

    async def spend_locked(amount: int) -> None:
        async with lock:
            await spend(amount)

    how = spend_locked if right else spend
    await at_once(lambda: how(70), lambda: how(60))
    assert left >= 0


@race
async def lost_update(*, right: bool) -> None:
    """A counter is read, an await comes between, and it is written back one larger."""
    count = 0

    async def visit() -> None:
        nonlocal count
        if right:
            await io()
            count += 1
        else:
            seen = count
            await io()
            count = seen + 1

    await asyncio.gather(visit(), visit(), visit())
    assert count == 3


@race
async def current_request(*, right: bool) -> None:
    """A handler keeps the request in an attribute of the application, for its helpers."""

    class App:
        request = ""

    variable: ContextVar[str] = ContextVar("request")
    answers: dict[str, str] = {}

    async def handle(user: str) -> None:
        App.request = user
        variable.set(user)
        await io()
        answers[user] = variable.get() if right else App.request

    await at_once(lambda: handle("ada"), lambda: handle("bob"))
    assert answers == {"ada": "ada", "bob": "bob"}


@race
async def request_in_a_callback(*, right: bool) -> None:
    """A done callback looks up whose request it is for only when it is called."""
    user: ContextVar[str] = ContextVar("user")
    latest = ""
    log: list[tuple[str, str]] = []

    async def handle(name: str) -> None:
        nonlocal latest
        user.set(name)
        latest = name
        task = asyncio.create_task(io())
        task.add_done_callback(lambda _: log.append((name, user.get() if right else latest)))
        await task

    await at_once(lambda: handle("ada"), lambda: handle("bob"))
    assert all(name == logged for name, logged in log)


@race
async def lost_wake_up(*, right: bool) -> None:
    """A consumer clears the event after it has looked, so a set in between is lost."""
    items: deque[int] = deque()
    ready = asyncio.Event()

    async def produce() -> None:
        await io()
        items.append(1)
        ready.set()

    async def consume() -> None:
        while not items:
            if right:
                ready.clear()
            else:
                await io()  # Such as writing a line to the log.
                ready.clear()
            await ready.wait()
        items.popleft()

    await at_once(produce, consume)


@race
async def cancelled_while_holding(*, right: bool) -> None:
    """A timeout strikes between acquire and the try that releases."""
    slots = asyncio.Semaphore(1)

    async def work() -> None:
        try:
            async with asyncio.timeout(1):
                await slots.acquire()
                if not right:
                    await io()
                try:
                    await asyncio.sleep(0.5)
                finally:
                    slots.release()
        except TimeoutError:
            pass

    await at_once(work, work, work)
    assert slots._value == 1


@race
async def cancel_leaves_a_reply(*, right: bool) -> None:
    """A command is cancelled after it was sent; the next user of the connection gets its reply."""
    replies: deque[str] = deque()
    free = asyncio.Lock()
    broken = False

    async def ask(question: str) -> str:
        nonlocal broken
        async with free:
            if broken:
                replies.clear()
            broken = right
            replies.append(f"answer to {question}")
            await io()
            answer = replies.popleft()
            broken = False
            return answer

    async def caller(number: int) -> None:
        with faultable(number):
            assert await ask(str(number)) == f"answer to {number}"

    await at_once(lambda: caller(1), lambda: caller(2))


@race
async def gathered_list(*, right: bool) -> None:
    """Results are appended as they come, and matched with the inputs by position."""
    results: list[str] = []

    async def fetch(name: str) -> str:
        await io()
        return name.upper()

    async def keep(name: str) -> None:
        results.append(await fetch(name))

    if right:
        results = list(await asyncio.gather(*map(fetch, "abc")))
    else:
        await asyncio.gather(*map(keep, "abc"))
    assert results == ["A", "B", "C"]


@race
async def as_completed_order(*, right: bool) -> None:
    """What `asyncio.as_completed` yields is taken to come in the order of the inputs."""

    async def fetch(name: str) -> str:
        await io()
        return name

    names = ["a", "b", "c"]
    found: dict[str, str] = {}
    if right:
        for done in asyncio.as_completed([fetch(name) for name in names]):
            got = await done
            found[got] = got
    else:
        for name, done in zip(names, asyncio.as_completed(map(fetch, names)), strict=True):
            found[name] = await done
    assert all(name == value for name, value in found.items())


@race
async def cache_stampede(*, right: bool) -> None:
    """All who miss the cache load the value, instead of one of them."""
    cache: dict[str, int] = {}
    loading: dict[str, asyncio.Task[int]] = {}
    loads = 0

    async def load() -> int:
        nonlocal loads
        loads += 1
        await io()
        return 42

    async def get(key: str) -> int:
        if key not in cache:
            if right:
                if key not in loading:
                    loading[key] = asyncio.create_task(load())
                cache[key] = await loading[key]
            else:
                cache[key] = await load()
        return cache[key]

    await at_once(lambda: get("k"), lambda: get("k"), lambda: get("k"))
    assert loads == 1


@race
async def two_clients(*, right: bool) -> None:
    """A client made on first use is made twice, and one of them is never closed."""
    opened = 0
    client: object = None
    lock = asyncio.Lock()

    async def connect() -> object:
        nonlocal opened
        opened += 1
        await io()
        return object()

    async def use() -> None:
        nonlocal client
        if right:
            async with lock:
                if client is None:
                    client = await connect()
        elif client is None:
            client = await connect()

    await at_once(use, use)
    assert opened == 1


@race
async def double_close(*, right: bool) -> None:
    """Two paths close a connection; the flag is set after the await."""
    closed = False
    closes = 0

    async def close() -> None:
        nonlocal closed, closes
        if closed:
            return
        if right:
            closed = True
        await io()
        closed = True
        closes += 1

    await at_once(close, close)
    assert closes == 1


@race
async def lost_task_done(*, right: bool) -> None:
    """A worker that is cancelled between get and task_done leaves `join` waiting forever."""
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def work() -> None:
        while True:
            await queue.get()
            if right:
                try:
                    await io()
                finally:
                    queue.task_done()
            else:
                await io()
                queue.task_done()

    workers = [asyncio.create_task(work(), name=f"worker {number}") for number in range(2)]
    for item in range(3):
        queue.put_nowait(item)
    await io()
    workers[0].cancel()  # Scaled down.
    await queue.join()
    workers[1].cancel()


@race
async def rotating_token(*, right: bool) -> None:
    """Two requests find the token expired; the second refresh revokes what the first got."""
    valid = "old"
    token = "old"
    refreshes = 0
    lock = asyncio.Lock()

    async def refresh() -> None:
        nonlocal valid, token, refreshes
        refreshes += 1
        new = f"token {refreshes}"
        valid = new
        await io()
        token = new

    async def request() -> None:
        if right:
            async with lock:
                if token == "old":
                    await refresh()
        elif token == "old":
            await refresh()
        assert token == valid, "401"

    await at_once(request, request)


@race
async def window_of_a_limiter(*, right: bool) -> None:
    """A rate limiter looks into its window, waits, and only then enters itself."""
    window: list[float] = []
    loop = asyncio.get_running_loop()

    async def enter() -> None:
        while len(window) >= 2:
            await asyncio.sleep(1)
            window[:] = [at for at in window if at > loop.time() - 1]
        if right:
            window.append(loop.time())
            await io()
        else:
            await io()
            window.append(loop.time())
        assert len(window) <= 2

    await at_once(enter, enter, enter)


@race
async def clients_while_broadcasting(*, right: bool) -> None:
    """A server sends to each of its clients while one of them leaves."""
    clients = {"ada", "bob"}

    async def broadcast() -> None:
        for _ in list(clients) if right else clients:
            await io()

    async def leave() -> None:
        await io()
        clients.discard("bob")

    await at_once(broadcast, leave)


@race
async def condition_without_a_loop(*, right: bool) -> None:
    """A consumer that was woken takes an item, though another may have taken it before."""
    items: list[int] = []
    changed = asyncio.Condition()
    served = 0

    async def consume() -> None:
        nonlocal served
        async with changed:
            if right:
                await changed.wait_for(lambda: items)
            elif not items:
                await changed.wait()
            items.pop()
            served += 1

    async def produce() -> None:
        for item in range(2):
            await io()
            async with changed:
                items.append(item)
                changed.notify_all()

    await at_once(consume, consume, produce)
    assert served == 2


@race
async def two_locks(*, right: bool) -> None:
    """Two transfers take the same two locks in opposite order."""
    ada, bob = asyncio.Lock(), asyncio.Lock()

    async def transfer(first: asyncio.Lock, second: asyncio.Lock) -> None:
        async with first:
            await io()
            async with second:
                await io()

    opposite = (ada, bob) if right else (bob, ada)
    await at_once(lambda: transfer(ada, bob), lambda: transfer(*opposite))


@race
async def answered_twice(*, right: bool) -> None:
    """The reply and its timeout both find the future pending, and both set it."""
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def answer(text: str) -> None:
        if not future.done():
            await io()
            if not right or not future.done():
                future.set_result(text)

    await at_once(lambda: answer("reply"), lambda: answer("timeout"))


@race
async def stopped_while_starting(*, right: bool) -> None:
    """A service that is stopped while it starts runs on."""
    state = "new"

    async def start() -> None:
        nonlocal state
        state = "starting"
        await io()
        if not right or state == "starting":
            state = "running"

    async def stop() -> None:
        nonlocal state
        state = "stopped"

    async def stop_later() -> None:
        await io()
        await stop()

    starting = asyncio.create_task(start())
    await io()
    await stop_later()
    await starting
    assert state == "stopped"


@race
async def iterated_by_two(*, right: bool) -> None:
    """Two tasks take the pages of one async generator, which can't be resumed by both."""
    lock = asyncio.Lock()
    seen: list[int] = []

    async def pages() -> AsyncIterator[int]:
        for page in range(4):
            await io()
            yield page

    source = pages()

    async def take() -> None:
        for _ in range(2):
            if right:
                async with lock:
                    seen.append(await anext(source))
            else:
                seen.append(await anext(source))

    await at_once(take, take)
    assert sorted(seen) == [0, 1, 2, 3]


@race
async def published_before_subscribed(*, right: bool) -> None:
    """A message is published while the subscriber is still connecting, and is lost."""
    subscribers: list[asyncio.Queue[str]] = []
    ready = asyncio.Event()
    got: list[str] = []

    async def subscribe() -> None:
        queue: asyncio.Queue[str] = asyncio.Queue()
        await io()
        subscribers.append(queue)
        ready.set()
        async with asyncio.timeout(10):
            got.append(await queue.get())

    async def publish() -> None:
        if right:
            await ready.wait()
        else:
            await asyncio.sleep(0)  # "It must be there by now."
        for queue in subscribers:
            queue.put_nowait("hello")

    await at_once(subscribe, publish)
    assert got == ["hello"]


@race
async def read_while_writing(*, right: bool) -> None:
    """Two values that belong together are written with an await between them."""
    first = second = 0

    async def write() -> None:
        nonlocal first, second
        for number in range(1, 3):
            if right:
                await io()
                first = second = number
            else:
                first = number
                await io()
                second = number

    async def read() -> None:
        await io()
        assert first == second

    await at_once(write, read)
