"""A run belongs to the ``trio.run`` it was opened in; from another one it can't be used by mistake.

``trio.to_thread.run_sync(trio.run, main)`` carries the context, and so the run, into a second event
loop in another thread. Waking a task or moving a deadline of one loop from the other corrupts both.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import harness
from tests.scale import PATIENCE_SECONDS

"""A thread of these tests needs milliseconds; what takes this long is a hang."""


async def in_another_trio(inner: Callable[[], Awaitable[Any]]) -> Any:
    return await trio.to_thread.run_sync(trio.run, inner)


async def test_emit_of_the_outer_run_is_refused() -> None:
    """The waiting reader was rescheduled by the other loop, in the other thread."""
    heard: list[Any] = []

    async def read(events: harness.runs.Subscription) -> None:
        async for event in events:
            heard.append((event.payload, threading.get_ident()))

    async def emits() -> None:
        with pytest.raises(RuntimeError, match=r"run 'outer' lives in another trio\.run"):
            await harness.current_run().emit("hello")

    async with trio.open_nursery() as nursery:
        async with harness.open_run("outer") as run:
            async with run.subscribe() as events:
                harness.start_soon(nursery, read, events, run=None)
                await wait_all_tasks_blocked()
                await in_another_trio(emits)
                await run.emit("from home")
                await wait_all_tasks_blocked()
    assert heard == [("from home", threading.get_ident())]


async def test_a_subscription_to_the_outer_run_is_refused() -> None:
    async def listens() -> None:
        with pytest.raises(RuntimeError, match=r"run 'outer' lives in another trio\.run"):
            async with harness.current_run().subscribe():
                pytest.fail("the block was entered")

    async with harness.open_run("outer") as run:
        await in_another_trio(listens)
        await run.emit("nobody listens")


async def test_a_task_for_the_outer_run_is_refused() -> None:
    async def starts() -> None:
        async with trio.open_nursery() as nursery:
            with pytest.raises(RuntimeError, match=r"run 'outer' lives in another trio\.run"):
                harness.start_soon(nursery, trio.sleep_forever, run=harness.current_run())
            assert not nursery.child_tasks

    with trio.fail_after(PATIENCE_SECONDS):
        async with harness.open_run("outer"):
            await in_another_trio(starts)


async def test_a_run_opened_there_is_a_root_of_its_own() -> None:
    async def opens() -> None:
        async with harness.open_run("inner") as inner:
            assert inner.parent is None
            assert inner.path == "inner"
            async with inner.subscribe() as events:
                await inner.emit("hello")
                assert (await anext(events)).payload == "hello"

    async with harness.open_run("outer") as outer:
        await in_another_trio(opens)
        assert outer.children == ()


async def test_a_cleanup_there_is_not_told_of_the_outer_runs_cancel() -> None:
    """Its scope belongs to the other loop, and the cancel's moment to another clock."""
    entered, cancelled = threading.Event(), threading.Event()
    deadlines: list[float] = []

    async def cleans_up() -> None:
        with harness.cleanup(max_seconds=1) as scope:
            entered.set()
            assert cancelled.wait(PATIENCE_SECONDS)
            deadlines.append(scope.deadline)
        with harness.cleanup(max_seconds=1) as scope:
            deadlines.append(scope.deadline)
            await trio.lowlevel.checkpoint()

    async def cancel(run: harness.Run) -> None:
        assert await trio.to_thread.run_sync(entered.wait, PATIENCE_SECONDS)
        run.cancel("enough")
        cancelled.set()

    async with trio.open_nursery() as nursery:
        async with harness.open_run("outer") as run:
            harness.start_soon(nursery, cancel, run, run=None)
            await in_another_trio(cleans_up)
            await trio.lowlevel.checkpoint()
            pytest.fail("the cancel reaches the outer run itself")
    assert run.status == "cancelled"
    assert deadlines == [math.inf, math.inf]
