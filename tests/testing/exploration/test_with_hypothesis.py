"""Schedules and Hypothesis go together: inputs drawn outside, orders explored inside."""

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.testing import Schedule, explore_schedules, run_schedule


@pytest.mark.slow
@settings(max_examples=5)
@given(names=st.lists(st.sampled_from("abc"), min_size=1, max_size=3))
@explore_schedules(schedules=10)
async def test_an_explored_test_takes_drawn_inputs(names: list[str]) -> None:
    done: list[str] = []

    async def work(name: str) -> None:
        await trio.lowlevel.checkpoint()
        done.append(name)

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(work, name)
    assert sorted(done) == sorted(names)


@settings(max_examples=20)
@given(st.builds(Schedule, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=5)))
def test_a_schedule_can_be_drawn(schedule: Schedule) -> None:
    async def program() -> int:
        lock = trio.Lock()
        count = 0

        async def increase() -> None:
            nonlocal count
            async with lock:
                read = count
                await trio.lowlevel.checkpoint()
                count = read + 1

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(increase)
        return count

    assert run_schedule(program, schedule).outcome.unwrap() == 3
