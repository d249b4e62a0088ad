"""A run held across a yield is noticed when it is entered, and only where it can do harm."""

import sys
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import trio
from anyio._core._eventloop import get_async_backend

import harness
from harness.agents import Agent
from harness.errors import HarnessWarning
from harness.models import ScriptedModel
from harness.runs._yields import ASYNC_GENERATOR

needs_channels = pytest.mark.skipif(
    not hasattr(trio, "as_safe_channel"), reason="this trio has no as_safe_channel"
)


async def read(stream: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in stream]


async def run_stream(prompt: str) -> AsyncGenerator[str, None]:
    async with harness.open_run(prompt):
        for number in range(3):
            await trio.lowlevel.checkpoint()
            yield f"{prompt}:{number}"


async def in_a_try(prompt: str) -> AsyncGenerator[str, None]:
    async with harness.open_run(prompt):
        try:
            yield prompt
        finally:
            await trio.lowlevel.checkpoint()


async def in_an_inner_block(prompt: str) -> AsyncGenerator[str, None]:
    async with harness.open_run(prompt), aclosing(after_the_yield(prompt)) as stream:
        async for one in stream:
            yield one


async def with_a_budget(prompt: str) -> AsyncGenerator[str, None]:
    async with harness.open_run(prompt, budget=harness.Budget(tokens=1)):
        yield prompt


async def in_one_branch(prompt: str) -> AsyncGenerator[str, None]:
    while True:
        async with harness.open_run(prompt) as run:
            if run.name == "x":
                yield prompt
            return


@pytest.mark.parametrize(
    "stream", [run_stream, in_a_try, in_an_inner_block, with_a_budget, in_one_branch]
)
async def test_a_run_across_a_yield_is_a_warning_once_for_each_position(
    stream: Callable[[str], AsyncGenerator[str, None]],
) -> None:
    again: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        await read(stream("x"))
        again = await read(stream("x"))
    assert again
    assert [one.category for one in caught] == [HarnessWarning]
    assert "held across a yield of the async generator" in str(caught[0].message)
    assert "@trio.as_safe_channel" in str(caught[0].message)
    assert caught[0].filename == __file__


async def a_fan_out(prompt: str) -> AsyncGenerator[str, None]:
    async with harness.open_fan_out(same, [prompt]) as results:
        async for result in results:
            yield result.value


async def an_agent(prompt: str) -> AsyncGenerator[str, None]:
    agent = Agent("desk", model=ScriptedModel(["one", "two"]))
    async with agent.stream(prompt) as stream:
        async for _ in stream:
            pass
        yield str(stream.reply.output)


async def same(value: str) -> str:
    return value


@pytest.mark.parametrize(
    ("stream", "what"),
    [(a_fan_out, "open_fan_out(…, name='same')"), (an_agent, "the stream of 'desk'")],
)
async def test_a_stream_across_a_yield_is_a_warning_too(
    stream: Callable[[str], AsyncGenerator[str, None]], what: str
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert await read(stream("x"))
        assert await read(stream("x"))
    assert [one.category for one in caught] == [HarnessWarning]
    assert f"{what} is held across a yield" in str(caught[0].message)
    assert "its cancel scope is its reader's" in str(caught[0].message)


async def before_the_yield(prompt: str) -> AsyncGenerator[str, None]:
    async with harness.open_run("outer"), harness.open_run(prompt):
        await trio.lowlevel.checkpoint()
    yield prompt


async def after_the_yield(prompt: str) -> AsyncGenerator[str, None]:
    yield prompt
    async with harness.open_run(prompt):
        await trio.lowlevel.checkpoint()
        return


async def around_and_not_inside(prompt: str) -> AsyncGenerator[str, None]:
    for _ in range(2):
        try:
            async with harness.open_run(prompt):
                found = await trio.to_thread.run_sync(lambda: prompt)
        finally:
            await trio.lowlevel.checkpoint()
        yield found


@pytest.mark.parametrize("stream", [before_the_yield, after_the_yield, around_and_not_inside])
async def test_a_run_that_is_left_before_the_yield_is_none(
    stream: Callable[[str], AsyncGenerator[str, None]],
) -> None:
    assert await read(stream("x"))  # Warnings are errors here.


@needs_channels
async def test_context_managers_and_channels_and_sources_of_harness_are_exempt() -> None:
    @asynccontextmanager
    async def desk() -> AsyncGenerator[harness.Run, None]:
        async with harness.open_run("desk") as run:
            yield run

    async with desk() as run:
        assert harness.current_run() is run

    @trio.as_safe_channel
    async def channel() -> AsyncGenerator[str, None]:
        async with harness.open_run("channel"):
            yield harness.current_run().name

    async with channel() as items:
        assert await read(items) == ["channel"]

    async def source() -> AsyncGenerator[int, None]:
        async with harness.open_run("source"):
            yield 1

    async def same(number: int) -> int:
        return number

    assert (await harness.fan_out(same, source())).values() == [1]


@pytest.fixture
async def fixture_of_pytest_trio() -> AsyncGenerator[str, None]:
    async with harness.open_run("fixture") as run:
        yield run.name


async def test_a_fixture_of_pytest_trio_may_hold_a_run(fixture_of_pytest_trio: str) -> None:
    assert fixture_of_pytest_trio == "fixture"  # Warnings are errors here.


def test_a_fixture_of_anyio_may_hold_a_run() -> None:
    """By what anyio's plugin for pytest calls: the suite has pytest-trio's, and not both."""

    async def fixture() -> AsyncGenerator[str, None]:
        async with harness.open_run("fixture") as run:
            yield run.name

    with get_async_backend("trio").create_test_runner({}) as runner:
        for value in runner.run_asyncgen_fixture(fixture, {}):
            assert value == "fixture"


@needs_channels
async def test_the_signature_of_the_third_seed_can_be_said_with_a_channel() -> None:
    """``run_stream()`` was an async generator of one shared agent, read by ten tasks at once."""
    mine: harness.RunLocal[list[str]] = harness.RunLocal(list)

    class Agent:
        @trio.as_safe_channel
        async def run_stream(self, prompt: str) -> AsyncGenerator[tuple[str, list[str]], None]:
            async with harness.open_run(prompt):
                mine.get().append(prompt)
                for number in range(3):
                    await trio.lowlevel.checkpoint()
                    yield f"{prompt}:{number}", list(mine.get())

    agent = Agent()
    async with agent.run_stream("A") as a, agent.run_stream("B") as b:  # One task reads both.
        for number in range(3):
            assert await a.receive() == (f"A:{number}", ["A"])
            assert await b.receive() == (f"B:{number}", ["B"])
        assert harness.current_run_or_none() is None

    found: dict[str, list[tuple[str, list[str]]]] = {}

    async def reader(prompt: str) -> None:
        async with agent.run_stream(prompt) as items:
            found[prompt] = await read(items)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(reader, f"M{number}")
    assert len(found) == 10
    assert all(own == [prompt] for prompt, items in found.items() for _, own in items)


@pytest.mark.speed
async def test_the_check_is_at_most_three_hundredths_of_a_run() -> None:
    """Outside of async generators, where all other runs are. Measured in turns: 0.1 to 0.3 %."""

    def look(_getframe: Callable[[int], Any] = sys._getframe) -> None:
        frame = _getframe(1)
        if frame.f_code.co_flags & ASYNC_GENERATOR:
            raise AssertionError

    def nothing() -> None:
        pass

    async def seconds(count: int, what: Callable[[], None] | None) -> float:
        began = time.perf_counter()
        if what is None:
            for _ in range(count):
                async with harness.open_run("run"):
                    pass
        else:
            for _ in range(count):
                what()
        return (time.perf_counter() - began) / count

    rounds = []
    for _ in range(20):
        whole = await seconds(500, None)
        rounds.append((await seconds(5_000, look) - await seconds(5_000, nothing)) / whole)
    assert sorted(rounds)[10] <= 0.03
