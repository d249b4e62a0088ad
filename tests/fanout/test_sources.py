"""Items come from any iterable or async iterable, each once, in order."""

from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from tests.fanout.probes import AsyncSource, Flight, Source, echo, nothing_left_behind


def generator() -> Generator[int]:
    """Yield five numbers."""
    yield from range(5)


async def async_generator() -> AsyncGenerator[int]:
    """Yield five numbers, a checkpoint before each."""
    for number in range(5):
        await trio.lowlevel.checkpoint()
        yield number


async def async_generator_without_checkpoints() -> AsyncGenerator[int]:
    """Yield five numbers at once."""
    for number in range(5):
        yield number


class OnlyIndexed:
    """Iterable by the old protocol: ``__getitem__`` and `IndexError`."""

    def __getitem__(self, index: int) -> int:
        """Return the index, up to 4."""
        if index >= 5:
            raise IndexError(index)
        return index


SOURCES: dict[str, Callable[[], Any]] = {
    "list": lambda: [0, 1, 2, 3, 4],
    "tuple": lambda: (0, 1, 2, 3, 4),
    "range": lambda: range(5),
    "dict": lambda: dict.fromkeys(range(5)),
    "iterator": lambda: Source(5),
    "generator": generator,
    "map": lambda: map(int, "01234"),
    "old protocol": OnlyIndexed,
    "async iterator": lambda: AsyncSource(5),
    "async generator": async_generator,
    "async generator without checkpoints": async_generator_without_checkpoints,
}


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize("kind", SOURCES)
async def test_every_kind_of_iterable_is_taken_whole(
    autojump_clock: MockClock, kind: str, limit: int
) -> None:
    with nothing_left_behind():
        results = await harness.fan_out(echo, SOURCES[kind](), limit=limit)
    assert list(results.values()) == [0, 1, 2, 3, 4]
    assert [result.index for result in results] == [0, 1, 2, 3, 4]
    assert [result.item for result in results] == [0, 1, 2, 3, 4]

    with nothing_left_behind():
        async with harness.open_fan_out(echo, SOURCES[kind](), limit=limit) as stream:
            read = [result.value async for result in stream]
    assert sorted(read) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["list", "generator", "async generator"])
async def test_an_empty_input_gives_empty_complete_results(
    autojump_clock: MockClock, kind: str
) -> None:
    async def nothing() -> AsyncGenerator[int]:
        numbers: tuple[int, ...] = ()
        for number in numbers:
            yield number

    empty: dict[str, Any] = {"list": [], "generator": iter(()), "async generator": nothing()}
    results = await harness.fan_out(echo, empty[kind])
    assert len(results) == 0
    assert results.complete
    results.raise_if_incomplete()


async def test_a_memory_channel_is_an_input(autojump_clock: MockClock) -> None:
    sender, receiver = trio.open_memory_channel[int](0)

    async def send() -> None:
        async with sender:
            for number in range(5):
                await trio.sleep(1)
                await sender.send(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        results = await harness.fan_out(echo, receiver)
    assert list(results.values()) == [0, 1, 2, 3, 4]


async def test_items_of_a_slow_async_source_start_when_they_arrive(
    autojump_clock: MockClock,
) -> None:
    started: list[float] = []

    async def arriving() -> AsyncGenerator[int]:
        for number in range(4):
            await trio.sleep(10)
            yield number

    async def body(_: int) -> None:
        started.append(trio.current_time())
        await trio.sleep(1)

    begin = trio.current_time()
    await harness.fan_out(body, arriving(), limit=3)
    assert [time - begin for time in started] == [10, 20, 30, 40]


async def test_none_and_false_are_items_like_others(autojump_clock: MockClock) -> None:
    items: list[Any] = [None, False, 0, "", [], None]
    results = await harness.fan_out(echo, items)
    assert list(results.values()) == items
    assert [result.item for result in results] == items
    assert results.complete


async def test_a_source_that_has_ended_is_not_asked_again(autojump_clock: MockClock) -> None:
    """Several items end after the source did; an iterator over a socket would block or fail."""
    source = Source(3)
    results = await harness.fan_out(Flight(trio.sleep), source, limit=10)
    assert len(results) == 3
    assert source.asked_after_end == 0


async def test_an_async_source_is_never_entered_twice_at_once(autojump_clock: MockClock) -> None:
    source = AsyncSource(200)
    await harness.fan_out(echo, source, limit=20)
    assert source.overlapping == 0
    assert len(source.driven_by) == 1
