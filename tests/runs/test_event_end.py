"""The end of a run ends its subscriptions and frees whoever waits for room in them."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from tests.support.events import payloads, read_all
from tests.support.ways_out import WAYS_OUT, Boom, leave


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.strays
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


@pytest.mark.strays
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


@pytest.mark.strays
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


@pytest.mark.strays
async def test_a_producer_outside_of_the_run_is_freed_by_the_runs_end(
    autojump_clock: MockClock,
) -> None:
    """It waits for room in a buffer that nothing will ever go into again."""
    outcome: list[str] = []
    freed = trio.Event()

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
        freed.set()

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            nursery.start_soon(never_reads, run)
            await wait_all_tasks_blocked()
            run.emit_nowait("fills the buffer")
            nursery.start_soon(produce, run)
            await trio.sleep(5)
        with trio.fail_after(5):
            await freed.wait()
        nursery.cancel_scope.cancel()
    assert len(outcome) == 1


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
