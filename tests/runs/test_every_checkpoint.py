"""Each public async function of `harness.runs`, cancelled at every one of its checkpoints."""

from __future__ import annotations

import gc
import weakref

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import RunEndedError, RunTimedOut
from tests.support.checkpoints import cancel_at_every_checkpoint


class Held:
    """What a run holds; none may be left alive."""


held = harness.RunLocal(Held, name="held")


class Watch:
    """The runs of one attempt and what they held."""

    def __init__(self) -> None:
        self.runs: list[harness.Run] = []
        self.held: list[weakref.ref[Held]] = []

    def __call__(self, run: harness.Run) -> None:
        self.runs.append(run)
        self.held.append(weakref.ref(held.get_in(run)))

    def check(self) -> None:
        """Raise unless every run has ended once and nothing of it is left."""
        if any(value() is not None for value in self.held):
            gc.collect()  # Only now: it takes longer than all the rest of an attempt.
        assert harness.current_run_or_none() is None
        assert {run.status for run in self.runs} <= {"ok", "failed", "timed_out", "cancelled"}
        assert all(run.ended_at is not None for run in self.runs)
        assert all(run.parent is None and not run.children for run in self.runs)
        assert [value() for value in self.held] == [None] * len(self.held)
        self.runs.clear()
        self.held.clear()


async def test_open_run(autojump_clock: MockClock) -> None:
    watch = Watch()

    async def use() -> None:
        async with harness.open_run("parent") as parent:
            watch(parent)
            await trio.sleep(1)
            async with harness.open_run("child", timeout=60) as child:
                watch(child)
                await trio.sleep(1)
            await trio.sleep(1)

    assert await cancel_at_every_checkpoint(use, watch.check) == 3


async def test_open_run_that_times_out(autojump_clock: MockClock) -> None:
    watch = Watch()

    async def use() -> None:
        try:
            async with harness.open_run("job", timeout=2) as run:
                watch(run)
                await trio.sleep(1)
                await trio.sleep_forever()
        except RunTimedOut:
            await trio.sleep(1)

    assert await cancel_at_every_checkpoint(use, watch.check) == 3


async def test_open_run_that_waits_for_its_tasks(autojump_clock: MockClock) -> None:
    watch = Watch()
    tasks_alive = 0

    async def work(seconds: float) -> None:
        nonlocal tasks_alive
        tasks_alive += 1
        try:
            await trio.sleep(seconds)
            await trio.sleep(seconds)
        finally:
            tasks_alive -= 1

    async def use() -> None:
        async with trio.open_nursery() as nursery:
            async with harness.open_run("job") as run:
                watch(run)
                harness.start_soon(nursery, work, 1, run=run)
                harness.start_soon(nursery, work, 2, run=run)
                await trio.sleep(1)
            assert tasks_alive == 0

    def check() -> None:
        assert tasks_alive == 0
        watch.check()

    assert await cancel_at_every_checkpoint(use, check) >= 5


async def test_open_run_with_tasks_in_a_nursery_that_is_not_cancelled(
    autojump_clock: MockClock,
) -> None:
    """The task's own nursery goes on: only the run's scope can reach it."""
    watch = Watch()
    tasks_alive = 0

    async def work() -> None:
        nonlocal tasks_alive
        tasks_alive += 1
        try:
            await trio.sleep(2)
        finally:
            tasks_alive -= 1

    async with trio.open_nursery() as outside:

        async def use() -> None:
            async with harness.open_run("job") as run:
                watch(run)
                harness.start_soon(outside, work, run=run)
                await trio.sleep(1)

        def check() -> None:
            assert tasks_alive == 0
            assert not outside.child_tasks
            assert not outside.cancel_scope.cancel_called
            watch.check()

        assert await cancel_at_every_checkpoint(use, check) >= 2


async def test_cleanup(autojump_clock: MockClock) -> None:
    watch = Watch()
    started = cleaned = 0

    async def use() -> None:
        nonlocal started, cleaned
        async with harness.open_run("job") as run:
            watch(run)
            started += 1
            try:
                await trio.sleep(1)
            finally:
                with harness.cleanup():
                    await trio.sleep(1)
                    await trio.sleep(1)
                    cleaned += 1

    def check() -> None:
        assert started == cleaned
        watch.check()

    await cancel_at_every_checkpoint(use, check)
    assert cleaned > 3


async def test_emit(autojump_clock: MockClock) -> None:
    """An event is in the buffer or it isn't; a producer that gave up holds no place in the line."""
    watch = Watch()
    read: list[object] = []
    sent: list[int] = []

    async def produce(run: harness.Run) -> None:
        for number in range(3):
            await run.emit(number)
            sent.append(number)

    async def use() -> None:
        read.clear()
        sent.clear()
        async with harness.open_run("job") as run:
            watch(run)
            async with run.subscribe(buffer=1) as subscription:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(produce, run)
                    for _ in range(3):
                        await trio.sleep(1)
                        read.append((await subscription.__anext__()).payload)

    def check() -> None:
        assert read == list(range(len(read)))
        # One more may be in the buffer, one more on its way; nothing is read that wasn't sent.
        assert len(sent) - 1 <= len(read) + 1
        watch.check()

    assert await cancel_at_every_checkpoint(use, check) >= 6


@pytest.mark.strays
async def test_subscribe(autojump_clock: MockClock) -> None:
    watch = Watch()

    async def read(run: harness.Run) -> None:
        try:
            async with run.subscribe(children=True) as subscription:
                async for _ in subscription:
                    await trio.sleep(0.5)
        except RunEndedError:
            pass  # The run was over before this task came to its first step.

    async def use() -> None:
        async with trio.open_nursery() as nursery:
            async with harness.open_run("job") as run:
                watch(run)
                nursery.start_soon(read, run)
                for number in range(3):
                    await trio.sleep(1)
                    await run.emit(number)

    assert await cancel_at_every_checkpoint(use, watch.check) >= 6


@pytest.mark.parametrize("fails", [True, False])
async def test_start_soon_from_inside_tasks(fails: bool, autojump_clock: MockClock) -> None:
    watch = Watch()

    async def grow(levels: int, nursery: trio.Nursery) -> None:
        async with harness.open_run(f"level-{levels}") as run:
            watch(run)
            if levels:
                harness.start_soon(nursery, grow, levels - 1, nursery, run=run)
            await trio.sleep(1)
            if fails and levels == 1:
                raise KeyError("on purpose")

    async def use() -> None:
        try:
            async with trio.open_nursery() as nursery:
                await grow(3, nursery)
        except* KeyError:
            pass

    assert await cancel_at_every_checkpoint(use, watch.check) >= 4
