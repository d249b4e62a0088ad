"""Small programs drawn at random: what tasks and threads may touch, wait for and lend."""

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from operator import call
from random import Random
from typing import Any

import trio
from hypothesis import strategies as st

from harness.testing.schedules._choosers import Planned
from harness.testing.schedules._control import controlled
from harness.testing.schedules._run_schedule import run_probe
from harness.testing.schedules._search import Probe
from harness.testing.schedules._strand import Kind, Strand
from harness.testing.schedules._systematic import Systematic

Program = Callable[[], Awaitable[Any]]
Plan = list[list[tuple[str, int]]]
"""For each task, what it does and with which of two places."""

DOES = ("write", "read", "append", "put", "look", "lock", "set", "wait", "lend", "sleep", "swap")

plans: st.SearchStrategy[Plan] = st.lists(
    st.lists(st.tuples(st.sampled_from(DOES), st.integers(0, 1)), min_size=1, max_size=2),
    min_size=2,
    max_size=3,
)


class Place:
    """What tasks share."""

    def __init__(self) -> None:
        self.number = 0
        self.list: list[int] = []
        self.dict: dict[int, int] = {}


def program_of(plan: Plan, backend: Kind) -> Program:
    """Return a program that carries out a plan, and returns all that could differ."""
    library: Any = trio if backend == "trio" else asyncio

    async def program() -> Any:
        places = [Place(), Place()]
        locks = [library.Lock(), library.Lock()]
        events = [library.Event(), library.Event()]
        permits = [library.Semaphore(1), library.Semaphore(1)]
        read: dict[int, int] = {0: 0, 1: 0, 2: 0}

        async def work(me: int) -> None:
            for does, which in plan[me]:
                place = places[which]
                if does == "write":
                    place.number = place.number * 2 + me + 1
                elif does == "read":
                    read[me] = read[me] * 31 + place.number
                elif does == "append":
                    place.list.append(me)
                elif does == "put":
                    place.dict[me % 2] = read[me]
                elif does == "look":
                    read[me] += sum(place.list) + len(place.dict) + (me in place.list)
                elif does == "lock":
                    async with locks[which]:
                        number = place.number
                        await library.sleep(0)
                        place.number = number + 1
                elif does == "set" or me == 0:
                    events[which].set()
                elif does == "wait":
                    await events[which].wait()
                elif does == "lend":
                    async with permits[which]:
                        read[me] += len(place.list)
                elif does == "sleep":
                    await library.sleep(1 + which)
                else:
                    places[0].number, places[1].number = places[1].number, places[0].number
                await library.sleep(0)

        if backend == "trio":
            async with trio.open_nursery() as nursery:
                for me in range(len(plan)):
                    nursery.start_soon(work, me)
        else:
            await asyncio.gather(*(work(me) for me in range(len(plan))))
        ends = [(place.number, place.list, list(place.dict.items())) for place in places]
        return [*read.items()], ends

    return program


class _Decisions:
    """Counts the decisions of a run until it ends by itself, or is ended."""

    count = 0

    def before_step(self, strand: Strand) -> None:
        control = strand.context.get(controlled)
        if control is not None and not control.cut_short:
            self.count = len(control.choices)

    def after_step(self, strand: Strand) -> None:
        pass


def every_order(
    program: Callable[[], Any], backend: Kind, *, at_most: int
) -> tuple[int, set[str]] | None:
    """Return how many orders a program has, and the ends of all; None if there are too many."""
    systematic = Systematic(Random(0))
    orders: set[tuple[int, ...]] = set()
    ends: set[str] = set()
    for _ in range(at_most):
        deviations = systematic.propose()
        if deviations is None:
            return len(orders), ends
        decisions = _Decisions()
        probe = Probe(Planned(dict(deviations)), observers=(decisions,))
        run = run_probe(program, probe, backend=backend)
        orders.add(run.picks[: decisions.count])
        ends.add(end_of(run.error, run.outcome))
        systematic.learn(deviations, run.widths)
    return None


def end_of(error: BaseException | None, outcome: Any) -> str:
    """Return how a run ended, in words that are the same in every order with that end."""
    return repr(outcome) if error is None else type(error).__name__


# Threads ----------------------------------------------------------------------------------------


class SharedByThreads:
    """What threads share."""

    def __init__(self) -> None:
        self.number = 0
        self.list: list[int] = []
        self.lock = threading.Lock()
        self.own_again = threading.RLock()
        self.event = threading.Event()
        self.permit = threading.Semaphore(1)
        self.queue: queue.SimpleQueue[int] = queue.SimpleQueue()


def _add(shared: SharedByThreads, lock: Any, mine: list[Any]) -> None:
    shared.number += 1


def _read(shared: SharedByThreads, lock: Any, mine: list[Any]) -> None:
    mine.append(shared.number)


def _append(shared: SharedByThreads, lock: Any, mine: list[Any]) -> None:
    shared.list.append(len(mine))


def _lock(shared: SharedByThreads, lock: Any, mine: list[Any]) -> None:
    with lock:
        shared.number *= 2


def _try(shared: SharedByThreads, lock: Any, mine: list[Any]) -> None:
    if lock.acquire(blocking=False):
        mine.append("got it")
        lock.release()


def _patient(shared: SharedByThreads, lock: Any, mine: list[Any]) -> None:
    if lock.acquire(timeout=1):
        mine.append("got it")
        lock.release()


def _again(shared: SharedByThreads, lock: Any, mine: list[Any]) -> None:
    with shared.own_again, shared.own_again:
        mine.append(shared.number)


def _lend(shared: SharedByThreads, lock: Any, mine: list[Any]) -> None:
    with shared.permit:
        mine.append(shared.number)


def _set(shared: SharedByThreads, lock: Any, mine: list[Any]) -> None:
    shared.event.set()


def _look(shared: SharedByThreads, lock: Any, mine: list[Any]) -> None:
    mine.append((shared.event.is_set(), lock.locked()))


def _wait(shared: SharedByThreads, lock: Any, mine: list[Any]) -> None:
    mine.append(shared.event.wait(2))


def _put(shared: SharedByThreads, lock: Any, mine: list[Any]) -> None:
    shared.queue.put(len(mine))


def _get(shared: SharedByThreads, lock: Any, mine: list[Any]) -> None:
    with suppress(queue.Empty):
        mine.append(shared.queue.get_nowait())


def _sleep(shared: SharedByThreads, lock: Any, mine: list[Any]) -> None:
    time.sleep(1)


DONE_BY_THREADS = (
    *(_add, _read, _append, _lock, _try, _patient, _again, _lend, _set, _look, _wait, _put),
    *(_get, _sleep),
)

ThreadPlan = list[list[Any]]
"""For each thread, what it does."""

thread_plans: st.SearchStrategy[ThreadPlan] = st.lists(
    st.lists(st.sampled_from(DONE_BY_THREADS), min_size=1, max_size=2), min_size=2, max_size=3
)


def program_of_threads(plan: ThreadPlan) -> Callable[[], Any]:
    """Return a program of threads that carries out a plan, and returns all that could differ.

    What only carries it out is written in C, and has no points.
    """

    def program() -> Any:
        shared = SharedByThreads()
        notes: list[list[Any]] = [[] for _ in plan]
        threads = [
            threading.Thread(
                target=deque,
                args=(map(call, [partial(do, shared, shared.lock, mine) for do in does]), 0),
                name=f"{number}",
            )
            for number, (does, mine) in enumerate(zip(plan, notes, strict=True))
        ]
        begin = [partial(threading.Thread.start, thread) for thread in threads]
        deque(map(call, begin + [partial(threading.Thread.join, thread) for thread in threads]), 0)
        return shared.number, shared.list, notes, shared.queue.qsize()

    return program
