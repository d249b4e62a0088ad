"""The case of a batch that leaked: each program of it, and each rule that was drawn from it.

An agent that keeps its messages on its class is right for one ticket at a time, wrong for ten at
once, and right again when somebody looks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import ScheduleError
from harness.limits import Limiter
from harness.testing import assert_isolated

TASKS = [f"ticket {number}" for number in range(10)]


class LeakingAgent:
    messages: ClassVar[list[str]] = []

    def __init__(self, complete: Callable[[list[str]], Awaitable[str]]) -> None:
        self.complete = complete

    async def run(self, task: str) -> str:
        self.messages.clear()
        self.messages.append(task)
        for _ in range(2):
            self.messages.append(await self.complete(self.messages))
        return " / ".join(self.messages)


class Agent:
    """The agent after the fix: what belongs to a call is a local variable of it."""

    def __init__(self, complete: Callable[[list[str]], Awaitable[str]]) -> None:
        self.complete = complete

    async def run(self, task: str) -> str:
        messages = [task]
        for _ in range(2):
            messages.append(await self.complete(messages))
        return " / ".join(messages)


async def complete(messages: list[str]) -> str:
    asked = len(messages)
    await trio.sleep(1)
    return f"{asked}: about {messages[0]}"


async def leaking(task: str) -> str:
    return await LeakingAgent(complete).run(task)


async def alone(tasks: list[str]) -> list[str]:
    return [await Agent(complete).run(task) for task in tasks]


# The fault ---------------------------------------------------------------------------------------


async def test_one_at_a_time_it_is_right(autojump_clock: MockClock) -> None:
    assert [await leaking(task) for task in TASKS] == await alone(TASKS)
    assert (await harness.fan_out(leaking, TASKS, limit=1)).values() == await alone(TASKS)


async def test_ten_at_once_it_is_wrong(autojump_clock: MockClock) -> None:
    """A new agent for each task doesn't help: the class holds the list."""
    assert (await harness.fan_out(leaking, TASKS, limit=10)).values() != await alone(TASKS)


@pytest.mark.slow
async def test_the_kit_names_the_list() -> None:
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(leaking, TASKS[:3])
    assert caught.value.objects == ("tests.seeds.test_leaking_batch.LeakingAgent.messages",)


@pytest.mark.slow
async def test_to_look_at_it_takes_the_fault_away_and_a_replay_does_not() -> None:
    """A print or a breakpoint changed the order. A schedule is the order."""
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(leaking, TASKS[:3])

    async def printing(task: str) -> str:
        print("asked", task)
        return await leaking(task)

    for _ in range(3):
        with pytest.raises(ScheduleError) as again:
            await assert_isolated(printing, TASKS[:3], schedule=caught.value.schedule)
        assert again.value.objects == caught.value.objects


# The fix -----------------------------------------------------------------------------------------


async def test_fixed_it_gives_at_once_what_it_gives_alone(autojump_clock: MockClock) -> None:
    agent = Agent(complete)  # One for all, too.
    assert (await harness.fan_out(agent.run, TASKS, limit=10)).values() == await alone(TASKS)


@pytest.mark.slow
async def test_the_kit_finds_nothing_in_the_fixed_agent() -> None:
    await assert_isolated(Agent(complete).run, TASKS[:3], schedules=100)


async def test_a_batch_runs_as_many_at_once_as_it_is_told(autojump_clock: MockClock) -> None:
    """What a semaphore and a gather do, in order."""
    at_once = most = 0

    async def one(task: str) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        answer = await Agent(complete).run(task)
        at_once -= 1
        return answer

    tasks = [f"ticket {number}" for number in range(50)]
    assert (await harness.fan_out(one, tasks, limit=5)).values() == await alone(tasks)
    assert most == 5


async def test_the_limit_of_a_provider_bounds_a_batch_and_not_its_processors(
    autojump_clock: MockClock,
) -> None:
    """A hundred agents at once, and no more requests in a minute than are allowed."""
    limiter = Limiter("model", requests_per_minute=60)
    began: list[float] = []

    async def one(number: int) -> None:
        began.append(trio.current_time())
        await trio.sleep(1)

    each = harness.Attempt(limiter=limiter)
    await harness.fan_out(one, range(200), limit=100, each=each)
    for start in began:
        assert sum(start <= moment < start + 60 for moment in began) <= 60


async def test_a_conversation_of_one_user_never_reaches_another(autojump_clock: MockClock) -> None:
    talk: harness.RunLocal[list[str]] = harness.RunLocal(list, name="talk")

    async def converse(user: int) -> list[str]:
        for turn in range(3):
            talk.get().append(f"user {user}, turn {turn}")
            await trio.sleep(1)
        return talk.get()

    results = await harness.fan_out(converse, range(100))
    assert results.values() == [[f"user {n}, turn {t}" for t in range(3)] for n in range(100)]


@pytest.mark.slow
async def test_a_thousand_evaluations_at_once_give_what_each_gives_alone(
    autojump_clock: MockClock,
) -> None:
    tasks = [f"case {number}" for number in range(1_000)]
    together = (await harness.fan_out(Agent(complete).run, tasks, limit=1_000)).values()
    assert together == [f"{t} / 1: about {t} / 2: about {t}" for t in tasks]


# The same program in threads and on asyncio ------------------------------------------------------


class SyncAgent:
    @harness.open_run("agent")
    def run(self, task: str) -> str:
        mine = sync_messages.get()
        mine.append(task)
        for _ in range(2):
            time.sleep(0.001)  # The pool's threads take turns.
            mine.append(f"{len(mine)}: about {mine[0]}")
        return " / ".join(mine)


sync_messages: harness.RunLocal[list[str]] = harness.RunLocal(list, name="messages")


@pytest.mark.real_clock
def test_a_pool_of_workers_with_one_agent_is_right() -> None:
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(SyncAgent().run, TASKS * 10))
    assert answers == [f"{task} / 1: about {task} / 2: about {task}" for task in TASKS * 10]


def test_a_semaphore_and_a_gather_are_right_with_a_decorated_agent() -> None:
    local: harness.RunLocal[list[str]] = harness.RunLocal(list)

    @harness.open_run("agent")
    async def run(task: str) -> str:
        local.get().append(task)
        await asyncio.sleep(0)
        return " / ".join(local.get())

    async def main() -> list[Any]:
        semaphore = asyncio.Semaphore(5)

        async def one(task: str) -> str:
            async with semaphore:
                return await run(task)

        return await asyncio.gather(*[one(task) for task in TASKS])

    assert asyncio.run(main()) == TASKS
