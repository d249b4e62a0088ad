"""When a run's block is left, what it held in memory can be freed, whoever kept its context."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from tests.support.ways_out import WAYS_OUT, Boom, leave


class Heavy:
    """Something that a run holds; it can be watched."""


heavy = harness.RunLocal(Heavy, name="heavy")


def fill(run: harness.Run) -> dict[str, weakref.ref[Heavy]]:
    """Put something into every place a run has for its user; return how to watch it."""
    message, payload = Heavy(), Heavy()
    run.inbox.put(message)
    run.inbox.take_all()
    run.emit_nowait(payload)
    return {
        "local": weakref.ref(heavy.get_in(run)),
        "deps": weakref.ref(run.deps),
        "message": weakref.ref(message),
        "payload": weakref.ref(payload),
    }


def alive(watched: dict[str, weakref.ref[Heavy]]) -> list[str]:
    if any(reference() is not None for reference in watched.values()):
        gc.collect()
    return [name for name, reference in watched.items() if reference() is not None]


@pytest.mark.parametrize("way", WAYS_OUT)
async def test_an_ended_runs_handle_holds_nothing(way: str, autojump_clock: MockClock) -> None:
    watched: dict[str, weakref.ref[Heavy]] = {}

    async def inside(run: harness.Run) -> None:
        watched["local"] = weakref.ref(heavy.get())
        message = Heavy()
        run.inbox.put(message)
        run.inbox.take_all()
        watched["message"] = weakref.ref(message)
        async with run.subscribe() as subscription:
            payload = Heavy()
            run.emit_nowait(payload)
            watched["payload"] = weakref.ref(payload)
            del payload
            del subscription

    run = await leave(way, inside)
    assert alive(watched) == []
    assert run.status == WAYS_OUT[way]


async def test_deps_are_let_go() -> None:
    async with harness.open_run("job", deps=Heavy()) as run:
        watched = fill(run)
    assert alive(watched) == []
    assert run.status == "ok"


@pytest.mark.strays
async def test_a_context_copied_by_a_long_lived_task_pins_nothing(
    autojump_clock: MockClock,
) -> None:
    """A raw task started inside keeps the run's context for as long as it lives."""
    async with trio.open_nursery() as nursery:
        async with harness.open_run("job", deps=Heavy()) as run:
            nursery.start_soon(trio.sleep_forever)
            watched = fill(run)
            await wait_all_tasks_blocked()
        assert alive(watched) == []
        nursery.cancel_scope.cancel()


@pytest.mark.strays
async def test_a_copied_context_of_a_child_does_not_pin_the_parent(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        async with harness.open_run("parent", deps=Heavy()) as parent:
            watched = fill(parent)
            async with harness.open_run("child", deps=None):
                nursery.start_soon(trio.sleep_forever)
        assert alive(watched) == []
        nursery.cancel_scope.cancel()


async def test_a_long_lived_parent_does_not_pin_its_ended_children() -> None:
    async with harness.open_run("parent"):
        async with harness.open_run("child", deps=Heavy()) as child:
            watched = fill(child)
        assert alive(watched) == []


async def test_a_task_of_start_soon_is_forgotten_when_it_has_ended() -> None:
    async def work(argument: Heavy) -> None:
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            argument = Heavy()
            watched = {"argument": weakref.ref(argument)}
            harness.start_soon(nursery, work, argument, run=run)
            del argument
            await wait_all_tasks_blocked()
            assert alive(watched) == []


async def test_a_posted_callback_is_forgotten_when_it_was_called() -> None:
    async with harness.open_run("job"):
        argument = Heavy()
        watched = {"argument": weakref.ref(argument)}
        harness.run_sync_soon(id, argument)
        del argument
        await wait_all_tasks_blocked()
        assert alive(watched) == []


async def test_an_observer_is_let_go_with_its_block() -> None:
    class Sink(Heavy):
        def __call__(self, event: harness.Event) -> None:
            pass

    sink = Sink()
    watched = {"sink": weakref.ref[Heavy](sink)}
    with harness.observing(sink):
        async with harness.open_run("job") as run:
            run.emit_nowait("hello")
    del sink
    assert alive(watched) == []
    assert run.status == "ok"


async def test_a_closed_subscription_is_let_go_while_the_run_goes_on() -> None:
    async with harness.open_run("job") as run:
        async with run.subscribe() as subscription:
            payload = Heavy()
            watched = {"payload": weakref.ref(payload)}
            run.emit_nowait(payload)
        del subscription, payload
        assert alive(watched) == []


async def test_a_run_that_failed_is_kept_by_its_error_only() -> None:
    """Its traceback keeps frames, and those keep locals: the one exception."""
    errors: list[Boom] = []
    try:
        async with harness.open_run("job", deps=Heavy()) as run:
            watched = fill(run)
            raise Boom
    except Boom as exc:
        errors.append(exc)
    assert alive(watched) == []
    errors.clear()
    assert run.status == "failed"


# Ten thousand runs -----------------------------------------------------------------------------


async def plain_run() -> None:
    async with harness.open_run("job", timeout=60, tags={"shard": 3}):
        heavy.get()


async def nested_runs() -> None:
    async with harness.open_run("parent"):
        async with harness.open_run("child") as child:
            child.emit_nowait("event")
            child.inbox.put("message")


async def observed_run() -> None:
    with harness.observing(len_of_nothing):
        async with harness.open_run("job") as run:
            for _ in range(10):
                run.emit_nowait("event")


async def subscribed_run() -> None:
    async with harness.open_run("job") as run:
        async with run.subscribe(buffer=4):
            for _ in range(10):
                run.emit_nowait("event")


async def cancelled_run() -> None:
    async with harness.open_run("job") as run:
        run.cancel("not needed")
        await trio.lowlevel.checkpoint()


async def cleaned_up_run() -> None:
    async with harness.open_run("job") as run:
        run.cancel()
        with harness.cleanup():
            await trio.lowlevel.checkpoint()


def len_of_nothing(event: harness.Event) -> None:
    pass


@pytest.mark.slow
@pytest.mark.parametrize(
    "one", [plain_run, nested_runs, observed_run, subscribed_run, cancelled_run, cleaned_up_run]
)
async def test_ten_thousand_runs_leave_memory_flat(one: Callable[[], Awaitable[None]]) -> None:
    async def many(times: int) -> None:
        # Half of the memory tests of other projects fail because a long-lived task copied a
        # context; one such task per thousand runs is part of the load.
        for number in range(times):
            await one()
            if number % 100 == 0:
                await trio.lowlevel.checkpoint()  # trio forgets old deadlines in its loop only.
            if number % 1_000 == 0:
                nursery.start_soon(trio.sleep_forever)

    async with trio.open_nursery() as nursery:
        await many(200)
        gc.collect()
        objects_before = len(gc.get_objects())
        await many(10_000)
        gc.collect()
        objects_after = len(gc.get_objects())
        nursery.cancel_scope.cancel()
    assert objects_after - objects_before < 1_000


@pytest.mark.slow
async def test_what_a_long_run_has_finished_with_does_not_pile_up(
    autojump_clock: MockClock,
) -> None:
    """A service may be one run for weeks: children, tasks, cleanups and readers come and go."""

    async def turn(run: harness.Run) -> None:
        with harness.cleanup():
            pass
        async with run.subscribe():
            await run.emit("event")
        async with harness.open_run("child") as child:
            child.cancel()
            await trio.lowlevel.checkpoint()
        harness.start_soon(nursery, trio.lowlevel.checkpoint, run=run)
        harness.run_sync_soon(len, "callback")
        run.inbox.put("message")
        run.inbox.take_all()
        await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        async with harness.open_run("service") as run:
            for _ in range(50):
                await turn(run)
            gc.collect()
            objects_before = len(gc.get_objects())
            for _ in range(1_000):
                await turn(run)
            gc.collect()
            objects_after = len(gc.get_objects())
    assert objects_after - objects_before < 500


@pytest.mark.slow
async def test_live_runs_are_small() -> None:
    """A thousand idle runs may take a few kilobytes each, task included, not more."""

    async def idle() -> None:
        async with harness.open_run("job"):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(1_000):
                nursery.start_soon(idle)
            await wait_all_tasks_blocked()
            size_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        nursery.cancel_scope.cancel()
    assert size_bytes / 1_000 < 10_000


@pytest.mark.slow
async def test_collecting_garbage_in_the_middle_of_a_run_takes_nothing_that_is_needed(
    autojump_clock: MockClock,
) -> None:
    """Nothing of a run hangs on weak references alone."""
    seen: list[object] = []

    async def task() -> None:
        await trio.sleep(1)
        gc.collect()
        seen.append(heavy.get())

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            value = id(heavy.get())
            harness.start_soon(nursery, task, run=run)
            gc.collect()
    assert [id(found) for found in seen] == [value]
