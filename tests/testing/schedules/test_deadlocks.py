"""A program that never ends is cut short, with a report of what its tasks are waiting for."""

import itertools

import pytest
import trio

from harness.errors import DeadlockError, LivelockError
from harness.testing.schedules._step_backend import StepBackend
from tests.testing.schedules.programs import each_backend, run_with


@each_backend
def test_a_deadlock_names_tasks_lines_and_holders(backend: StepBackend) -> None:
    async def program() -> None:
        left, right = trio.Lock(), trio.Lock()

        async def take(first: trio.Lock, second: trio.Lock) -> None:
            async with first:
                await trio.lowlevel.checkpoint()
                async with second:
                    raise AssertionError("never got here")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, left, right, name="lefty")
            nursery.start_soon(take, right, left, name="righty")

    run = run_with(backend, program, "h1:1x1:-:-")
    assert isinstance(run.error, DeadlockError)
    assert [task.name for task in run.blocked] == ["lefty", "righty"], "not the one that waits here"
    assert [task.holder for task in run.blocked] == ["righty", "lefty"]
    assert all("take (test_deadlocks.py:" in task.place for task in run.blocked)
    assert "'lefty' waits in" in str(run.error)


@each_backend
def test_tasks_of_one_name_are_told_apart_by_their_first_steps(backend: StepBackend) -> None:
    """It read as if each waited for itself."""

    async def program() -> None:
        left, right = trio.Lock(), trio.Lock()

        async def take(first: trio.Lock, second: trio.Lock) -> None:
            async with first:
                await trio.lowlevel.checkpoint()
                async with second:
                    raise AssertionError("never got here")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, left, right)
            nursery.start_soon(take, right, left)

    for schedule, first in (("h1:1x1:-:-", 1), ("h1:0x1,0x1:-:-", 2)):
        run = run_with(backend, program, schedule)
        assert isinstance(run.error, DeadlockError)
        assert next(filter(None, run.order)) == first, "the one that was spawned as this one"
        names = ["take", "take #2"] if first == 1 else ["take #2", "take"]
        assert [task.name for task in run.blocked] == names
        assert [task.holder for task in run.blocked] == names[::-1]


@each_backend
def test_a_deadlock_behind_a_shield_ends_too(backend: StepBackend) -> None:
    """A cancel doesn't reach it, and on a virtual clock nothing else ever would."""

    async def program() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    assert isinstance(run_with(backend, program).error, DeadlockError)


@each_backend
def test_a_task_of_the_system_that_never_ends_is_a_deadlock_too(backend: StepBackend) -> None:
    async def program() -> None:
        async def stubborn() -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()

        trio.lowlevel.spawn_system_task(stubborn)
        await trio.lowlevel.checkpoint()

    assert isinstance(run_with(backend, program).error, DeadlockError)


@each_backend
def test_waiting_for_a_deadline_is_no_deadlock(backend: StepBackend) -> None:
    async def program() -> bool:
        with trio.move_on_after(1e6) as scope:
            await trio.sleep_forever()
        return scope.cancelled_caught

    assert run_with(backend, program).outcome.unwrap() is True


@each_backend
def test_an_endless_loop_is_a_livelock(backend: StepBackend) -> None:
    async def program() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    run = run_with(backend, program, most_steps=500)
    assert isinstance(run.error, LivelockError)
    assert "had not ended after 500 steps" in str(run.error)
    assert "test_deadlocks.py" in str(run.error)


@pytest.mark.slow
@each_backend
def test_an_endless_loop_that_takes_no_cancel_ends_too(backend: StepBackend) -> None:
    async def program() -> None:
        while True:
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled:
                pass  # What a real program must never do, and some do.

    assert isinstance(run_with(backend, program, most_steps=500).error, LivelockError)


@each_backend
def test_a_clock_that_ticks_for_ever_is_a_livelock(backend: StepBackend) -> None:
    """All real work is stuck, but some task always has a reason to wake up."""

    async def program() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            for _ in itertools.count():
                await trio.sleep(1)

    assert isinstance(run_with(backend, program, most_steps=500).error, LivelockError)


@each_backend
def test_the_error_of_a_program_that_is_cut_short_is_kept(backend: StepBackend) -> None:
    async def program() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise LookupError("while ending") from None

    error = run_with(backend, program).error
    assert isinstance(error, DeadlockError)
    assert isinstance(error.__context__, LookupError)
