"""The stray instrument reports raw tasks that outlive their run or carry the wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.runs import StrayTasks


@contextmanager
def watching() -> Iterator[StrayTasks]:
    """Have strays reported while the block runs."""
    instrument = StrayTasks()
    trio.lowlevel.add_instrument(instrument)
    try:
        yield instrument
    finally:
        trio.lowlevel.remove_instrument(instrument)


async def poller() -> None:
    await trio.sleep(10)


@pytest.mark.strays
async def test_a_raw_task_in_a_nursery_outside_of_its_run_is_reported(
    autojump_clock: MockClock,
) -> None:
    with watching() as instrument:
        async with trio.open_nursery() as nursery:
            async with harness.open_run("nightly"):
                async with harness.open_run("ticket-17"):
                    nursery.start_soon(poller, name="forgotten poller")
    (stray,) = instrument.strays
    assert stray.run_path == "nightly/ticket-17"
    assert stray.task_name == "forgotten poller"
    assert isinstance(stray.reason, str)
    assert stray.reason


@pytest.mark.strays
async def test_a_stray_is_reported_at_once_while_its_run_is_still_alive(
    autojump_clock: MockClock,
) -> None:
    """That it happened to end in time today says nothing about tomorrow."""
    with watching() as instrument:
        async with trio.open_nursery() as nursery:
            async with harness.open_run("ticket-17"):
                nursery.start_soon(trio.sleep, 1)
                await wait_all_tasks_blocked()
                reported = len(instrument.strays)
                await trio.sleep(5)
    assert reported == 1
    assert len(instrument.strays) == 1


@pytest.mark.strays
async def test_a_raw_task_in_another_runs_nursery_is_reported(autojump_clock: MockClock) -> None:
    """Run A starts a task in the nursery of run B: it sees A, and ends with B."""
    with watching() as instrument:
        async with harness.open_run("b"):
            async with trio.open_nursery() as nursery_b:

                async def run_a() -> None:
                    async with harness.open_run("a"):
                        nursery_b.start_soon(poller)
                        await trio.sleep(1)

                nursery_b.start_soon(run_a)
    (stray,) = instrument.strays
    assert stray.run_path == "b/a"
    assert "poller" in stray.task_name


@pytest.mark.strays
async def test_a_raw_task_that_was_started_with_start_is_reported(
    autojump_clock: MockClock,
) -> None:
    """`nursery.start` runs a task in a nursery of the caller's at first, and moves it later."""

    async def server(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep(10)

    with watching() as instrument:
        async with trio.open_nursery() as nursery:
            async with harness.open_run("ticket-17"):
                await nursery.start(server)
    (stray,) = instrument.strays
    assert stray.run_path == "ticket-17"
    assert "server" in stray.task_name


@pytest.mark.strays
async def test_a_stray_is_reported_once(autojump_clock: MockClock) -> None:
    async def busy_poller() -> None:
        for _ in range(20):
            await trio.sleep(1)

    with watching() as instrument:
        async with trio.open_nursery() as nursery:
            async with harness.open_run("job"):
                nursery.start_soon(busy_poller)
                await trio.sleep(3)
    assert len(instrument.strays) == 1


@pytest.mark.strays
async def test_each_stray_is_reported(autojump_clock: MockClock) -> None:
    with watching() as instrument:
        async with trio.open_nursery() as nursery:
            for number in range(5):
                async with harness.open_run(f"job-{number}"):
                    nursery.start_soon(poller)
    assert sorted(stray.run_path for stray in instrument.strays) == [
        f"job-{number}" for number in range(5)
    ]


async def test_what_belongs_where_it_lives_is_not_reported(autojump_clock: MockClock) -> None:
    async def child(name: str) -> None:
        async with harness.open_run(name):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poller)
                await trio.to_thread.run_sync(harness.current_run)
                await trio.to_thread.run_sync(trio.from_thread.run, trio.sleep, 0)

    with watching() as instrument:
        async with trio.open_nursery() as outside:
            outside.start_soon(poller)
            async with harness.open_run("parent") as parent:
                async with trio.open_nursery() as inside:
                    inside.start_soon(poller)
                    inside.start_soon(child, "one")
                    inside.start_soon(child, "two")
                    async with harness.open_run("three"):
                        harness.start_soon(inside, poller, run=parent)
                    harness.start_soon(outside, poller, run=parent)
                    harness.start_soon(outside, poller, run=None)
                    harness.start_soon(inside, poller, run=None)
                with harness.cleanup():
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(poller)
    assert instrument.strays == []


async def test_a_task_that_opens_runs_of_its_own_is_not_reported(
    autojump_clock: MockClock,
) -> None:
    async def service() -> None:
        for _ in range(3):
            async with harness.open_run("job"):
                await trio.sleep(1)

    with watching() as instrument:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service)
    assert instrument.strays == []


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.strays
async def test_watching_changes_nothing_about_the_program(
    fails: bool, autojump_clock: MockClock
) -> None:
    """It reports; it neither raises nor cancels."""

    async def stray() -> None:
        await trio.sleep(2)
        ended.append(trio.current_time())
        if fails:
            raise KeyError("as before")

    ended: list[float] = []
    errors: list[BaseException] = []
    with watching() as instrument:
        try:
            async with trio.open_nursery() as nursery:
                async with harness.open_run("job") as run:
                    nursery.start_soon(stray)
                    await wait_all_tasks_blocked()
        except ExceptionGroup as group:
            errors.extend(group.exceptions)
    assert ended == [2]
    assert [type(error) for error in errors] == ([KeyError] if fails else [])
    assert run.status == "ok"
    assert len(instrument.strays) == 1
