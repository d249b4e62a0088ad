"""Events: what a run emits reaches the subscribers of the run and of its ancestors, in order."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from tests.support.events import payloads, read_all

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


@pytest.mark.strays
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
