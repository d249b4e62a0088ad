"""Every task cancelled at every checkpoint: what is found, what isn't, what the report says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import anyio
import pytest
import trio
import trio.lowlevel

from harness.errors import CancellationError, DeadlockError, ScheduleError
from harness.fanout import fan_out
from harness.runs import current_run, open_run
from harness.shared import open_cache
from harness.testing import after_cancel, explore_cancellations, explore_schedules
from harness.testing.schedules import Kind, _step_backends
from harness.testing.schedules._by_trampoline import TrampolineBackend
from tests.testing.exploration.cancels import asyncio_programs, trio_programs

pytestmark = pytest.mark.slow

Test = Callable[[], Awaitable[None]]


def programs(ending: str) -> list[Any]:
    return [
        pytest.param(test, id=f"{module.__name__.rpartition('.')[2]}-{name}")
        for module in (trio_programs, asyncio_programs)
        for name, test in vars(module).items()
        if name.endswith(ending) and not name.startswith("_")
    ]


def run(test: Callable[[], Any]) -> None:
    """Run a decorated test in the loop that its program is for."""
    if test.__module__ == asyncio_programs.__name__:
        asyncio.run(test())
    else:
        trio.run(test)


def failure(test: Test, **settings: Any) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        run(explore_cancellations(**settings)(test))
    return caught.value


def program(module: ModuleType, name: str) -> Test:
    test: Test = getattr(module, name)
    return test


@pytest.mark.parametrize("test", programs("_faulty"))
def test_what_a_cancel_leaves_behind_is_found_and_replayed(test: Test) -> None:
    """One cancel shows each, and its replay string shows the same again."""
    error = failure(test)
    assert isinstance(error.__cause__, CancellationError | DeadlockError)
    assert error.schedule is not None
    faults = error.schedule.split(":")[2]
    assert faults[0] in "tu"
    assert "," not in faults
    again = failure(test, schedule=error.schedule)
    assert "under the schedule that was given" in str(again)
    assert "diverged" not in str(again)
    assert str(again.__cause__) == str(error.__cause__)


@pytest.mark.parametrize("test", programs("_right"))
def test_right_programs_raise_no_alarm(test: Test) -> None:
    run(explore_cancellations(test))


@pytest.mark.long
@pytest.mark.parametrize("test", programs("_right"))
def test_right_programs_raise_no_alarm_under_other_schedules_with_cancels(test: Test) -> None:
    run(explore_schedules(schedules=60, cancel=True)(test))


@pytest.mark.long
@pytest.mark.parametrize("test", programs("_faulty"))
def test_schedules_with_cancels_find_the_same(test: Test) -> None:
    with pytest.raises(ScheduleError) as caught:
        run(explore_schedules(cancel=True)(test))
    assert caught.value.schedule is not None
    assert caught.value.schedule.split(":")[2].count(",") == 0


def test_a_held_lock_is_named_with_who_took_it_and_where() -> None:
    words = str(failure(program(trio_programs, "lock_by_hand_faulty")))
    first, cause, what = words.splitlines()[:3]
    assert first == "lock_by_hand_faulty fails under cancel 2"
    assert "task 'work' was cancelled while it waited in lock_by_hand_faulty" in cause
    assert "a trio.Lock is still held: task 'work' took it in lock_by_hand_faulty" in what
    assert "(trio_programs.py:" in cause
    assert "(trio_programs.py:" in what
    assert words.splitlines()[-1].startswith('  @explore_cancellations(schedule="h1:-:t1@')


def test_a_waiting_cancel_that_strikes_as_the_task_wakes_says_so() -> None:
    words = str(failure(program(asyncio_programs, "handed_over_faulty")))
    assert "task 'use' was cancelled as it woke in Pool.take" in words


def test_a_cleanup_that_hangs_is_named_with_the_cancel() -> None:
    words = str(failure(program(trio_programs, "shield_hangs_faulty")))
    assert "DeadlockError" in words
    assert "what was made to go wrong:" in words
    assert "was cancelled while it waited in shield_hangs_faulty" in words


def test_every_checkpoint_is_struck_once() -> None:
    """Three checkpoints of two tasks and one of the main task, each in a run of its own."""
    seen: list[str] = []

    async def test() -> None:
        async def work(name: str) -> None:
            for number in range(3):
                try:
                    await trio.lowlevel.checkpoint()
                except trio.Cancelled:
                    seen.append(f"{name}{number}")
                    raise

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, "a")
                nursery.start_soon(work, "b")
        except trio.Cancelled:
            seen.append("main")
            raise

    trio.run(explore_cancellations(test))
    alone = [name for name in seen if name != "main"]
    assert {name: alone.count(name) for name in sorted(set(alone))} == {
        # Cancelling the main task, too, meets them at their first.
        **dict.fromkeys(("a0", "b0"), 2),
        **dict.fromkeys(("a1", "a2", "b1", "b2"), 1),
    }


def test_a_test_that_fails_without_a_cancel_says_just_that() -> None:
    async def test() -> None:
        await trio.sleep(1)
        raise AssertionError("wrong anyway")

    words = str(failure(test))
    assert "test fails without any switch: under the plain schedule" in words
    assert "wrong anyway" in words


def test_a_check_must_hold_without_a_cancel_too() -> None:
    async def test() -> None:
        after_cancel(lambda: False)
        await trio.sleep(1)

    error = failure(test)
    assert isinstance(error.__cause__, AssertionError)
    assert "returned False" in str(error)


def test_checks_are_not_called_outside() -> None:
    @after_cancel
    def check() -> None:
        raise AssertionError

    async def test() -> None:
        after_cancel(check)
        await trio.lowlevel.checkpoint()

    trio.run(test)
    trio.run(explore_schedules(test))


def test_more_checkpoints_than_asked_for_are_drawn() -> None:
    runs: list[None] = []

    async def test() -> None:
        runs.append(None)
        for _ in range(50):
            await trio.lowlevel.checkpoint()

    trio.run(explore_cancellations(cancels=7)(test))
    assert len(runs) == 1 + 7


def not_async() -> None:
    """Do nothing, and not asynchronously."""


def test_bad_settings_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="cancels"):
        explore_cancellations(cancels=0)
    with pytest.raises(TypeError, match="async"):
        explore_cancellations(not_async)


def test_fan_outs_budgets_and_shared_things_of_harness_give_no_alarm() -> None:
    """A task of a library is never cancelled alone: no user could do that."""

    async def test() -> None:
        async def fetch(key: str) -> int:
            await trio.sleep(0.1)
            return 7

        async with open_cache(ttl=60, size=10) as cache:

            async def agent(item: int) -> int:
                async with open_run("inner"):
                    assert current_run().name == "inner"
                    await trio.sleep(0.1)
                    found = await cache.get("key", fetch)
                return item + found

            results = await fan_out(agent, [1, 2, 3], limit=2)
            assert [result.value for result in results] == [8, 9, 10]

    trio.run(explore_cancellations(test))


def test_anyio_programs_are_struck_under_either_loop() -> None:
    async def test() -> None:
        lock = anyio.Lock()

        async def work() -> None:
            await lock.acquire()
            await anyio.sleep(1)
            lock.release()

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            after_cancel(lambda: not lock.locked())

    kinds: tuple[Kind, ...] = ("trio", "asyncio")
    for kind in kinds:
        with pytest.raises(ScheduleError) as caught:
            trio.run(explore_cancellations(backend=kind)(test))
        assert "returned False" in str(caught.value)


def test_the_other_way_to_control_steps_strikes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    test = program(trio_programs, "lock_by_hand_faulty")
    by_hook = failure(test)
    monkeypatch.setattr(_step_backends, "_tried", lambda: TrampolineBackend())
    assert failure(test).schedule == by_hook.schedule
    run(explore_cancellations(program(trio_programs, "server_right")))


def test_what_is_replaced_is_put_back() -> None:
    before = {**vars(trio.Lock), **vars(asyncio.Semaphore), **vars(trio.CapacityLimiter)}
    run(explore_cancellations(program(trio_programs, "permit_right")))
    failure(program(asyncio_programs, "permit_faulty"))
    assert before == {**vars(trio.Lock), **vars(asyncio.Semaphore), **vars(trio.CapacityLimiter)}
