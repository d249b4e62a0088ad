"""A run held across a yield is an error under the kit only where two such generators cross."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
import trio

import harness
from harness.errors import HarnessWarning
from harness.testing import assert_isolated
from harness.testing.schedules import run_schedule

pytestmark = pytest.mark.filterwarnings("error")


async def stream(prompt: str) -> AsyncGenerator[str, None]:
    async with harness.open_run(prompt):
        for _ in range(3):
            await trio.lowlevel.checkpoint()
            yield f"{prompt} in {harness.current_run().name}"


async def inside_another(prompt: str) -> AsyncGenerator[str, None]:
    async with harness.open_run("outer"), aclosing(stream(prompt)) as inner:
        async for one in inner:
            yield one


async def alone() -> None:
    async with aclosing(stream("a")) as one:
        assert [text async for text in one] == ["a in a"] * 3


async def one_after_the_other() -> None:
    await alone()
    await alone()


async def one_inside_the_other() -> None:
    async with aclosing(inside_another("a")) as outer:
        assert [text async for text in outer] == ["a in a"] * 3


async def each_in_a_task() -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(alone)


async def in_turns() -> None:
    async with aclosing(stream("a")) as a, aclosing(stream("b")) as b:
        for _ in range(3):
            await anext(a)
            await anext(b)


async def from_inside_a_loop() -> None:
    async with aclosing(stream("a")) as a:
        async for _ in a:
            async with aclosing(stream("b")) as b:
                await anext(b)


@pytest.mark.parametrize(
    "program", [alone, one_after_the_other, one_inside_the_other, each_in_a_task]
)
def test_what_does_not_cross_is_no_error_even_where_warnings_are(program: object) -> None:
    for _ in range(2):
        assert run_schedule(program).error is None  # type: ignore[arg-type]


@pytest.mark.parametrize("program", [in_turns, from_inside_a_loop])
def test_two_that_one_task_reads_in_turns_are_an_error_each_time(program: object) -> None:
    for _ in range(2):
        error = run_schedule(program).error  # type: ignore[arg-type]
        assert isinstance(error, HarnessWarning)
        assert "open_run('b') in the async generator stream (" in str(error)
        assert "holds the run 'a'" in str(error)


@pytest.mark.slow
async def test_the_isolation_check_judges_a_reader_by_what_it_reads() -> None:
    async def agent(prompt: str) -> list[str]:
        async with aclosing(stream(prompt)) as one:
            return [text async for text in one]

    await assert_isolated(agent, ["a", "b"], schedules=20)
