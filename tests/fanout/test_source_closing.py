"""A source is closed exactly once, by the one task that iterates it, on every way out."""

import inspect
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from tests.fanout.probes import (
    AsyncSource,
    Boom,
    Closing,
    echo,
    fan_out_run,
    leaves,
    nap,
    nothing_left_behind,
)


async def leave(way: str, items: Any, *, limit: int = 5) -> None:
    """Run a fan-out on an endless source and leave it in the given way after a few items."""

    async def body(item: int) -> int:
        if item == 7:
            if way == "failure":
                raise Boom(item)
            if way == "cancel":
                fan_out_run().cancel("enough")
            if way == "stop":
                fan_out_run().stop("enough")
            if way == "interrupt":
                raise KeyboardInterrupt
        await trio.sleep(1)
        return item

    if way == "failure":
        with pytest.raises(FanOutError):
            await harness.fan_out(body, items, limit=limit)
    elif way in ("cancel", "stop"):
        await harness.fan_out(body, items, limit=limit)
    elif way == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            await harness.fan_out(body, items, limit=limit)
    elif way == "success":
        await harness.fan_out(body, items, limit=limit, policy=harness.FirstSuccess())
    elif way == "within":
        await harness.fan_out(body, items, limit=limit, within=3.5)
    elif way == "outer cancel":
        with trio.move_on_after(3.5) as scope:
            await harness.fan_out(body, items, limit=limit)
        assert scope.cancelled_caught
    elif way == "break":
        async with harness.open_fan_out(body, items, limit=limit) as stream:
            read = 0
            async for _ in stream:
                read += 1
                if read == 5:
                    break
    else:
        assert way == "body error"
        with pytest.raises(Boom):
            async with harness.open_fan_out(body, items, limit=limit) as stream:
                async for _ in stream:
                    raise Boom


WAYS = [
    "failure",
    "cancel",
    "stop",
    "interrupt",
    "success",
    "within",
    "outer cancel",
    "break",
    "body error",
]


@pytest.mark.parametrize("way", WAYS)
async def test_an_endless_async_generator_is_closed_by_the_task_that_iterated_it(
    autojump_clock: MockClock, way: str
) -> None:
    """An async generator that several tasks drive corrupts the stack of cancel scopes."""
    source = Closing()
    with nothing_left_behind():
        await leave(way, source.async_numbers())
        assert source.closed == 1
        assert len(source.tasks) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_an_endless_async_iterator_is_closed_once(
    autojump_clock: MockClock, way: str
) -> None:
    source = AsyncSource()
    with nothing_left_behind():
        await leave(way, source)
        assert source.closed == 1
        assert len(source.driven_by) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_an_endless_generator_is_closed(autojump_clock: MockClock, way: str) -> None:
    source = Closing()
    numbers = source.numbers()  # Held here, so that no garbage collection closes it for us.
    with nothing_left_behind():
        await leave(way, numbers)
        assert source.closed == 1
        assert inspect.getgeneratorstate(numbers) == inspect.GEN_CLOSED


@pytest.mark.parametrize("way", WAYS)
async def test_a_source_that_waits_for_ever_does_not_keep_the_fan_out(
    autojump_clock: MockClock, way: str
) -> None:
    closed: list[str] = []

    async def dries_up() -> AsyncGenerator[int]:
        try:
            for number in range(8):
                yield number
            await trio.sleep_forever()
        finally:
            closed.append("closed")

    with nothing_left_behind():
        if way == "stop":
            # Soft, so what is in flight goes on; but nobody waits for an item that won't start.
            with trio.fail_after(60):
                await leave(way, dries_up())
        else:
            await leave(way, dries_up())
        assert closed == ["closed"]


async def numbers_in_scopes(count: int) -> AsyncGenerator[int]:
    """Yield numbers from inside a deadline, which is entered anew for each."""
    for number in range(count):
        with trio.fail_after(5):
            await trio.sleep(0.1)
            yield number


async def numbers_in_a_nursery(count: int) -> AsyncGenerator[int]:
    """Yield numbers from inside a nursery with a task in it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        for number in range(count):
            await trio.sleep(0.1)
            yield number
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("numbers", [numbers_in_scopes, numbers_in_a_nursery])
async def test_an_async_generator_may_hold_scopes_and_nurseries_open_while_it_yields(
    autojump_clock: MockClock, numbers: Any
) -> None:
    """One task enters and leaves them, and no scope of ours is left between the two."""
    with nothing_left_behind():
        results = await harness.fan_out(lambda item: nap(item % 3), numbers(30), limit=4)
        assert len(results.values()) == 30
    with nothing_left_behind():
        async with harness.open_fan_out(lambda item: nap(item % 3), numbers(30)) as stream:
            async for _ in stream:
                break


async def test_shielded_cleanup_of_an_async_generator_is_awaited(
    autojump_clock: MockClock,
) -> None:
    closed_at: list[float] = []

    async def numbers() -> AsyncGenerator[int]:
        try:
            while True:
                await trio.lowlevel.checkpoint()
                yield 1
        finally:
            with harness.cleanup():
                await trio.sleep(2)
            closed_at.append(trio.current_time())

    with nothing_left_behind():
        async with harness.open_fan_out(echo, numbers()) as stream:
            async for _ in stream:
                break
        assert closed_at == [trio.current_time()]


async def test_an_error_in_a_sources_cleanup_is_not_swallowed(autojump_clock: MockClock) -> None:
    async def numbers() -> AsyncGenerator[int]:
        try:
            while True:
                await trio.lowlevel.checkpoint()
                yield 1
        finally:
            raise Boom("in the cleanup")

    with nothing_left_behind(), pytest.raises((Boom, BaseExceptionGroup)) as caught:
        async with harness.open_fan_out(echo, numbers()) as stream:
            async for _ in stream:
                break
    assert [type(error) for error in leaves(caught.value)] == [Boom]


@pytest.mark.parametrize("kind", ["generator", "async generator"])
async def test_a_source_that_raises_is_an_entry_of_the_error_beside_what_was_done(
    autojump_clock: MockClock, kind: str
) -> None:
    def numbers() -> Generator[int]:
        yield from range(6)
        raise Boom("source")

    async def async_numbers() -> AsyncGenerator[int]:
        for number in numbers():
            yield number

    for policy in (harness.FailFast(), harness.BestEffort()):
        source: Any = numbers() if kind == "generator" else async_numbers()
        with nothing_left_behind(), pytest.raises(FanOutError) as caught:
            await harness.fan_out(echo, source, policy=policy, limit=2)
        assert [error.args for error in caught.value.exceptions] == [("source",)]
        assert [result.index for result in caught.value.results] == [0, 1, 2, 3, 4, 5]
        assert len(caught.value.results.values()) >= 4


@pytest.mark.parametrize("kind", ["generator", "async generator"])
async def test_what_ended_before_a_source_raised_can_be_read(
    autojump_clock: MockClock, kind: str
) -> None:
    def numbers() -> Generator[int]:
        yield from range(6)
        raise Boom("source")

    async def async_numbers() -> AsyncGenerator[int]:
        for number in numbers():
            yield number

    source: Any = numbers() if kind == "generator" else async_numbers()
    read: list[int] = []
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        async with harness.open_fan_out(echo, source, limit=2) as stream:
            async for result in stream:
                read.append(result.index)
    assert [error.args for error in caught.value.exceptions] == [("source",)]
    kept = read + [result.index for result in stream.results]
    assert sorted(kept) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("argument", ["key", "each"])
async def test_a_key_or_each_function_that_raises_fails_its_item(
    autojump_clock: MockClock, argument: str
) -> None:
    def third_fails(item: int) -> Any:
        if item == 3:
            raise Boom(argument)
        return item if argument == "key" else harness.Attempt()

    source = Closing()
    numbers = source.numbers()
    arguments: dict[str, Any] = {argument: third_fails}
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(echo, numbers, limit=2, **arguments)
    assert [error.args for error in caught.value.exceptions] == [(argument,)]
    assert source.closed == 1
    results = await harness.fan_out(
        echo, range(6), policy=harness.BestEffort(), limit=2, **arguments
    )
    assert [result.index for result in results.failed] == [3]
    assert list(results.values()) == [0, 1, 2, 4, 5]


async def test_an_each_function_that_returns_no_attempt_is_a_type_error(
    autojump_clock: MockClock,
) -> None:
    def each(item: int) -> Any:
        return 30

    with nothing_left_behind(), pytest.raises(FanOutError, match="Attempt") as caught:
        await harness.fan_out(echo, [1, 2], each=each, limit=1)
    assert [type(error) for error in caught.value.exceptions] == [TypeError]
