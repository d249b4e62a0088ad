"""The buffer of a subscription: `emit` waits for room, `emit_nowait` drops and counts."""

from __future__ import annotations

import pytest
import trio
from trio.testing import (
    MockClock,
    assert_checkpoints,
    assert_no_checkpoints,
    wait_all_tasks_blocked,
)

import harness
from tests.support.events import payloads


async def test_a_full_buffer_drops_the_new_event_and_counts() -> None:
    async with harness.open_run("job") as run:
        async with run.subscribe(buffer=3) as subscription:
            with assert_no_checkpoints():
                for number in range(5):
                    run.emit_nowait(number)
            assert subscription.dropped == 2
            assert [(await subscription.__anext__()).payload for _ in range(3)] == [0, 1, 2]
            run.emit_nowait(5)
            assert (await subscription.__anext__()).payload == 5
            assert subscription.dropped == 2


async def test_one_full_buffer_costs_the_other_subscribers_nothing() -> None:
    async with harness.open_run("job") as run:
        async with run.subscribe(buffer=1) as small, run.subscribe(buffer=5) as large:
            for number in range(5):
                run.emit_nowait(number)
            assert (small.dropped, large.dropped) == (4, 0)
            assert [(await large.__anext__()).payload for _ in range(5)] == [0, 1, 2, 3, 4]


async def test_by_default_256_events_fit() -> None:
    async with harness.open_run("job") as run:
        async with run.subscribe() as subscription:
            for number in range(256):
                run.emit_nowait(number)
            assert subscription.dropped == 0
            run.emit_nowait(256)
            assert subscription.dropped == 1


async def test_emit_always_checkpoints() -> None:
    async with harness.open_run("job") as run:
        with assert_checkpoints():
            await run.emit("nobody listens")
        async with run.subscribe():
            with assert_checkpoints():
                await run.emit("somebody listens")


async def test_emit_waits_for_room(autojump_clock: MockClock) -> None:
    sent: list[float] = []

    async def produce(run: harness.Run) -> None:
        for number in range(4):
            await run.emit(number)
            sent.append(trio.current_time())

    async with harness.open_run("job") as run:
        async with run.subscribe(buffer=1) as subscription:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce, run)
                read = []
                for _ in range(4):
                    await trio.sleep(10)
                    read.append((await subscription.__anext__()).payload)
    assert read == [0, 1, 2, 3]
    assert sent == [0, 10, 20, 30]
    assert subscription.dropped == 0


async def test_emit_waits_for_the_slowest_subscriber(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        async with run.subscribe(buffer=1) as slow, run.subscribe(buffer=100) as fast:
            await run.emit(0)
            with trio.move_on_after(5) as patience:
                await run.emit(1)
            assert patience.cancelled_caught
            assert (await slow.__anext__()).payload == 0
            assert (await fast.__anext__()).payload == 0


async def test_emit_waits_for_the_subscribers_of_ancestors_too(autojump_clock: MockClock) -> None:
    async with harness.open_run("parent") as parent:
        async with parent.subscribe(buffer=1, children=True) as subscription:
            async with harness.open_run("child") as child:
                await child.emit(0)
                with trio.move_on_after(5) as patience:
                    await child.emit(1)
                assert patience.cancelled_caught
                assert (await subscription.__anext__()).payload == 0


async def test_waiting_producers_are_served_in_their_order(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        async with run.subscribe(buffer=1) as subscription:
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(run.emit, number)
                    await wait_all_tasks_blocked()
                read = [(await subscription.__anext__()).payload for _ in range(5)]
    assert read == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("buffer", [1, 256])
@pytest.mark.strays
async def test_the_end_is_never_lost_with_a_slow_reader(
    buffer: int, autojump_clock: MockClock
) -> None:
    """An end marker that was put into the full queue got dropped, and the reader hung."""
    read: list[harness.Event] = []

    async def slow_reader(subscription: harness.runs.Subscription) -> None:
        async with subscription:
            async for event in subscription:
                read.append(event)
                if len(read) % 100 == 0:
                    await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            subscription = run.subscribe(buffer=buffer)
            nursery.start_soon(slow_reader, subscription)
            await wait_all_tasks_blocked()
            for number in range(10_000):
                run.emit_nowait(number)
    assert len(read) + subscription.dropped == 10_000
    assert payloads(read) == list(range(buffer))


@pytest.mark.strays
async def test_with_backpressure_nothing_is_lost(autojump_clock: MockClock) -> None:
    read: list[harness.Event] = []

    async def slow_reader(subscription: harness.runs.Subscription) -> None:
        async with subscription:
            async for event in subscription:
                read.append(event)
                if len(read) % 1_000 == 0:
                    await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            subscription = run.subscribe(buffer=1)
            nursery.start_soon(slow_reader, subscription)
            await wait_all_tasks_blocked()
            for number in range(10_000):
                await run.emit(number)
    assert payloads(read) == list(range(10_000))
    assert subscription.dropped == 0
