"""Reading a subscription: breaking out, being cancelled, and letting others run."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness


@pytest.mark.slow
async def test_breaking_out_at_the_first_event_leaves_nothing_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A streaming generator would be finalised later, in another context, with a log."""
    with caplog.at_level(logging.DEBUG):
        async with harness.open_run("first") as run:
            async with run.subscribe() as subscription:
                for number in range(10):
                    run.emit_nowait(number)
                async for event in subscription:
                    assert event.payload == 0
                    break
            del subscription, event
            gc.collect()
            run.emit_nowait("nobody listens")
        gc.collect()
    async with harness.open_run("second") as run:
        async with run.subscribe() as subscription:
            run.emit_nowait("clean")
            assert (await subscription.__anext__()).payload == "clean"
    assert caplog.records == []


@pytest.mark.slow
async def test_a_subscription_that_is_dropped_unopened_costs_nothing(
    recwarn: pytest.WarningsRecorder,
) -> None:
    async with harness.open_run("job") as run:
        run.subscribe()
        gc.collect()
        with trio.fail_after(5):
            for _ in range(1_000):
                await run.emit("nobody listens")
    assert not recwarn.list


async def test_reading_ready_events_lets_others_run_at_least_once_in_64() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with harness.open_run("job") as run:
        async with run.subscribe(buffer=640) as subscription:
            for number in range(640):
                run.emit_nowait(number)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(count_turns)
                for _ in range(640):
                    await subscription.__anext__()
                nursery.cancel_scope.cancel()
    assert turns >= 640 // 64 - 2, "but for the turns in which the counter starts and ends"


async def test_a_reader_that_is_always_served_can_still_be_cancelled() -> None:
    """`while True: await anext()` on a full buffer must meet a cancel within 64 events."""
    read = 0
    async with harness.open_run("job") as run:
        async with run.subscribe(buffer=640) as subscription:
            for number in range(640):
                run.emit_nowait(number)
            with trio.CancelScope() as scope:
                scope.cancel()
                while True:
                    await subscription.__anext__()
                    read += 1
    assert scope.cancelled_caught
    assert read <= 64


async def test_a_cancelled_read_loses_no_event(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        async with run.subscribe() as subscription:
            with trio.move_on_after(1):
                await subscription.__anext__()
            run.emit_nowait("kept")
            assert (await subscription.__anext__()).payload == "kept"


async def test_a_read_that_is_cancelled_as_the_event_comes_loses_no_event(
    autojump_clock: MockClock,
) -> None:
    read: list[Any] = []
    async with harness.open_run("job") as run:
        async with run.subscribe() as subscription:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def reader() -> None:
                        read.append((await subscription.__anext__()).payload)

                    nursery.start_soon(reader)
                    await wait_all_tasks_blocked()
                    run.emit_nowait("one")
                    scope.cancel()
            run.emit_nowait("two")
            while "two" not in read:
                read.append((await subscription.__anext__()).payload)
    assert read == ["one", "two"]


async def test_reading_a_subscription_without_its_block_is_refused(
    autojump_clock: MockClock,
) -> None:
    """It listens only inside its block, and the reader waited forever."""
    async with harness.open_run("job") as run:
        run.emit_nowait("unheard")
        with trio.fail_after(60), pytest.raises(RuntimeError, match="async with"):
            async for _ in run.subscribe():
                pytest.fail("there is an event")


async def test_the_block_of_a_subscription_can_be_entered_once() -> None:
    """Entered twice it heard every event twice, and after the first exit it was half closed."""
    async with harness.open_run("job") as run:
        subscription = run.subscribe()
        async with subscription:
            with pytest.raises(RuntimeError, match="already entered"):
                await subscription.__aenter__()
            run.emit_nowait("once")
            assert (await anext(subscription)).payload == "once"
            run.emit_nowait("twice")
            assert (await anext(subscription)).payload == "twice"
        with pytest.raises(RuntimeError, match="already entered"):
            async with subscription:
                pytest.fail("the block was entered")
