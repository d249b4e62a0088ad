"""Twenty-two races of threads, as people have reported them, each with its correction.

Each is a small test that fails under some order of its threads. With ``right=True`` it is written
as the reports say it should have been, and fails under none.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol


class Race(Protocol):
    """One of the tests."""

    __name__: str

    def __call__(self, *, right: bool) -> None: ...


RACES: list[Race] = []


def race(test: Race) -> Race:
    RACES.append(test)
    return test


def at_once(*functions: Callable[[], object]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def locked(right: bool) -> AbstractContextManager[object]:
    """Return a lock, or nothing where the report has none."""
    return threading.Lock() if right else nullcontext()


class Counter:
    """What counts calls."""

    def __init__(self, right: bool) -> None:
        self.lock = locked(right)
        self.value = 0

    def increase(self) -> None:
        with self.lock:
            self.value += 1


@race
def lost_update(*, right: bool) -> None:
    """A counter is read and written back in two steps."""
    counter = Counter(right)
    at_once(counter.increase, counter.increase)
    assert counter.value == 2


@race
def lost_update_of_an_element(*, right: bool) -> None:
    """Words are counted in a dict by several threads."""
    counts = {"a": 0}
    lock = locked(right)

    def count() -> None:
        for _ in range(2):
            with lock:
                counts["a"] += 1

    at_once(count, count)
    assert counts["a"] == 4


@race
def check_then_act(*, right: bool) -> None:
    """A key is looked for, and what is missing made, more than once."""
    sessions: dict[str, object] = {}
    lock = locked(right)

    def session() -> object:
        with lock:
            if "ada" not in sessions:
                sessions["ada"] = object()
            return sessions["ada"]

    seen: list[object] = []
    at_once(lambda: seen.append(session()), lambda: seen.append(session()))
    assert seen[0] is seen[1]


@race
def lazy_init(*, right: bool) -> None:
    """A singleton is made twice."""

    class Client:
        made = 0
        instance: Client | None = None
        lock = locked(right)

        def __init__(self) -> None:
            Client.made += 1

        @classmethod
        def get(cls) -> Client:
            with cls.lock:
                if cls.instance is None:
                    cls.instance = cls()
                return cls.instance

    at_once(Client.get, Client.get)
    assert Client.made == 1


@race
def double_checked_locking(*, right: bool) -> None:
    """The object is put where others find it before it is ready."""

    class Config:
        ready = False

        def load(self) -> None:
            self.ready = True

    class Holder:
        config: Config | None = None
        lock = threading.Lock()

        def get(self) -> Config:
            if self.config is None:
                with self.lock:
                    if self.config is None:
                        config = Config()
                        if right:
                            config.load()
                            self.config = config
                        else:
                            self.config = config
                            config.load()
            return self.config

    holder = Holder()
    seen: list[bool] = []
    at_once(lambda: seen.append(holder.get().ready), lambda: seen.append(holder.get().ready))
    assert all(seen)


@race
def lock_order_inversion(*, right: bool) -> None:
    """Two transfers take two locks, each in its own order."""
    first, second = threading.Lock(), threading.Lock()

    def transfer(one: threading.Lock, other: threading.Lock) -> None:
        with one, other:
            pass

    back = (first, second) if right else (second, first)
    at_once(lambda: transfer(first, second), lambda: transfer(*back))


@race
def iterate_while_mutating(*, right: bool) -> None:
    """Listeners are called while another one registers."""
    listeners: dict[str, Callable[[], None]] = {"a": lambda: None, "b": lambda: None}
    errors: list[Exception] = []

    def publish() -> None:
        try:
            for listener in list(listeners.values()) if right else listeners.values():
                listener()
        except RuntimeError as error:
            errors.append(error)

    at_once(publish, lambda: listeners.__setitem__("c", lambda: None))
    assert not errors


@race
def condition_without_a_loop(*, right: bool) -> None:
    """A consumer that was woken takes what another has taken in the meantime."""
    items: deque[int] = deque()
    condition = threading.Condition()
    errors: list[Exception] = []

    def consume() -> None:
        with condition:
            if right:
                while not items:
                    condition.wait()
            elif not items:
                condition.wait()
            try:
                items.popleft()
            except IndexError as error:
                errors.append(error)

    def produce() -> None:
        for number in range(2):
            with condition:
                items.append(number)
                condition.notify_all()

    at_once(consume, consume, produce)
    assert not errors


@race
def missed_notify(*, right: bool) -> None:
    """Somebody waits for a notification that came before."""
    condition = threading.Condition()
    done = False

    def wait() -> None:
        with condition:
            if right:
                condition.wait_for(lambda: done)
            else:
                condition.wait()

    def finish() -> None:
        nonlocal done
        with condition:
            done = True
            condition.notify()

    at_once(wait, finish)


@race
def one_sentinel_for_two_workers(*, right: bool) -> None:
    """A queue is shut down with one sentinel, and the second worker waits forever."""
    jobs: queue.Queue[int | None] = queue.Queue()

    def work() -> None:
        while jobs.get() is not None:
            pass

    def close() -> None:
        jobs.put(1)
        for _ in range(2 if right else 1):
            jobs.put(None)

    at_once(work, work, close)


@race
def empty_then_get(*, right: bool) -> None:
    """A worker asks whether a queue is empty, and then blocks on it."""
    jobs: queue.Queue[int] = queue.Queue()
    jobs.put(1)

    def work() -> None:
        if right:
            try:
                jobs.get_nowait()
            except queue.Empty:
                return
        elif not jobs.empty():
            jobs.get()

    at_once(work, work)


@race
def shared_connection(*, right: bool) -> None:
    """Two requests use one connection, and each gets the answer to the other."""

    class Connection:
        request = ""

        def send(self, request: str) -> None:
            self.request = request

        def receive(self) -> str:
            return f"re: {self.request}"

    shared = Connection()

    def ask(what: str) -> None:
        connection = Connection() if right else shared
        connection.send(what)
        answers[what] = connection.receive()

    answers: dict[str, str] = {}
    at_once(lambda: ask("a"), lambda: ask("b"))
    assert answers == {"a": "re: a", "b": "re: b"}


@race
def cache_stampede(*, right: bool) -> None:
    """All who find the cache empty ask the slow service at once."""
    cache: dict[str, int] = {}
    lock = locked(right)
    asked: list[str] = []

    def look_up(key: str) -> int:
        with lock:
            if cache.get(key) is None:
                time.sleep(1)
                asked.append(key)
                cache[key] = 1
            return cache[key]

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(look_up, ["a"] * 3))
    assert asked == ["a"]


@race
def timer_against_cancel(*, right: bool) -> None:
    """A timer is cancelled when its function has begun."""
    state = "open"
    lock = threading.Lock()

    def expire() -> None:
        nonlocal state
        with lock:
            if not right or state == "open":
                state = "expired"

    timer = threading.Timer(5, expire)
    timer.start()
    time.sleep(5)
    timer.cancel()
    with lock:
        if state == "open":
            state = "finished"
        finished = state == "finished"
    timer.join()
    assert not finished or state == "finished"


@race
def semaphore_released_twice(*, right: bool) -> None:
    """Too many are let in, as a slot is given back once more on a path of errors."""
    slots = threading.Semaphore(1)
    inside: list[bool] = []
    seen: list[int] = []

    def work(fails: bool) -> None:
        slots.acquire()
        inside.append(fails)
        seen.append(len(inside))
        inside.pop()
        if fails and not right:
            slots.release()
        slots.release()

    at_once(lambda: work(True), lambda: work(False), lambda: work(False))
    assert max(seen) == 1


@race
def check_a_future_then_set_it(*, right: bool) -> None:
    """Two threads each see that a future isn't done, and both set it."""
    future: Future[int] = Future()
    lock = locked(right)
    errors: list[Exception] = []

    def answer(value: int) -> None:
        with lock:
            try:
                if not future.done():
                    future.set_result(value)
            except Exception as error:
                errors.append(error)

    at_once(lambda: answer(1), lambda: answer(2))
    assert not errors


@race
def worker_waits_for_its_own_pool(*, right: bool) -> None:
    """A job waits for another job of the pool that has no worker left for it."""
    with ThreadPoolExecutor(3 if right else 2) as pool:

        def page() -> int:
            return pool.submit(lambda: 1).result()

        pages = [pool.submit(page), pool.submit(page)]
        if not right:
            assert [one.result(timeout=60) for one in pages] == [1, 1]
        else:
            assert [one.result() for one in pages] == [1, 1]


@race
def event_cleared_too_late(*, right: bool) -> None:
    """A signal that comes between the wait and the clear is lost."""
    event = threading.Event()
    items: list[int] = []
    seen: list[int] = []

    def consume() -> None:
        while len(seen) < 2:
            event.wait()
            if right:
                event.clear()
            while items:
                seen.append(items.pop())
            if not right:
                event.clear()

    def produce() -> None:
        for number in range(2):
            items.append(number)
            event.set()

    at_once(consume, produce)


@race
def barrier_with_one_missing(*, right: bool) -> None:
    """A thread that fails before a barrier leaves the others there."""
    barrier = threading.Barrier(2)
    stock = {"left": 1}
    broken: list[str] = []

    def take() -> None:
        try:
            if not right and stock["left"] < 1:
                return
            stock["left"] -= 1
            barrier.wait(60)
        except threading.BrokenBarrierError:
            broken.append("broken")

    at_once(take, take)
    assert not broken


@race
def generator_shared_by_threads(*, right: bool) -> None:
    """Two threads take the next number of one generator, which is executing already."""

    def numbers() -> Iterator[int]:
        number = 0
        state: dict[str, int] = {}
        while True:
            state["last"] = number
            yield number
            number += 1

    ids = numbers()
    lock = locked(right)
    errors: list[Exception] = []

    def take() -> None:
        try:
            with lock:
                next(ids)
        except ValueError as error:
            errors.append(error)

    at_once(take, take)
    assert not errors


@race
def stop_flag_of_a_reused_object(*, right: bool) -> None:
    """A worker that is stopped and started again sees the new flag, and two run."""

    class Poller:
        def __init__(self) -> None:
            self.stopping = False
            self.alive = 0
            self.most = 0
            self.lock = threading.Lock()

        def run(self) -> None:
            with self.lock:
                self.alive += 1
                self.most = max(self.most, self.alive)
            while not self.stopping:
                time.sleep(1)
            with self.lock:
                self.alive -= 1

        def start(self) -> threading.Thread:
            self.stopping = False
            thread = threading.Thread(target=self.run)
            thread.start()
            return thread

    poller = Poller()
    first = poller.start()
    time.sleep(1)
    poller.stopping = True
    if right:
        first.join()
    second = poller.start()
    time.sleep(1)
    poller.stopping = True
    first.join()
    second.join()
    assert poller.most == 1


@race
def publish_in_two_steps(*, right: bool) -> None:
    """A reader sees the new version with the old value."""
    current: dict[str, Any] = {"version": 1, "value": "one"}
    whole: list[tuple[int, str]] = [(1, "one")]

    def write() -> None:
        whole[0] = (2, "two")
        current["version"] = 2
        current["value"] = "two"

    seen: list[tuple[int, str]] = []

    def read() -> None:
        seen.append(whole[0] if right else (current["version"], current["value"]))

    at_once(write, read)
    assert seen[0] in ((1, "one"), (2, "two"))
