"""Check plain functions, as they are run in a pool of threads: found, named and proven."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
import trio

import harness
from harness.errors import ScheduleError
from harness.testing import Isolation, assert_isolated

pytestmark = pytest.mark.slow

HERE = "tests.testing.isolation.test_threads"


class Model:
    """Answers with the last thing it was asked, after a while."""

    def complete(self, messages: list[str]) -> str:
        time.sleep(1)
        return f"re: {messages[-1]}"


class LeakingAgent:
    """The case study's: the list is the class's, so all agents have the same."""

    messages: ClassVar[list[str]] = []

    def run(self, task: str) -> str:
        self.messages.append(task)
        reply = Model().complete(self.messages)
        self.messages.remove(task)
        return reply


class RightAgent:
    def __init__(self) -> None:
        self.messages: list[str] = []

    def run(self, task: str) -> str:
        self.messages.append(task)
        return Model().complete(self.messages)


POOL = ThreadPoolExecutor(3)
current: dict[str, str] = {}
LOCK = threading.Lock()
turns: list[str] = []


def leaking(task: str) -> str:
    return LeakingAgent().run(task)


def right(task: str) -> str:
    return RightAgent().run(task)


def by_a_global(task: str) -> str:
    current["task"] = task
    name = current["task"]
    return name.upper()


def with_a_lock(task: str) -> str:
    with LOCK:
        current["task"] = task
        time.sleep(1)
        return current["task"].upper()


def in_a_pool(task: str) -> str:
    return POOL.submit(leaking, task).result()


def rightly_in_a_pool(task: str) -> str:
    return POOL.submit(right, task).result()


async def in_a_thread_of_trio(task: str) -> str:
    return await trio.to_thread.run_sync(leaking, task)


async def in_a_thread_of_asyncio(task: str) -> str:
    return await asyncio.to_thread(leaking, task)


MESSAGES = f"{HERE}.LeakingAgent.messages"

LEAKS: list[tuple[Callable[[str], Any], str]] = [
    (leaking, MESSAGES),
    (by_a_global, f"{HERE}.current['task']"),
    (in_a_pool, MESSAGES),
    (in_a_thread_of_trio, MESSAGES),
    (in_a_thread_of_asyncio, MESSAGES),
]


@pytest.mark.long
@pytest.mark.parametrize(("function", "path"), LEAKS, ids=[one.__name__ for one, _ in LEAKS])
async def test_a_leak_between_threads_is_found_named_and_proven(
    function: Callable[[str], Any], path: str
) -> None:
    for seed in range(3):
        with pytest.raises(ScheduleError) as caught:
            await assert_isolated(function, ["a", "b", "c"], seed=seed)
        words = str(caught.value)
        assert caught.value.objects == (path,)
        assert "proof: in " in words
        assert f"{function.__name__} is not isolated: together" in words
        assert "not controlled" not in words
        with pytest.raises(ScheduleError) as again:
            await assert_isolated(function, ["a", "b", "c"], schedule=caught.value.schedule)
        assert again.value.objects == caught.value.objects
    assert LeakingAgent.messages == []
    assert current == {}


async def test_the_report_names_the_lines_of_threads() -> None:
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(leaking, ["a", "b"])
    words = str(caught.value)
    assert "written by run 1 ('a') at LeakingAgent.run (test_threads.py:" in words
    assert "read by run 1 ('a') at Model.complete (test_threads.py:" in words


@pytest.mark.parametrize("function", [right, with_a_lock, rightly_in_a_pool])
async def test_right_functions_raise_no_alarm(function: Callable[[str], str]) -> None:
    seen = await assert_isolated(function, ["a", "b", "c"], schedules=100)
    assert seen.schedules_run == 100
    assert seen.uncontrolled == ()


async def test_each_input_has_a_run_of_its_own() -> None:
    def path(task: str) -> str:
        return f"{task} in {harness.current_run().path}"

    seen = await assert_isolated(path, ["a", "b"], schedules=20)
    assert isinstance(seen, Isolation)


async def test_a_plain_function_that_returns_a_coroutine_is_awaited() -> None:
    async def answer(task: str) -> str:
        await trio.lowlevel.checkpoint()
        return task.upper()

    def begin(task: str) -> Coroutine[Any, Any, str]:
        return answer(task)

    assert (await assert_isolated(begin, ["a", "b"], schedules=20)).runs == 2


def test_plain_functions_are_checked_from_asyncio_too() -> None:
    async def main() -> None:
        await assert_isolated(leaking, ["a", "b"])

    with pytest.raises(ScheduleError, match="proof: in"):
        asyncio.run(main())
