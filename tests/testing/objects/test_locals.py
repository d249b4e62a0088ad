"""A test that explores schedules names the local variables that its tasks fought over."""

import collections

import pytest
import trio
import trio.lowlevel

from harness.errors import ScheduleError
from harness.testing import explore_schedules


class Issuer:
    def __init__(self) -> None:
        self.valid = ""
        self.issued = 0

    async def issue(self) -> str:
        self.issued += 1
        self.valid = token = f"t{self.issued}"
        await trio.lowlevel.checkpoint()
        return token


class Tokens:
    def __init__(self) -> None:
        self.issuer = Issuer()
        self.token = ""

    async def use(self) -> bool:
        if not self.token:
            self.token = await self.issuer.issue()
        mine = self.token
        await trio.lowlevel.checkpoint()
        return mine == self.issuer.valid


@explore_schedules
async def two_tasks_refresh_a_token() -> None:
    tokens = Tokens()
    good: list[bool] = []

    async def work() -> None:
        good.append(await tokens.use())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(work)
    assert all(good)


async def test_a_check_then_act_on_a_local_object() -> None:
    with pytest.raises(ScheduleError) as caught:
        await two_tasks_refresh_a_token()
    assert "Tokens.token (local of two_tasks_refresh_a_token)" in caught.value.objects
    assert "Tokens.use (test_locals.py:" in str(caught.value)


async def turn(history: list[str], text: str, *, fails: bool) -> None:
    length = len(history)
    history.append(text)
    await trio.lowlevel.checkpoint()
    if fails:
        del history[length:]


@explore_schedules
async def a_turn_rolls_back() -> None:
    history: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: turn(history, "a", fails=True))
        nursery.start_soon(lambda: turn(history, "b", fails=False))
    assert history == ["b"]


async def test_a_write_that_undoes_another_ones() -> None:
    with pytest.raises(ScheduleError) as caught:
        await a_turn_rolls_back()
    assert caught.value.objects == ("history (local of a_turn_rolls_back)",)


class Gate:
    def __init__(self) -> None:
        self.free = 1
        self.line: collections.deque[trio.Event] = collections.deque()

    async def enter(self) -> None:
        if self.free:
            self.free -= 1
            return
        event = trio.Event()
        self.line.append(event)
        await event.wait()
        await trio.lowlevel.checkpoint()

    def leave(self) -> None:
        if self.line:
            self.line.popleft().set()
        else:
            self.free += 1


@explore_schedules
async def a_cancelled_waiter_takes_the_place_along() -> None:
    gate = Gate()
    scope = trio.CancelScope()

    async def visit(times: int) -> None:
        await gate.enter()
        for _ in range(times):
            await trio.lowlevel.checkpoint()
        gate.leave()

    async def impatient() -> None:
        with scope:
            await visit(0)

    async def cancel() -> None:
        for _ in range(4):
            await trio.lowlevel.checkpoint()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(visit, 2)
        nursery.start_soon(impatient)
        nursery.start_soon(visit, 0)
        nursery.start_soon(cancel)


@pytest.mark.slow
async def test_a_deadlock() -> None:
    with pytest.raises(ScheduleError) as caught:
        await a_cancelled_waiter_takes_the_place_along()
    assert "Gate.enter (test_locals.py:" in str(caught.value)
    assert any(path.startswith("Gate.") for path in caught.value.objects), caught.value


@explore_schedules(schedules=100)
async def tasks_append_to_a_list() -> None:
    done: list[int] = []

    async def work(number: int) -> None:
        await trio.lowlevel.checkpoint()
        done.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, 1)
        nursery.start_soon(work, 2)
    assert sorted(done) == [1, 2]


@pytest.mark.slow
async def test_what_is_shared_on_purpose_is_no_failure() -> None:
    await tasks_append_to_a_list()
