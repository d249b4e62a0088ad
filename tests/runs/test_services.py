"""A shared service that some run happens to start belongs to no run; each job to its submitter."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.errors import RunTimedOut
from harness.runs import StrayTasks

Job = Callable[[], Awaitable[None]]


class Notes:
    """The state of a run that can be watched."""


notes = harness.RunLocal(Notes, name="notes")


class LazyPool:
    """A worker that starts with the first job, as connection pools and batchers do."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.started = False
        self.worker_saw: list[harness.Run | None] = []
        self.send, self.receive = trio.open_memory_channel[tuple[harness.Run, Job]](10)

    async def submit(self, job: Job) -> None:
        if not self.started:
            self.started = True
            harness.start_soon(self.nursery, self._work, run=None)
        await self.send.send((harness.current_run(), job))

    async def _work(self) -> None:
        async for run, job in self.receive:
            self.worker_saw.append(harness.current_run_or_none())
            if run.status == "running":
                harness.start_soon(self.nursery, job, run=run)
            del run, job


@pytest.mark.slow
async def test_each_job_sees_its_submitter_and_the_worker_sees_no_run(
    autojump_clock: MockClock,
) -> None:
    seen: dict[str, str] = {}
    state: dict[str, weakref.ref[Notes]] = {}

    async def customer(name: str, start_seconds: float) -> None:
        async def job() -> None:
            seen[name] = harness.current_run().path
            assert id(notes.get()) == mine

        await trio.sleep(start_seconds)
        async with harness.open_run(name):
            mine = id(notes.get())
            state[name] = weakref.ref(notes.get())
            await pool.submit(job)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        pool = LazyPool(nursery)
        async with trio.open_nursery() as customers:
            for number in range(3):
                customers.start_soon(customer, f"customer-{number}", number * 5)
            await trio.sleep(3)
            gc.collect()
            assert state["customer-0"]() is None, "the run that started the worker is freed"
        assert pool.worker_saw == [None, None, None]
        nursery.cancel_scope.cancel()
    assert seen == {f"customer-{number}": f"customer-{number}" for number in range(3)}


async def test_the_worker_outlives_the_run_that_started_it(autojump_clock: MockClock) -> None:
    done: list[str] = []

    async def job() -> None:
        done.append(harness.current_run().name)

    async with trio.open_nursery() as nursery:
        pool = LazyPool(nursery)
        async with harness.open_run("first") as first:
            await pool.submit(job)
            await wait_all_tasks_blocked()
            first.cancel()
            await trio.sleep_forever()
        async with harness.open_run("second"):
            await pool.submit(job)
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert done == ["first", "second"]


async def test_a_job_has_its_submitters_deadline_and_cancellation(
    autojump_clock: MockClock,
) -> None:
    ended: dict[str, float] = {}

    async def job() -> None:
        name = harness.current_run().name
        try:
            await trio.sleep_forever()
        finally:
            ended[name] = trio.current_time()

    async with trio.open_nursery() as nursery:
        pool = LazyPool(nursery)
        async with harness.open_run("cancelled") as cancelled:
            await pool.submit(job)
            async with trio.open_nursery() as customers:

                async def impatient() -> None:
                    with pytest.raises(RunTimedOut):
                        async with harness.open_run("impatient", timeout=2):
                            await pool.submit(job)
                            await trio.sleep_forever()

                customers.start_soon(impatient)
            await trio.sleep(5)
            cancelled.cancel()
            await trio.sleep_forever()
        nursery.cancel_scope.cancel()
    assert ended == {"impatient": 2, "cancelled": 7}


async def test_a_pool_built_like_this_has_no_strays(autojump_clock: MockClock) -> None:
    async def job() -> None:
        await trio.sleep(1)

    instrument = StrayTasks()
    trio.lowlevel.add_instrument(instrument)
    try:
        async with trio.open_nursery() as nursery:
            pool = LazyPool(nursery)
            for number in range(3):
                async with harness.open_run(f"customer-{number}"):
                    await pool.submit(job)
                    await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    finally:
        trio.lowlevel.remove_instrument(instrument)
    assert instrument.strays == []


async def test_ten_runs_share_one_slow_connection(autojump_clock: MockClock) -> None:
    """It has an owner of its own; with the first caller's context only that one was served."""
    answers: dict[int, str] = {}
    ask, asked = trio.open_memory_channel[tuple[int, trio.MemorySendChannel[str]]](0)

    async def connection() -> None:
        async for number, reply_to in asked:
            assert harness.current_run_or_none() is None
            await trio.sleep(1)
            reply_to.send_nowait(f"answer {number}")

    async def customer(number: int) -> None:
        async with harness.open_run(f"customer-{number}"):
            reply_to, reply = trio.open_memory_channel[str](1)
            await ask.send((number, reply_to))
            answers[number] = await reply.receive()

    async with trio.open_nursery() as services:
        async with harness.open_run("starter"):
            harness.start_soon(services, connection, run=None)
        async with trio.open_nursery() as customers:
            for number in range(10):
                customers.start_soon(customer, number)
        services.cancel_scope.cancel()
    assert answers == {number: f"answer {number}" for number in range(10)}
    assert trio.current_time() == 10
