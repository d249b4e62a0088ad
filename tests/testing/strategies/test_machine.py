"""Rules of a state machine are called at once, under schedules that Hypothesis draws."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from harness.testing.strategies import ConcurrentStateMachine, at_once
from tests.testing.linearizability.things import Cache, Counter, LockedCache, LockedCounter

KEYS = st.sampled_from("ab")


class CacheMachine(ConcurrentStateMachine):
    make: type[Cache] = LockedCache

    def __init__(self) -> None:
        super().__init__()
        self.cache = self.make()
        self.added: list[str] = []

    @at_once(key=KEYS, value=st.integers(1, 9))
    async def add(self, key: str, value: int) -> None:
        if await self.cache.add(key, value):
            await trio.lowlevel.checkpoint()
            self.added.append(key)

    @at_once(key=KEYS)
    async def get(self, key: str) -> None:
        await self.cache.get(key)

    async def afterwards(self) -> None:
        await trio.lowlevel.checkpoint()
        assert len(set(self.added)) == len(self.added)


class WrongCacheMachine(CacheMachine):
    make = Cache


class CounterMachine(ConcurrentStateMachine):
    make: type[Counter] = LockedCounter

    def __init__(self) -> None:
        super().__init__()
        self.counter = self.make()
        self.calls: list[int] = []

    @at_once()
    def increase(self) -> None:
        self.calls.append(self.counter.increase())

    def afterwards(self) -> None:
        assert self.counter.count == len(self.calls)


class WrongCounterMachine(CounterMachine):
    make = Counter


class AsyncioMachine(ConcurrentStateMachine):
    atomic = True

    def __init__(self) -> None:
        super().__init__()
        self.left = 1

    @at_once(amount=st.integers(1, 3))
    async def spend(self, amount: int) -> None:
        if self.left >= amount:
            if not self.atomic:
                await asyncio.sleep(0)
            self.left -= amount
        await asyncio.sleep(0)
        assert self.left >= 0


class WrongAsyncioMachine(AsyncioMachine):
    atomic = False


def run(machine: type[ConcurrentStateMachine]) -> None:
    chosen = settings(
        max_examples=100,
        stateful_step_count=6,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [CacheMachine, CounterMachine, AsyncioMachine])
def test_a_right_one_passes(machine: type[ConcurrentStateMachine]) -> None:
    run(machine)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [WrongCacheMachine, WrongCounterMachine, WrongAsyncioMachine])
def test_a_wrong_one_fails_with_two_calls(machine: type[ConcurrentStateMachine]) -> None:
    """What no two calls need is shrunk away: other calls, large arguments, switches."""
    with pytest.raises(AssertionError) as caught:
        run(machine)
    notes = "\n".join(caught.value.__notes__)
    made = re.findall(r"^state\.(\w+)\(.*task=", notes, re.MULTILINE)
    assert len(made) == 2, notes
    assert "in this order of steps:\n" in notes
    assert "'task 1' goes on for" in notes


def test_what_cannot_be_known_when_rules_are_chosen_is_refused() -> None:
    arguments: dict[str, Any] = {"target": st.none()}
    with pytest.raises(TypeError, match="called after all rules are chosen"):
        at_once(**arguments)
    with pytest.raises(TypeError, match="name that parameter otherwise"):
        at_once(task=st.integers())
