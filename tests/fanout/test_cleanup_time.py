"""What a fan-out cuts short has five seconds for its cleanup, counted from the cut.

Also if it was in its cleanup before: the cut comes from a scope inside the fan-out's run and not
from a run's cancel, so nobody had told the cleanup, and it went on for as long as it liked.
"""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from tests.fanout.probes import Boom, nothing_left_behind

CUT_AT = 1.0
WAYS = ["FailFast", "Quorum", "within", "source", "stream is left", "body of a stream raises"]


async def run_until_cut(way: str, body: Any) -> None:
    """Run items 0 and 1, and have the fan-out cut short after one second in the way named."""

    async def item(number: int) -> None:
        if number == 1:
            await body()
        elif way == "FailFast":
            await trio.sleep(CUT_AT)
            raise Boom
        elif way == "Quorum":
            await trio.sleep(CUT_AT)
        else:
            await trio.sleep_forever()

    async def numbers() -> Any:
        yield 0
        yield 1
        await trio.sleep(CUT_AT)
        raise Boom

    if way == "FailFast":
        with pytest.raises(FanOutError):
            await harness.fan_out(item, [0, 1])
    elif way == "source":
        with pytest.raises(FanOutError):
            await harness.fan_out(item, numbers())
    elif way == "Quorum":
        await harness.fan_out(item, [0, 1], policy=harness.Quorum(1))
    elif way == "within":
        await harness.fan_out(item, [0, 1], within=CUT_AT)
    elif way == "stream is left":
        async with harness.open_fan_out(item, [0, 1]):
            await trio.sleep(CUT_AT)
    else:
        assert way == "body of a stream raises"
        with pytest.raises(Boom):
            async with harness.open_fan_out(item, [0, 1]):
                await trio.sleep(CUT_AT)
                raise Boom


@pytest.mark.parametrize("way", WAYS)
async def test_a_cleanup_under_way_ends_five_seconds_after_the_cut(
    autojump_clock: MockClock, way: str
) -> None:
    async def body() -> None:
        with harness.cleanup():
            await trio.sleep(1_000)

    with nothing_left_behind():
        await run_until_cut(way, body)
    assert trio.current_time() == CUT_AT + 5


@pytest.mark.parametrize("way", WAYS)
async def test_a_cleanup_in_a_run_further_down_ends_too(
    autojump_clock: MockClock, way: str
) -> None:
    async def deeper(item: int) -> None:
        async with harness.open_run("deeper"):
            with harness.cleanup(max_seconds=3):
                await trio.sleep(1_000)

    async def body() -> None:
        await harness.fan_out(deeper, [1])

    with nothing_left_behind():
        await run_until_cut(way, body)
    assert trio.current_time() == CUT_AT + 3


@pytest.mark.parametrize("way", WAYS)
async def test_a_cleanup_that_starts_with_the_cut_has_the_same_time(
    autojump_clock: MockClock, way: str
) -> None:
    async def body() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with harness.cleanup():
                await trio.sleep(1_000)

    with nothing_left_behind():
        await run_until_cut(way, body)
    assert trio.current_time() == CUT_AT + 5


@pytest.mark.parametrize("way", WAYS)
async def test_the_tasks_of_start_soon_below_are_cut_too(
    autojump_clock: MockClock, way: str
) -> None:
    """They live in a nursery outside of the fan-out, where its cancel doesn't reach by itself."""
    ended_at: list[float] = []

    async def task() -> None:
        try:
            await trio.sleep(1_000)
        finally:
            ended_at.append(trio.current_time())

    async with trio.open_nursery() as nursery:

        async def body() -> None:
            harness.start_soon(nursery, task, run=harness.current_run())
            with trio.CancelScope(shield=True):
                await trio.sleep(3)

        await run_until_cut(way, body)
    assert ended_at == [CUT_AT]
