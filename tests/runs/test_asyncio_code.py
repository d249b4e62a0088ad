"""Asyncio code that a trio task runs fails, and its error says how to run it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.runs._endings import ASYNCIO_NOTE


async def sleeps() -> None:
    await asyncio.sleep(0.01)


async def yields() -> None:
    await asyncio.sleep(0)


async def waits() -> None:
    await asyncio.Event().wait()


async def gathers() -> None:
    asyncio.get_running_loop()


async def times_out() -> None:
    async with asyncio.timeout(1):
        await asyncio.sleep(0)


def points(error: BaseException | None) -> int:
    return getattr(error, "__notes__", []).count(ASYNCIO_NOTE)


@pytest.mark.parametrize("code", [sleeps, yields, waits, gathers, times_out])
async def test_its_error_says_how_to_run_it_once(code: Callable[[], Awaitable[None]]) -> None:
    with pytest.raises((RuntimeError, TypeError, AttributeError)) as caught:
        async with harness.open_run("outer"), harness.open_run("inner"):
            await code()
    assert points(caught.value) == 1


async def test_one_item_of_a_fan_out_says_it_for_all(autojump_clock: MockClock) -> None:
    async def fn(item: int) -> None:
        await trio.sleep(item)
        async with harness.open_run("below"):
            await sleeps()

    for _ in range(2):  # Each fan-out has its own.
        results = await harness.fan_out(fn, range(10), policy=harness.BestEffort())
        assert [points(result.error) for result in results] == [1] + [0] * 9


async def test_an_item_that_is_tried_again_says_it_in_its_last_error(
    autojump_clock: MockClock,
) -> None:
    async def fn(item: int) -> None:
        await trio.sleep(item)
        async with harness.open_run("below"):
            await sleeps()

    each = harness.Attempt(retry=harness.Retry(attempts=3, on=RuntimeError))
    results = await harness.fan_out(fn, range(3), policy=harness.BestEffort(), each=each)
    assert [result.attempts for result in results] == [3, 3, 3]
    assert [points(result.error) for result in results] == [1, 0, 0]


async def test_other_errors_say_nothing_of_it() -> None:
    with pytest.raises(RuntimeError) as caught:
        async with harness.open_run("other"):
            raise RuntimeError("no running shoes")
    assert points(caught.value) == 0


def test_outside_trio_nobody_is_told_that_trio_runs_it() -> None:
    @harness.open_run("plain")
    def fn() -> None:
        asyncio.get_running_loop()

    with pytest.raises(RuntimeError) as caught:
        fn()
    assert points(caught.value) == 0
