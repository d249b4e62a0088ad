"""asyncio agents: what their runs share is found, named and proven, as under trio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest
import trio

import harness
from harness.asyncio_bridge import run_asyncio
from harness.errors import ScheduleError
from harness.testing import Isolation, assert_isolated
from tests.scale import scaled, some_of
from tests.testing.isolation import hidden_kinds, kinds
from tests.testing.isolation.test_kinds import KINDS

pytestmark = pytest.mark.slow

OF_TRIO = {
    *("foreign_client", "lost_slot", "unread_reply", "two_locks", "lost_wakeup", "cancel_flag"),
    *("shared_channel", "two_refreshes", "variable_of_the_loop"),
}
"""Kinds whose agents use trio for more than a pause."""


@pytest.fixture(autouse=True)
def _pauses_are_asyncios(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pause(times: int = 1) -> None:
        for _ in range(times):
            await asyncio.sleep(0)

    monkeypatch.setattr(kinds, "pause", pause)
    monkeypatch.setattr(hidden_kinds, "pause", pause)


def isolated(agent: Callable[[Any], Awaitable[Any]], **settings: Any) -> Isolation:
    """Check an agent, in asyncio."""
    return asyncio.run(assert_isolated(agent, ["a", "b", "c"], **settings))


def leak(agent: Callable[[Any], Awaitable[Any]], **settings: Any) -> ScheduleError:
    """Return what is found wrong with an agent."""
    with pytest.raises(ScheduleError) as caught:
        isolated(agent, **settings)
    return caught.value


# Under trio all are looked for; here some show that the same is done under asyncio.
@pytest.mark.parametrize("name", some_of((name for name in KINDS if name not in OF_TRIO), one_in=4))
def test_each_kind_of_shared_state_is_named_and_proven(name: str) -> None:
    for seed in range(scaled(1, full=30)):
        with pytest.raises(ScheduleError) as caught:
            asyncio.run(
                assert_isolated(
                    getattr(KINDS[name], name), kinds.INPUTS, seed=seed, backend="asyncio"
                )
            )
        assert set(caught.value.objects) == set(KINDS[name].KINDS[name]), caught.value
        assert "suspected" not in str(caught.value)
    corrected = getattr(KINDS[name], f"{name}_fixed")
    schedules = scaled(30, full=300)
    checking = assert_isolated(corrected, kinds.INPUTS, schedules=schedules, backend="asyncio")
    assert asyncio.run(checking).schedules_run == schedules


# The classes that people wrote down ---------------------------------------------------------------


class Agent:
    messages: ClassVar[list[str]] = []

    async def run(self, task: str) -> str:
        self.messages.append(task)
        await asyncio.sleep(0.01)
        return self.messages[-1]


@pytest.mark.parametrize("around", ["trio", "asyncio"])
def test_an_asyncio_agent_is_found_out_wherever_the_check_is_called(around: str) -> None:
    """It names no kind, so its first wait has to tell."""

    async def check() -> None:
        await assert_isolated(lambda task: Agent().run(task), ["a", "b"])

    with pytest.raises(ScheduleError) as caught:
        trio.run(check) if around == "trio" else asyncio.run(check())
    assert caught.value.objects == ("tests.testing.isolation.test_asyncio.Agent.messages",)
    assert "\nproof: " in str(caught.value)
    assert Agent.messages == []


def test_an_asyncio_agent_behind_the_bridge_is_found_and_only_suspected() -> None:
    """Its loop is in a thread of its own, which no schedule controls; it used to be a deadlock."""

    async def via_bridge(task: str) -> str:
        return await run_asyncio(Agent().run, task)

    with pytest.raises(ScheduleError, match="suspected, but not proven") as caught:
        trio.run(assert_isolated, via_bridge, ["a", "b"])
    assert caught.value.objects == ("tests.testing.isolation.test_asyncio.Agent.messages",)


class BaseAgent:
    """Keeps four things of a call on itself, as an agent that was only ever called in turn."""

    def __init__(self) -> None:
        self.cancelled = False
        self.current_task: asyncio.Task[Any] | None = None
        self.events: asyncio.Queue[str] = asyncio.Queue()
        self.injected: list[str] = []

    async def events_of(self, prompt: str) -> list[str]:
        self.cancelled = False
        self.current_task = asyncio.current_task()
        self.events.put_nowait(prompt)
        await asyncio.sleep(0.1)
        return [self.events.get_nowait()]

    async def with_injections(self, prompt: str) -> list[str]:
        self.injected.append(prompt)
        await asyncio.sleep(0.1)
        found = list(self.injected)
        self.injected.clear()
        return found

    async def stopped(self, prompt: str) -> str:
        self.cancelled = prompt == "b"
        await asyncio.sleep(0.1)
        return "stopped" if self.cancelled else prompt

    async def whose_task(self, prompt: str) -> bool:
        self.current_task = asyncio.current_task()
        await asyncio.sleep(0.1)
        return self.current_task is asyncio.current_task()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("events_of", "agent.events"),
        ("with_injections", "agent.injected"),
        ("stopped", "agent.cancelled"),
        ("whose_task", "agent.current_task"),
    ],
)
def test_each_field_of_a_shared_agent_is_named(method: str, path: str) -> None:
    agent = BaseAgent()
    error = leak(getattr(agent, method))
    expected = path.replace("agent.", "BaseAgent.")
    assert any(expected in found for found in error.objects), error.objects
    assert isolated(lambda prompt: getattr(BaseAgent(), method)(prompt), schedules=50).runs == 3


def test_bounded_parallel_calls_of_separate_agents_are_isolated() -> None:
    """A semaphore and a lock that all runs share are no leak; each new loop finds them free."""
    slots, lock = asyncio.Semaphore(2), asyncio.Lock()

    async def agent(task: str) -> str:
        async with slots:
            async with asyncio.TaskGroup() as group, asyncio.timeout(10):
                async with lock:
                    found = group.create_task(asyncio.to_thread(task.upper))
                await asyncio.wait_for(asyncio.sleep(0.1), 1)
        return found.result()

    seen = isolated(agent, schedules=200)
    assert seen.schedules_run == 200
    assert seen.uncontrolled == ()


# Cancels, runs, and what calls share on purpose ---------------------------------------------------


def test_a_slot_that_a_cancel_leaves_taken_is_found() -> None:
    slots = asyncio.Semaphore(1)

    async def agent(task: str) -> str:
        await slots.acquire()
        await asyncio.sleep(0.1)
        slots.release()
        return task

    error = leak(agent)
    assert "run 2 is cancelled" in str(error) or "run 1 is cancelled" in str(error)
    assert any("slots" in path for path in error.objects)
    assert "fix: let go of slots" in str(error)


def test_each_input_is_a_run_of_its_own_outside_the_callers() -> None:
    async def agent(task: str) -> str:
        await asyncio.sleep(0)
        path = harness.current_run().path
        assert "outer" not in path
        return path

    async def check() -> None:
        await harness.open_run("outer")(assert_isolated)(agent, ["a", "b"], schedules=20)

    asyncio.run(check())


def test_what_differs_only_inside_one_run_is_per_run() -> None:
    notes: harness.RunLocal[list[str]] = harness.RunLocal(list, name="notes")

    async def agent(task: str) -> str:
        notes.get().append(task)
        await asyncio.sleep(0)
        return notes.get()[-1]

    seen = isolated(agent, schedules=50)
    assert seen.per_run == ("notes (local of test_what_differs_only_inside_one_run_is_per_run)",)
    assert "notes" in str(leak(agent, schedules=50, same_run=True))
    assert isolated(agent, schedules=50, shared=[notes]).per_run == ()


def test_an_agent_that_cancels_its_own_task_ends_cancelled() -> None:
    async def agent(task: str) -> str:
        if task == "b":
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
        await asyncio.sleep(1)
        return task

    assert isolated(agent, schedules=50).runs == 3


def test_a_deadlock_between_runs_names_the_lock_and_who_holds_it() -> None:
    left, right = asyncio.Lock(), asyncio.Lock()

    async def agent(task: str) -> str:
        first, second = (left, right) if task == "a" else (right, left)
        async with first:
            await asyncio.sleep(0)
            async with second:
                return task

    words = str(leak(agent))
    assert "for a lock that task 'run 1' holds" in words
    assert "for a lock that task 'run 2' holds" in words


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"assert_isolated\(backend=\.\.\.\) takes one of 'trio'"):
        isolated(Agent().run, backend="curio")
