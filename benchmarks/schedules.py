"""What does a controlled schedule cost, and how soon does a search find a fault?

Cost: a program of four tasks with ten steps each, and one of 100 tasks with 100 steps, under a
schedule, against a plain ``trio.run`` of the same program on a virtual clock. Both ways of control
are measured; the second is used only if the first doesn't work with the installed trio. The same
programs in asyncio are measured against ``asyncio.run``, on the real clock, as they don't sleep.
As many threads are measured against the same threads left alone. They have budgets of their own: to
a thread left alone a step is a bytecode of 30 ns, and Python takes 80 to call any function there.
With few threads, two thirds of the cost is what starts and joins them: Python code of the kit where
a plain run has C code.

Search: the CPU time until a fault is found, without shrinking, over several seeds, against simloom,
which explores asyncio programs. The programs are the same except for the library. One fault shows
in many orders; the other needs one task to stay put while others get far ahead.

Run: python -m benchmarks schedules
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import attrs
import trio
from trio.testing import MockClock

from benchmarks import _peers
from benchmarks._measure import (
    Bench,
    Measured,
    Row,
    at_most,
    for_comparison,
    in_words,
    interleaved,
    not_installed,
    rounds_of,
)
from harness.testing import Found, Schedule, find_schedule
from harness.testing.schedules._asyncio_backend import AsyncioBackend
from harness.testing.schedules._backend import Backend
from harness.testing.schedules._by_hook import HookBackend
from harness.testing.schedules._by_trampoline import TrampolineBackend
from harness.testing.schedules._choosers import Planned
from harness.testing.schedules._controlled import run_controlled
from harness.testing.schedules._thread_backend import ThreadBackend
from harness.testing.schedules._thread_patches import adopting

Checkpoint = Callable[[], Awaitable[object]]
Tasks = list[Callable[[], Coroutine[Any, Any, None]]]


def rows(*, quick: bool) -> Iterator[Row]:
    """Measure schedules against plain runs, and searches against simloom's."""
    for size in SIZES:
        count = max(1, (10 if quick else 25) * 40 // (size.tasks * size.steps))
        samples = interleaved(size.cases(), count=count, rounds=rounds_of(21, quick=quick))
        for what, floor, budget in size.budgets:
            yield at_most(
                f"{what} / {floor}, {size}",
                budget,
                samples.ratio(what, floor),
                note=f"{samples.note(what, floor, per='run')}; "
                f"{1 / samples.each(what):.0f} per second",
            )
        if "by public names" in size.cases():
            yield for_comparison(
                "a schedule by public names only / trio.run",
                samples.ratio("by public names", "trio.run"),
                note=samples.note("by public names", "trio.run", per="run"),
            )
    for name, fault in FAULTS.items():
        what = f"{name} found / simloom"
        if _peers.SIMLOOM_MISSING:
            yield not_installed(what)
            continue
        seeds = rounds_of(20, quick=quick)
        ours, our_schedules = searched(partial(find, fault), seeds)
        theirs, their_schedules = searched(partial(simloom, fault), seeds)
        yield for_comparison(
            what,
            Measured.exactly(ours / theirs),
            note=f"{in_words(ours)} against {in_words(theirs)}, "
            f"{our_schedules:.0f} against {their_schedules:.0f} schedules",
        )


# The cost of control -----------------------------------------------------------------------------


@attrs.frozen
class Size:
    """Programs of so many tasks, with so many steps each."""

    tasks: int
    steps: int
    budgets: tuple[tuple[str, str, float], ...]
    """What is measured, against what, and how much it may cost."""

    def __str__(self) -> str:
        return f"{self.tasks} of {self.steps} steps"

    async def in_trio(self) -> None:
        """Have the tasks make their steps."""

        async def work() -> None:
            for _ in range(self.steps - 1):
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for _ in range(self.tasks):
                nursery.start_soon(work)

    async def in_asyncio(self) -> None:
        """Do the same in asyncio."""

        async def work() -> None:
            for _ in range(self.steps - 1):
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for _ in range(self.tasks):
                group.create_task(work())

    def in_threads(self) -> None:
        """Do the same with threads: each stores an attribute at every step."""

        class Count:
            value = 0

        count, steps = Count(), self.steps

        def work() -> None:
            for number in range(steps):
                count.value = number

        threads = [threading.Thread(target=work) for _ in range(self.tasks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def cases(self) -> dict[str, Bench]:
        """Return what is measured, by name."""
        cases = {
            "trio.run": timed(
                lambda: trio.run(self.in_trio, clock=MockClock(autojump_threshold=0))
            ),
            "a schedule": controlled(HookBackend(), self.in_trio),
            "asyncio.run": timed(lambda: asyncio.run(self.in_asyncio())),
            "a schedule in asyncio": controlled(AsyncioBackend(), self.in_asyncio),
            "threads": timed(self.in_threads),
            "a schedule of threads": controlled(ThreadBackend(), self.in_threads),
        }
        if self.tasks < 10:
            cases["by public names"] = controlled(TrampolineBackend(), self.in_trio)
        return cases


def timed(once: Callable[[], object]) -> Bench:
    def bench(count: int) -> float:
        began = time.process_time()
        for _ in range(count):
            once()
        return time.process_time() - began

    return bench


def controlled(backend: Backend, program: Callable[[], Any]) -> Bench:
    """Return the bench of a schedule with a few switches."""
    choices = Schedule(((5, 1), (9, 2))).choices()
    bench = timed(lambda: run_controlled(program, Planned(choices), backend=backend))

    def in_a_search(count: int) -> float:
        with adopting(program):
            return bench(count)

    return in_a_search


SIZES = (
    Size(
        4,
        10,
        (
            ("a schedule", "trio.run", 2.5),
            ("a schedule in asyncio", "asyncio.run", 2.5),
            ("a schedule of threads", "threads", 4.5),
        ),
    ),
    Size(
        100,
        100,
        (
            ("a schedule", "trio.run", 5.0),
            ("a schedule in asyncio", "asyncio.run", 5.0),
            ("a schedule of threads", "threads", 5.5),
        ),
    ),
)


# The search --------------------------------------------------------------------------------------


class LostUpdate:
    """Two tasks read a number, wait, and write it back one larger."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.count = 0
        self.tasks: Tasks = [self.increase, self.increase]

    async def increase(self) -> None:
        await some(self.checkpoint, 6)
        read = self.count
        await self.checkpoint()
        self.count = read + 1
        await some(self.checkpoint, 4)

    def check(self) -> None:
        assert self.count == 2


class TornRead:
    """One writes two values that belong together; another, far behind, reads them separately."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.first = self.second = 0
        self.seen = (0, 0)
        self.tasks: Tasks = [self.write, self.read, self.idle, self.idle]

    async def write(self) -> None:
        await some(self.checkpoint, 8)
        self.first = 1
        await some(self.checkpoint, 4)
        self.second = 1
        await some(self.checkpoint, 8)

    async def read(self) -> None:
        await some(self.checkpoint, 28)
        first = self.first
        await some(self.checkpoint, 5)
        self.seen = (first, self.second)

    async def idle(self) -> None:
        await some(self.checkpoint, 15)

    def check(self) -> None:
        assert self.seen != (0, 1)


FAULTS: dict[str, type[LostUpdate | TornRead]] = {
    "lost update": LostUpdate,
    "torn read, far apart": TornRead,
}


async def some(checkpoint: Checkpoint, count: int) -> None:
    for _ in range(count):
        await checkpoint()


def find(fault: type[LostUpdate | TornRead], seed: int) -> int:
    """Search with ours; return how many schedules it took."""

    async def on_trio() -> None:
        faulty = fault(trio.lowlevel.checkpoint)
        async with trio.open_nursery() as nursery:
            for task in faulty.tasks:
                nursery.start_soon(task)
        faulty.check()

    found = find_schedule(on_trio, schedules=MOST_SCHEDULES, seed=seed, shrink=False)
    return found.schedules_run if isinstance(found, Found) else MOST_SCHEDULES


def simloom(fault: type[LostUpdate | TornRead], seed: int) -> int:
    """Search with simloom; return how many schedules it took."""

    async def on_asyncio() -> None:
        faulty = fault(lambda: asyncio.sleep(0))
        async with asyncio.TaskGroup() as group:
            for task in faulty.tasks:
                group.create_task(task())
        faulty.check()

    return _peers.simloom_schedules_until_failure(on_asyncio, MOST_SCHEDULES, seed)


MOST_SCHEDULES = 500


def searched(search: Callable[[int], int], seeds: int) -> tuple[float, float]:
    """Return the mean CPU seconds of a search, and the mean number of schedules."""
    began = time.process_time()
    schedules = sum(search(seed) for seed in range(seeds))
    return (time.process_time() - began) / seeds, schedules / seeds
