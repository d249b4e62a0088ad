"""`start_soon`: a task belongs to the run that is named, whichever nursery it lives in."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, assert_no_checkpoints, wait_all_tasks_blocked

import harness
from harness.errors import RunTimedOut
from tests.support.context import planted, third_party
from tests.support.ways_out import Boom

messages = harness.RunLocal(list[str], name="messages")


# Whose context? --------------------------------------------------------------------------------


async def test_a_task_started_in_another_runs_nursery_belongs_to_the_run_that_is_named() -> None:
    """trio gives a task the context of whoever called `start_soon`, not of its nursery."""
    seen: list[harness.Run] = []

    async def look() -> None:
        seen.append(harness.current_run())

    async with harness.open_run("b") as run_b:
        async with trio.open_nursery() as nursery_b:
            async with harness.open_run("a") as run_a:
                harness.start_soon(nursery_b, look, run=run_b)
                await wait_all_tasks_blocked()
                assert seen == [run_b]
                assert harness.current_run() is run_a


async def test_a_task_with_run_none_belongs_to_no_run() -> None:
    seen: list[harness.Run | None] = []

    async def look() -> None:
        seen.append(harness.current_run_or_none())

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job"):
            harness.start_soon(nursery, look, run=None)
            await wait_all_tasks_blocked()
    assert seen == [None]


@pytest.mark.parametrize("belongs", [True, False])
async def test_the_rest_of_the_context_is_the_callers(belongs: bool) -> None:
    """The context is copied where the user made the call, and only the run is laid over it."""
    seen: list[str] = []

    async def look() -> None:
        seen.append(third_party.get())
        third_party.set("by the task")

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            with planted("at the call"):
                harness.start_soon(nursery, look, run=run if belongs else None)
            await wait_all_tasks_blocked()
            assert third_party.get() == "unset"
    assert seen == ["at the call"]


async def test_the_callers_own_context_is_left_alone() -> None:
    async with harness.open_run("a") as run_a:
        async with trio.open_nursery() as nursery:
            async with harness.open_run("b"):
                harness.start_soon(nursery, trio.lowlevel.checkpoint, run=run_a)
                assert harness.current_run().name == "b"
                harness.start_soon(nursery, trio.lowlevel.checkpoint, run=None)
                assert harness.current_run().name == "b"


async def test_a_task_has_its_runs_locals_and_opens_children_of_its_run() -> None:
    paths: list[str] = []

    async def work() -> None:
        messages.get().append("from the task")
        async with harness.open_run("child") as child:
            assert child.parent is run
            paths.append(child.path)

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            harness.start_soon(nursery, work, run=run)
            await wait_all_tasks_blocked()
            assert messages.get() == ["from the task"]
    assert paths == ["job/child"]


# The call itself -------------------------------------------------------------------------------


async def test_the_call_takes_arguments_and_a_name_and_does_not_checkpoint() -> None:
    seen: list[tuple[object, ...]] = []

    async def work(*args: object) -> str:
        seen.append((trio.lowlevel.current_task().name, *args))
        return "a value nobody wants"

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            with assert_no_checkpoints():
                harness.start_soon(nursery, work, 1, "two", run=run, name="worker 1")
                harness.start_soon(nursery, work, 3, run=None, name="worker 2")
    assert sorted(seen, key=str) == [("worker 1", 1, "two"), ("worker 2", 3)]


@pytest.mark.parametrize("belongs", [True, False])
async def test_by_default_a_task_is_named_after_its_function(belongs: bool) -> None:
    names: list[str] = []

    async def fetch_prices() -> None:
        names.append(trio.lowlevel.current_task().name)

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            harness.start_soon(nursery, fetch_prices, run=run if belongs else None)
    assert "fetch_prices" in names[0]


async def test_a_closed_nursery_is_refused_and_the_run_does_not_wait_for_what_never_started() -> (
    None
):
    async with trio.open_nursery() as closed:
        pass
    with trio.fail_after(5):
        async with harness.open_run("job") as run:
            with pytest.raises(RuntimeError, match="closed"):
                harness.start_soon(closed, trio.sleep_forever, run=run)
    assert run.status == "ok"


async def test_a_cancelled_nursery_does_not_keep_the_run_waiting(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.cancel()
        async with harness.open_run("job") as run:
            with trio.CancelScope(shield=True):
                harness.start_soon(nursery, trio.sleep_forever, run=run)
                await trio.sleep(1)
        assert run.status == "ok"
        assert run.ended_at == 1


# Errors ----------------------------------------------------------------------------------------


async def test_a_failing_task_fails_its_nursery_as_any_task_does() -> None:
    async def fail() -> None:
        raise Boom

    with pytest.raises(ExceptionGroup) as caught:
        async with harness.open_run("job") as run:
            async with trio.open_nursery() as nursery:
                harness.start_soon(nursery, fail, run=run)
                await trio.sleep_forever()
    assert [type(exc) for exc in caught.value.exceptions] == [Boom]
    assert run.status == "failed"


async def test_a_task_failing_in_a_foreign_nursery_leaves_its_run_alone(
    autojump_clock: MockClock,
) -> None:
    """The failure belongs to the nursery; the run's body may well go on without that task."""
    nurseries: list[trio.Nursery] = []
    failures: list[ExceptionGroup[Exception]] = []

    async def host() -> None:
        try:
            async with trio.open_nursery() as nursery:
                nurseries.append(nursery)
                await trio.sleep_forever()
        except ExceptionGroup as group:
            failures.append(group)

    async def fail() -> None:
        raise Boom

    async with trio.open_nursery() as outer:
        outer.start_soon(host)
        await wait_all_tasks_blocked()
        async with harness.open_run("job") as run:
            harness.start_soon(nurseries[0], fail, run=run)
            await trio.sleep(3)
        assert run.status == "ok"
    assert [type(exc) for exc in failures[0].exceptions] == [Boom]


async def test_the_error_of_a_task_names_the_path_of_its_run() -> None:
    async def fail() -> None:
        raise Boom

    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            async with harness.open_run("nightly"):
                async with harness.open_run("ticket-17") as run:
                    harness.start_soon(nursery, fail, run=run)
    (error,) = caught.value.exceptions
    assert any("nightly/ticket-17" in note for note in error.__notes__)


# The run's cancel and deadline reach -----------------------------------------------------------


async def test_the_runs_cancel_reaches_its_task_in_a_foreign_nursery(
    autojump_clock: MockClock,
) -> None:
    ended: list[float] = []
    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            harness.start_soon(nursery, note_end, ended, run=run)
            await trio.sleep(2)
            run.cancel()
            await trio.sleep_forever()
        assert run.status == "cancelled"
        assert ended == [2], "the task ended before the block was left"
        await trio.sleep(1)  # The nursery it lived in goes on.
    assert not nursery.cancel_scope.cancel_called


async def test_the_runs_deadline_reaches_its_task_in_a_foreign_nursery(
    autojump_clock: MockClock,
) -> None:
    ended: list[float] = []
    async with trio.open_nursery() as nursery:
        with pytest.raises(RunTimedOut):
            async with harness.open_run("job", timeout=2) as run:
                harness.start_soon(nursery, note_end, ended, run=run)
                await trio.sleep_forever()
        assert ended == [2]
        await trio.sleep(1)


async def test_the_cancel_of_an_ancestor_reaches_the_task(autojump_clock: MockClock) -> None:
    ended: list[float] = []
    async with trio.open_nursery() as nursery:
        async with harness.open_run("parent") as parent:
            async with harness.open_run("child") as child:
                harness.start_soon(nursery, note_end, ended, run=child)
                await trio.sleep(2)
                parent.cancel()
                await trio.sleep_forever()
    assert ended == [2]


async def test_the_cancel_reaches_through_a_shield_around_the_nursery(
    autojump_clock: MockClock,
) -> None:
    """The shield is about the nursery's owner; the run's tasks still belong to the run."""
    ended: list[float] = []
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            async with harness.open_run("job") as run:
                harness.start_soon(nursery, note_end, ended, run=run)
                await trio.sleep(2)
                run.cancel()
                await trio.sleep_forever()
    assert ended == [2]


async def test_a_task_started_after_the_cancel_is_cancelled_too(autojump_clock: MockClock) -> None:
    ended: list[float] = []
    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            run.cancel()
            with trio.CancelScope(shield=True):
                harness.start_soon(nursery, note_end, ended, run=run)
                await trio.sleep(5)
            await trio.sleep_forever()
    assert ended == [0], "not only when the block is left"


async def test_a_task_started_late_still_has_the_runs_deadline(autojump_clock: MockClock) -> None:
    ended: list[float] = []
    async with trio.open_nursery() as nursery:
        with pytest.raises(RunTimedOut):
            async with harness.open_run("job", timeout=5) as run:
                await trio.sleep(4)
                harness.start_soon(nursery, note_end, ended, run=run)
                await trio.sleep_forever()
    assert ended == [5]


async def test_a_task_started_after_the_cancel_of_an_ancestor_is_cancelled_too(
    autojump_clock: MockClock,
) -> None:
    """The cancel has already been handed down; a newcomer must not slip through below it."""
    ended: list[float] = []
    async with trio.open_nursery() as nursery:
        async with harness.open_run("parent") as parent:
            async with harness.open_run("child") as child:
                parent.cancel()
                with trio.CancelScope(shield=True):
                    harness.start_soon(nursery, note_end, ended, run=child)
                    await trio.sleep(5)
                await trio.sleep_forever()
    assert ended == [0]
    assert child.status == "cancelled"


async def test_a_task_started_after_the_deadline_of_an_ancestor_is_cancelled_too(
    autojump_clock: MockClock,
) -> None:
    ended: list[float] = []
    async with trio.open_nursery() as nursery:
        with pytest.raises(RunTimedOut):
            async with harness.open_run("parent", timeout=1):
                async with harness.open_run("child") as child:
                    with trio.CancelScope(shield=True):
                        await trio.sleep(3)
                        harness.start_soon(nursery, note_end, ended, run=child)
                        await trio.sleep(5)
                    await trio.sleep_forever()
    assert ended == [3]


async def test_the_cancel_does_not_reach_a_task_of_no_run(autojump_clock: MockClock) -> None:
    ended: list[float] = []
    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            harness.start_soon(nursery, note_end, ended, run=None)
            run.cancel()
            await trio.sleep_forever()
        assert run.status == "cancelled"
        await trio.sleep(3)
        assert ended == []
        nursery.cancel_scope.cancel()
    assert ended == [3]


async def test_cancelling_one_run_leaves_the_tasks_of_another_in_the_same_nursery(
    autojump_clock: MockClock,
) -> None:
    ended_a: list[float] = []
    ended_b: list[float] = []
    async with trio.open_nursery() as nursery:
        async with harness.open_run("a") as run_a:
            async with harness.open_run("b") as run_b:
                harness.start_soon(nursery, note_end, ended_a, run=run_a)
                harness.start_soon(nursery, note_end, ended_b, run=run_b)
                await trio.sleep(1)
                run_b.cancel()
                await trio.sleep_forever()
            assert (ended_a, ended_b) == ([], [1])
            await trio.sleep(1)
            run_a.cancel()
            await trio.sleep_forever()
    assert (ended_a, ended_b) == ([2], [1])


async def note_end(ended: list[float]) -> None:
    """Wait to be cancelled, and note when that was."""
    try:
        await trio.sleep_forever()
    finally:
        ended.append(trio.current_time())


async def test_in_a_worker_thread_it_says_how_to_get_back() -> None:
    """It was trio's own "must be called from async context", from deep inside."""
    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            with pytest.raises(RuntimeError, match=r"trio\.from_thread\.run_sync"):
                await trio.to_thread.run_sync(
                    lambda: harness.start_soon(nursery, trio.sleep_forever, run=run)
                )
            with pytest.raises(RuntimeError, match=r"trio\.from_thread\.run_sync"):
                await trio.to_thread.run_sync(
                    lambda: harness.start_soon(nursery, trio.sleep_forever, run=None)
                )
        assert not nursery.child_tasks
