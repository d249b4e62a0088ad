"""Leaving a run's block waits for the run's tasks, and cancels them first when it must."""

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
from harness.errors import RunTimedOut
from tests.support.ways_out import Boom

MARGIN_SECONDS = 2.0
"""How long the tasks of these tests take to clean up, shielded."""


class Host:
    """A nursery that somebody else opened, with a task that notes its life."""

    def __init__(self) -> None:
        self.log: list[tuple[str, float]] = []

    def note(self, what: str) -> None:
        self.log.append((what, trio.current_time()))

    async def work(self, seconds: float) -> None:
        try:
            await trio.sleep(seconds)
            self.note("done")
        except trio.Cancelled:
            self.note("cancelled")
            with trio.CancelScope(shield=True):
                await trio.sleep(MARGIN_SECONDS)
            self.note("cleaned up")
            raise


async def test_a_body_that_returns_waits_for_the_runs_tasks(autojump_clock: MockClock) -> None:
    host = Host()
    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            harness.start_soon(nursery, host.work, 3, run=run)
            harness.start_soon(nursery, host.work, 5, run=run)
        host.note("left")
    assert host.log == [("done", 3), ("done", 5), ("left", 5)]
    assert run.status == "ok"
    assert run.ended_at == 5


async def test_the_run_is_running_while_it_waits(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    async def look() -> None:
        await trio.sleep(1)
        seen.append(run.status)
        run.emit_nowait("still allowed")
        assert harness.current_run() is run

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            harness.start_soon(nursery, look, run=run)
    assert seen == ["running"]


async def test_a_task_may_start_another_while_the_block_waits(autojump_clock: MockClock) -> None:
    host = Host()

    async def first() -> None:
        await trio.sleep(1)
        harness.start_soon(nursery, host.work, 4, run=harness.current_run())

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            harness.start_soon(nursery, first, run=run)
        host.note("left")
    assert host.log == [("done", 5), ("left", 5)]


async def test_a_task_in_a_nursery_of_the_block_does_not_wait_for_itself(
    autojump_clock: MockClock,
) -> None:
    host = Host()
    async with harness.open_run("job") as run:
        async with trio.open_nursery() as nursery:
            harness.start_soon(nursery, host.work, 3, run=run)
    assert host.log == [("done", 3)]
    assert run.status == "ok"


async def test_leaving_does_not_wait_for_tasks_of_no_run(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            harness.start_soon(nursery, trio.sleep, 5, run=None)
        assert run.ended_at == trio.current_time() == 0
    assert trio.current_time() == 5


async def test_leaving_does_not_checkpoint_when_all_tasks_have_ended() -> None:
    async with trio.open_nursery() as nursery:
        block = harness.open_run("job")
        run = await block.__aenter__()
        harness.start_soon(nursery, trio.lowlevel.checkpoint, run=run)
        await wait_all_tasks_blocked()
        with assert_no_checkpoints():
            await block.__aexit__(None, None, None)
    assert run.status == "ok"


async def test_waiting_is_a_checkpoint(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        with assert_checkpoints():
            async with harness.open_run("job") as run:
                harness.start_soon(nursery, trio.sleep, 1, run=run)


async def test_a_body_that_raises_cancels_the_tasks_first_and_waits_for_them(
    autojump_clock: MockClock,
) -> None:
    host = Host()
    error = Boom()
    async with trio.open_nursery() as nursery:
        with pytest.raises(Boom) as caught:
            async with harness.open_run("job") as run:
                harness.start_soon(nursery, host.work, 60, run=run)
                await trio.sleep(1)
                raise error
        host.note("left")
    assert caught.value is error
    assert host.log == [("cancelled", 1), ("cleaned up", 3), ("left", 3)]
    assert run.status == "failed"


async def test_the_own_cancel_waits_for_the_tasks_too(autojump_clock: MockClock) -> None:
    host = Host()
    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            harness.start_soon(nursery, host.work, 60, run=run)
            await trio.sleep(1)
            run.cancel()
            await trio.sleep_forever()
        host.note("left")
    assert host.log == [("cancelled", 1), ("cleaned up", 3), ("left", 3)]
    assert (run.status, run.ended_at) == ("cancelled", 3)


async def test_an_outer_cancel_in_the_body_waits_for_the_tasks_too(
    autojump_clock: MockClock,
) -> None:
    host = Host()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as outer:
            async with harness.open_run("job") as run:
                harness.start_soon(nursery, host.work, 60, run=run)
                await trio.sleep(1)
                outer.cancel()
                await trio.sleep_forever()
        host.note("left")
    assert outer.cancelled_caught
    assert host.log == [("cancelled", 1), ("cleaned up", 3), ("left", 3)]
    assert run.status == "cancelled"


# Cancelled during the wait ---------------------------------------------------------------------


async def test_an_outer_cancel_during_the_wait_cancels_the_tasks_and_still_waits_for_them(
    autojump_clock: MockClock,
) -> None:
    host = Host()
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1) as outer:
            async with harness.open_run("job") as run:
                harness.start_soon(nursery, host.work, 60, run=run)
        host.note("left")
    assert outer.cancelled_caught
    assert host.log == [("cancelled", 1), ("cleaned up", 3), ("left", 3)]
    assert run.status == "cancelled"


async def test_the_own_cancel_during_the_wait_is_a_cancel(autojump_clock: MockClock) -> None:
    """The body has returned, but the run's work hasn't: the cancel took effect on it."""
    host = Host()
    handles: list[harness.Run] = []

    async def cancel_later() -> None:
        await trio.sleep(1)
        handles[0].cancel("not needed")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_later)
        async with harness.open_run("job") as run:
            handles.append(run)
            harness.start_soon(nursery, host.work, 60, run=run)
        host.note("left")
    assert host.log == [("cancelled", 1), ("cleaned up", 3), ("left", 3)]
    assert (run.status, run.cancel_reason) == ("cancelled", "not needed")


async def test_the_own_deadline_during_the_wait_is_a_timeout(autojump_clock: MockClock) -> None:
    host = Host()
    async with trio.open_nursery() as nursery:
        with pytest.raises(RunTimedOut):
            async with harness.open_run("job", timeout=1) as run:
                harness.start_soon(nursery, host.work, 60, run=run)
        host.note("left")
    assert host.log == [("cancelled", 1), ("cleaned up", 3), ("left", 3)]
    assert run.status == "timed_out"


async def test_a_second_cancel_during_the_wait_after_an_error_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    """The wait after a failure is shielded: the error must not be lost to an outer cancel."""
    host = Host()
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(2) as outer:
            with pytest.raises(Boom):
                async with harness.open_run("job") as run:
                    harness.start_soon(nursery, host.work, 60, run=run)
                    await trio.sleep(1)
                    raise Boom
        host.note("left")
    assert host.log == [("cancelled", 1), ("cleaned up", 3), ("left", 3)]
    assert run.status == "failed"
    assert not outer.cancelled_caught


async def test_a_task_that_waits_for_its_own_runs_nursery_host_does_not_deadlock(
    autojump_clock: MockClock,
) -> None:
    """The task lives in a nursery inside the block that the error has already cancelled."""
    host = Host()
    with pytest.raises(ExceptionGroup) as caught:
        async with harness.open_run("job") as run:
            async with trio.open_nursery() as nursery:
                harness.start_soon(nursery, host.work, 60, run=run)
                await trio.sleep(1)
                raise Boom
    assert [type(exc) for exc in caught.value.exceptions] == [Boom]
    assert host.log == [("cancelled", 1), ("cleaned up", 3)]
    assert run.status == "failed"


async def test_a_child_runs_tasks_end_before_the_child_which_ends_before_the_parent(
    autojump_clock: MockClock,
) -> None:
    host = Host()
    async with trio.open_nursery() as nursery:
        async with harness.open_run("parent") as parent:
            harness.start_soon(nursery, host.work, 9, run=parent)
            async with harness.open_run("child") as child:
                harness.start_soon(nursery, host.work, 4, run=child)
            host.note("child left")
        host.note("parent left")
    assert host.log == [("done", 4), ("child left", 4), ("done", 9), ("parent left", 9)]


@pytest.mark.parametrize("form", ["block", "item"])
async def test_a_task_started_while_the_runs_tasks_are_ended_is_ended_too(
    autojump_clock: MockClock, form: str
) -> None:
    """The body has failed, its tasks are cancelled, and one starts another in its cleanup.

    The cancel had been sent out before and didn't reach the newcomer, which ran on: the block that
    was to be left at once was held for as long as it liked, an endless one forever.
    """
    left_at: list[float] = []
    begun: list[str] = []

    async def long() -> None:
        begun.append("newcomer")
        await trio.sleep(10_000)

    async def poller(nursery: trio.Nursery, run: harness.Run) -> None:
        try:
            await trio.sleep_forever()
        finally:
            harness.start_soon(nursery, long, run=run)

    async def fails(nursery: trio.Nursery, run: harness.Run) -> None:
        harness.start_soon(nursery, poller, nursery, run, run=run)
        await trio.sleep(1)
        raise Boom

    async with trio.open_nursery() as nursery:
        if form == "block":
            with pytest.raises(Boom):
                async with harness.open_run("job") as run:
                    await fails(nursery, run)
        else:
            await harness.fan_out(
                lambda item: fails(nursery, harness.current_run()),
                [1],
                policy=harness.BestEffort(),
            )
        left_at.append(trio.current_time())
        assert not nursery.child_tasks
    assert left_at == [1]
    assert begun == ["newcomer"], "it begins, and is cut short at its first checkpoint"


async def test_a_timeout_during_the_wait_names_the_tasks(autojump_clock: MockClock) -> None:
    """They share the run's deadline, so it is drawn at random who wakes up first.

    When the tasks did they were gone before the error was worded, and it named none of them.
    """
    for _ in range(20):
        async with trio.open_nursery() as nursery:
            with pytest.raises(RunTimedOut, match=r"in its tasks .*: poller$"):
                async with harness.open_run("job", timeout=1) as run:
                    harness.start_soon(nursery, trio.sleep_forever, run=run, name="poller")
