"""Events: what a run emits reaches the subscribers of the run and of its ancestors, in order."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, assert_no_checkpoints, wait_all_tasks_blocked

import harness
from tests.support.ways_out import WAYS_OUT, Boom, leave


def payloads(events: list[harness.Event]) -> list[Any]:
    return [event.payload for event in events]


async def read_all(subscription: harness.runs.Subscription, into: list[harness.Event]) -> None:
    async for event in subscription:
        into.append(event)


# What an event says ----------------------------------------------------------------------------


async def test_an_event_says_where_and_when_it_came_from(autojump_clock: MockClock) -> None:
    await trio.sleep(7)
    async with harness.open_run("nightly") as parent:
        async with parent.subscribe(children=True) as subscription:
            async with harness.open_run("ticket-17") as child:
                payload = object()
                child.emit_nowait(payload)
            event = await subscription.__anext__()
    assert event.payload is payload
    assert event.run_id == child.id
    assert event.parent_id == parent.id
    assert event.path == "nightly/ticket-17"
    assert event.time == 7


async def test_an_event_of_a_run_without_a_parent() -> None:
    async with harness.open_run("job") as run:
        async with run.subscribe() as subscription:
            run.emit_nowait("hello")
            event = await subscription.__anext__()
    assert event.parent_id is None
    assert (event.run_id, event.path) == (run.id, "job")


async def test_an_event_is_a_frozen_value() -> None:
    async with harness.open_run("job") as run:
        async with run.subscribe() as subscription:
            run.emit_nowait("hello")
            event = await subscription.__anext__()
    assert isinstance(event, harness.Event)
    with pytest.raises(AttributeError):
        event.payload = "changed"  # type: ignore[misc]


async def test_the_origin_stays_over_three_levels(autojump_clock: MockClock) -> None:
    """Forwarded events used to carry the identity of the parent that forwarded them."""
    async with harness.open_run("a") as run_a:
        async with run_a.subscribe(children=True) as subscription:
            async with harness.open_run("b") as run_b:
                async with harness.open_run("c") as run_c:
                    for run in (run_a, run_b, run_c):
                        run.emit_nowait(run.name)
            events = [await subscription.__anext__() for _ in range(3)]
    assert [event.run_id for event in events] == [run_a.id, run_b.id, run_c.id]
    assert [event.parent_id for event in events] == [None, run_a.id, run_b.id]
    assert [event.path for event in events] == ["a", "a/b", "a/b/c"]
    assert [event.depth - events[0].depth for event in events] == [0, 1, 2]
    assert payloads(events) == ["a", "b", "c"]


async def test_the_sequence_counts_per_run() -> None:
    async with harness.open_run("parent") as parent:
        async with parent.subscribe(children=True) as subscription:
            async with harness.open_run("child") as child:
                for _ in range(3):
                    parent.emit_nowait("p")
                    child.emit_nowait("c")
            events = [await subscription.__anext__() for _ in range(6)]
    for run in (parent, child):
        numbers = [event.sequence for event in events if event.run_id == run.id]
        assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]


async def test_a_dropped_event_leaves_a_gap_in_the_sequence() -> None:
    async with harness.open_run("job") as run:
        async with run.subscribe(buffer=10) as large, run.subscribe(buffer=2) as small:
            for number in range(4):
                run.emit_nowait(number)
            seen_by_large = [await large.__anext__() for _ in range(4)]
            seen_by_small = [await small.__anext__() for _ in range(2)]
            run.emit_nowait(4)
            seen_by_small.append(await small.__anext__())
            seen_by_large.append(await large.__anext__())
    sequence = {event.payload: event.sequence for event in seen_by_large}
    assert {event.payload: event.sequence for event in seen_by_small} == {
        payload: sequence[payload] for payload in (0, 1, 4)
    }
    assert sequence[4] - sequence[1] == 3


# Who gets it -----------------------------------------------------------------------------------


async def test_without_children_only_the_runs_own_events_come() -> None:
    async with harness.open_run("parent") as parent:
        async with parent.subscribe() as subscription:
            async with harness.open_run("child") as child:
                child.emit_nowait("child's")
            parent.emit_nowait("parent's")
            assert (await subscription.__anext__()).payload == "parent's"
            assert subscription.dropped == 0


async def test_every_subscriber_gets_every_event() -> None:
    async with harness.open_run("job") as run:
        async with run.subscribe() as first, run.subscribe() as second:
            run.emit_nowait("hello")
            assert (await first.__anext__()) == (await second.__anext__())


async def test_siblings_events_are_not_mixed_up(autojump_clock: MockClock) -> None:
    read: dict[int, list[Any]] = {}

    async def agent(number: int) -> None:
        async with harness.open_run(f"agent-{number}") as run:
            async with run.subscribe(children=True) as subscription:
                async with harness.open_run("tool") as tool:
                    for turn in range(3):
                        await trio.sleep(1)
                        tool.emit_nowait((number, turn))
                read[number] = [(await subscription.__anext__()).payload for _ in range(3)]

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(agent, number)
    assert read == {number: [(number, turn) for turn in range(3)] for number in range(50)}


async def test_a_new_subscriber_gets_what_comes_from_now_on() -> None:
    async with harness.open_run("job") as run:
        run.emit_nowait("before")
        async with run.subscribe() as subscription:
            run.emit_nowait("after")
            assert (await subscription.__anext__()).payload == "after"


async def test_emitting_for_another_run_than_the_own_is_that_runs_event() -> None:
    async with harness.open_run("a") as run_a:
        async with run_a.subscribe() as subscription:
            async with harness.open_run("b", private=True):
                run_a.emit_nowait("from b's code")
            assert (await subscription.__anext__()).run_id == run_a.id


async def test_events_of_parallel_children_keep_their_order_and_come_before_the_parents_end(
    autojump_clock: MockClock,
) -> None:
    read: list[harness.Event] = []

    async def child(number: int) -> None:
        async with harness.open_run(f"child-{number}") as run:
            for turn in range(20):
                if (number + turn) % 3:
                    await trio.sleep(1)
                run.emit_nowait(turn)

    async def reader(
        run: harness.Run, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with run.subscribe(children=True) as subscription:
            task_status.started()
            await read_all(subscription, read)

    async with trio.open_nursery() as readers:
        async with harness.open_run("parent") as parent:
            await readers.start(reader, parent)
            async with trio.open_nursery() as nursery:
                for number in range(3):
                    nursery.start_soon(child, number)
    assert len(read) == 60
    for number in range(3):
        assert payloads([e for e in read if e.path == f"parent/child-{number}"]) == list(range(20))


async def test_a_private_run_forwards_nothing(autojump_clock: MockClock) -> None:
    """A tool that runs an unrelated agent must not put its tokens into the parent's stream."""
    async with harness.open_run("parent") as parent:
        async with parent.subscribe(children=True) as outside:
            async with harness.open_run("private", private=True) as private:
                async with private.subscribe(children=True) as inside:
                    private.emit_nowait("secret")
                    async with harness.open_run("grandchild") as grandchild:
                        grandchild.emit_nowait("secret too")
                    assert (await inside.__anext__()).payload == "secret"
                    assert (await inside.__anext__()).payload == "secret too"
            parent.emit_nowait("public")
            assert (await outside.__anext__()).payload == "public"


# Buffers ---------------------------------------------------------------------------------------


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


# The end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS_OUT)
async def test_iteration_ends_with_the_run_after_what_is_still_buffered(
    way: str, autojump_clock: MockClock
) -> None:
    read: list[harness.Event] = []
    ended: list[float] = []

    async def reader(
        run: harness.Run, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with run.subscribe() as subscription:
            task_status.started()
            await trio.sleep(50)
            await read_all(subscription, read)
        ended.append(trio.current_time())

    async def emit_three(run: harness.Run) -> None:
        await nursery.start(reader, run)
        for number in range(3):
            run.emit_nowait(number)

    async with trio.open_nursery() as nursery:
        await leave(way, emit_three)
    assert payloads(read) == [0, 1, 2]
    assert ended == [50]


async def test_a_waiting_reader_is_woken_by_the_end(autojump_clock: MockClock) -> None:
    read: list[harness.Event] = []

    async def reader(run: harness.Run) -> None:
        async with run.subscribe(children=True) as subscription:
            await read_all(subscription, read)
            assert trio.current_time() == 5
            with pytest.raises(StopAsyncIteration):
                await subscription.__anext__()

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            nursery.start_soon(reader, run)
            await trio.sleep(5)
    assert read == []


async def test_a_subscription_with_children_ends_with_its_own_run() -> None:
    async with harness.open_run("parent") as parent:
        async with parent.subscribe(children=True) as subscription:
            async with harness.open_run("child") as child:
                child.emit_nowait("one")
            parent.emit_nowait("two")
            assert (await subscription.__anext__()).payload == "one"
            assert (await subscription.__anext__()).payload == "two"


async def test_closing_the_subscription_frees_producers(autojump_clock: MockClock) -> None:
    freed: list[float] = []

    async def produce(run: harness.Run, payload: str) -> None:
        await run.emit(payload)
        freed.append(trio.current_time())

    async with harness.open_run("job") as run:
        async with trio.open_nursery() as nursery:
            async with run.subscribe(buffer=1):
                run.emit_nowait("fills the buffer")
                nursery.start_soon(produce, run, "a")
                nursery.start_soon(produce, run, "b")
                await trio.sleep(5)
                assert freed == []
    assert freed == [5, 5]


async def test_leaving_a_subscription_by_an_error_frees_producers(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("job") as run:
        async with trio.open_nursery() as nursery:
            with pytest.raises(Boom):
                async with run.subscribe(buffer=1):
                    run.emit_nowait("fills the buffer")
                    nursery.start_soon(run.emit, "waits")
                    await trio.sleep(5)
                    raise Boom
    assert run.status == "ok"


async def test_cancelling_the_run_frees_producers(autojump_clock: MockClock) -> None:
    async def never_reads(run: harness.Run) -> None:
        async with run.subscribe(buffer=1):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            nursery.start_soon(never_reads, run)
            await wait_all_tasks_blocked()
            run.emit_nowait("fills the buffer")
            async with trio.open_nursery() as producers:
                producers.start_soon(run.emit, "waits")
                producers.start_soon(run.emit, "waits")
                await trio.sleep(5)
                run.cancel()
        assert (run.status, run.ended_at) == ("cancelled", 5)
        nursery.cancel_scope.cancel()


async def test_a_producer_outside_of_the_run_is_freed_by_the_runs_end(
    autojump_clock: MockClock,
) -> None:
    """It waits for room in a buffer that nothing will ever go into again."""
    outcome: list[str] = []

    async def never_reads(run: harness.Run) -> None:
        async with run.subscribe(buffer=1):
            await trio.sleep_forever()

    async def produce(run: harness.Run) -> None:
        try:
            await run.emit("waits")
        except harness.errors.RunEndedError:
            outcome.append("refused")
        else:
            outcome.append("accepted")

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            nursery.start_soon(never_reads, run)
            await wait_all_tasks_blocked()
            run.emit_nowait("fills the buffer")
            nursery.start_soon(produce, run)
            await trio.sleep(5)
        with trio.fail_after(5):
            while not outcome:
                await trio.sleep(1)
        nursery.cancel_scope.cancel()


async def test_a_cancelled_emit_leaves_no_place_in_the_line(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        async with run.subscribe(buffer=1) as subscription:
            run.emit_nowait("first")
            with trio.move_on_after(1):
                await run.emit("given up")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run.emit, "third")
                await wait_all_tasks_blocked()
                assert (await subscription.__anext__()).payload == "first"
                await wait_all_tasks_blocked()
                assert (await subscription.__anext__()).payload == "third"


# Reading ---------------------------------------------------------------------------------------


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
