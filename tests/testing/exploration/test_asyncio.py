"""The decorators above asyncio tests: kinds, reports, replays, cancels, fixtures of other loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio

from harness.errors import DeadlockError, ScheduleError
from harness.testing import arriving, explore_arrivals, explore_schedules, exploring_with

module_lock = asyncio.Lock()
module_notes: list[str] = []


class Account:
    def __init__(self) -> None:
        self.left = 100

    async def spend(self, amount: int) -> None:
        if self.left >= amount:
            await asyncio.sleep(0.1)
            self.left -= amount


async def overspends() -> None:
    account = Account()
    async with asyncio.TaskGroup() as group:
        group.create_task(account.spend(70), name="rent")
        group.create_task(account.spend(60), name="food")
    assert account.left >= 0, f"overspent by {-account.left}"


def failure(test: Callable[[], Coroutine[Any, Any, None]]) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        asyncio.run(explore_schedules(test)())
    return caught.value


def test_the_report_names_tasks_places_and_the_object() -> None:
    error = failure(overspends)
    words = str(error)
    assert "AssertionError: overspent by 30" in words
    assert "'rent' goes on for 1 step, to Account.spend (test_asyncio.py:" in words
    assert "Account.left (local of overspends)" in error.objects
    assert f'@explore_schedules(schedule="{error.schedule}")' in words


@pytest.mark.slow
def test_the_replay_string_shows_the_same_and_nothing_else() -> None:
    error = failure(overspends)
    assert error.schedule is not None
    with pytest.raises(ScheduleError, match="under the schedule that was given"):
        asyncio.run(explore_schedules(schedule=error.schedule)(overspends)())
    with exploring_with(schedule=error.schedule), pytest.raises(ScheduleError, match="overspent"):
        asyncio.run(explore_schedules(overspends)())


@pytest.mark.parametrize("around", ["trio", "asyncio"])
def test_it_runs_wherever_it_is_awaited(around: str) -> None:
    explored = explore_schedules(schedules=20)(overspends)
    with pytest.raises(ScheduleError, match="overspent"):
        trio.run(explored) if around == "trio" else asyncio.run(explored())


@pytest.mark.parametrize("around", ["trio", "asyncio"])
@pytest.mark.slow
def test_code_for_both_runs_as_its_surroundings(around: str) -> None:
    seen: set[str] = set()

    @explore_schedules(schedules=20)
    async def test() -> None:
        seen.add(anyio.get_cancelled_exc_class().__module__.partition(".")[0])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep, 1)
            tasks.start_soon(anyio.sleep, 1)

    trio.run(test) if around == "trio" else asyncio.run(test())
    assert seen == {around}


@pytest.mark.parametrize("kind", ["trio", "asyncio"])
@pytest.mark.parametrize("above", [True, False])
def test_a_marker_says_the_kind(kind: str, above: bool) -> None:
    seen: set[str] = set()

    async def test() -> None:
        seen.add(anyio.get_cancelled_exc_class().__module__.partition(".")[0])
        await anyio.lowlevel.checkpoint()

    def mark(test: Any) -> Any:
        test.pytestmark = [SimpleNamespace(name=kind)]  # As pytest.mark does, for known markers.
        return test

    few = explore_schedules(schedules=5)
    marked = mark(few(test)) if above else few(mark(test))
    trio.run(marked)
    assert seen == {kind}


def test_backend_says_the_kind_and_is_checked() -> None:
    async def neutral() -> None:
        await anyio.lowlevel.checkpoint()
        assert anyio.get_cancelled_exc_class() is asyncio.CancelledError

    trio.run(explore_schedules(schedules=5, backend="asyncio")(neutral))
    for decorator in (explore_schedules, explore_arrivals):
        with pytest.raises(ValueError, match="'threads', not 'tornado'"):
            decorator(backend="tornado")  # type: ignore[call-overload]


def test_a_deadlock_is_reported_with_its_lock() -> None:
    async def test() -> None:
        a, b = asyncio.Lock(), asyncio.Lock()

        async def take(first: asyncio.Lock, second: asyncio.Lock) -> None:
            async with first:
                await asyncio.sleep(0)
                async with second:
                    pass

        await asyncio.gather(take(a, b), take(b, a))

    error = failure(test)
    assert isinstance(error.__cause__, DeadlockError)
    assert "for a lock that task 'take #2' holds" in str(error)


def test_replies_arrive_in_every_order() -> None:
    async def ask(question: str) -> str:
        return question.upper()

    asked = arriving(ask)
    orders: set[str] = set()

    @explore_arrivals
    async def test() -> None:
        votes: list[str] = []

        async def vote(name: str) -> None:
            votes.append(await asked(name))

        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(vote(name))
        orders.add("".join(votes))

    asyncio.run(test())
    assert orders == {"ABC", "ACB", "BAC", "BCA", "CAB", "CBA"}


def test_locks_of_modules_work_in_each_new_loop() -> None:
    """asyncio binds a lock to the loop in which it was first waited for."""

    @explore_schedules(schedules=50)
    async def test() -> None:
        async def use() -> None:
            async with module_lock:
                await asyncio.sleep(0)
            module_notes.append("x")

        await asyncio.gather(use(), use(), use())
        assert len(module_notes) == 3

    asyncio.run(test())
    assert module_notes == []
    assert not module_lock.locked()


def test_something_of_another_loop_is_reported_as_that() -> None:
    async def main() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        @explore_schedules(schedules=5)
        async def test() -> None:
            await future

        await test()

    with pytest.raises(ScheduleError, match="something that belongs to another event loop"):
        asyncio.run(main())


def test_a_loop_inside_the_loop_is_reported_as_that() -> None:
    @explore_schedules
    async def test() -> None:
        await asyncio.sleep(0)
        coroutine = asyncio.sleep(0)
        try:
            asyncio.run(coroutine)
        finally:
            coroutine.close()

    with pytest.raises(ScheduleError, match=r"inside asyncio already: .*don't asyncio\.run it"):
        asyncio.run(test())


def test_what_asyncio_would_only_log_is_in_the_report() -> None:
    async def test() -> None:
        asyncio.get_running_loop().call_soon(int, "no number")
        await asyncio.sleep(0)
        raise LookupError

    assert "nobody waited for this error: Exception in callback int(" in str(failure(test))


def test_a_cancel_ends_the_search_and_everything_is_put_back() -> None:
    """asyncio can't cancel a thread, so the search is told, and waited for."""
    runs: list[int] = []

    async def main() -> None:
        loop, few_are_over = asyncio.get_running_loop(), asyncio.Event()

        @explore_schedules(schedules=1_000_000)
        async def test() -> None:
            runs.append(1)
            module_notes.append("x")
            await asyncio.gather(*(asyncio.sleep(0) for _ in range(4)))
            if len(runs) == 3:
                loop.call_soon_threadsafe(few_are_over.set)

        task = asyncio.create_task(test())
        await few_are_over.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(runs) < 1_000_000
    assert module_notes == []
