"""A source is stopped with its fan-out, and may itself be what stops it."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from tests.fanout.probes import Boom, fan_out_run, nothing_left_behind, statuses

LAST = 3
"""The item with which these sources and functions end their own fan-out."""


def end(how: str) -> None:
    """Stop or cancel the run that the caller is in."""
    getattr(harness.current_run(), how)("enough")


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_generator_that_ends_its_own_fan_out_is_pulled_no_further(
    autojump_clock: MockClock, how: str
) -> None:
    """It was read to its end, and every item of it was started."""
    pulled: list[int] = []
    started: list[int] = []

    def numbers() -> Generator[int]:
        for number in range(1_000):
            if number == LAST:
                end(how)
            pulled.append(number)
            yield number

    async def body(item: int) -> int:
        started.append(item)
        await trio.lowlevel.checkpoint()
        return item

    with nothing_left_behind():
        results = await harness.fan_out(body, numbers(), limit=50)
    assert pulled == [0, 1, 2, 3]
    assert sorted(started) == [0, 1, 2]
    in_flight = "ok" if how == "stop" else "cancelled"
    assert statuses(results) == [in_flight] * LAST + ["skipped"]
    if how == "stop":
        assert "enough" in str(results[LAST].error)
    assert results.status == ("ok" if how == "stop" else "cancelled")


@pytest.mark.parametrize("argument", ["key", "each"])
@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_key_or_each_function_that_ends_the_fan_out_is_not_asked_again(
    autojump_clock: MockClock, argument: str, how: str
) -> None:
    asked: list[int] = []
    started: list[int] = []

    def ends(item: int) -> Any:
        if not asked or asked[-1] < LAST:
            asked.append(item)
            if item == LAST:
                end(how)
        return item if argument == "key" else harness.Attempt()

    async def body(item: int) -> int:
        started.append(item)
        await trio.lowlevel.checkpoint()
        return item

    arguments: dict[str, Any] = {argument: ends}
    with nothing_left_behind():
        results = await harness.fan_out(body, range(20), limit=50, **arguments)
    assert asked == [0, 1, 2, 3]
    assert max(started) <= LAST
    in_flight = "ok" if how == "stop" else "cancelled"
    assert statuses(results) == [in_flight] * (LAST + 1) + ["skipped"] * (20 - LAST - 1)


@attrs.define(eq=False)
class SlowToClose:
    """A source that dries up after two items, and needs a second to close."""

    given: int = 0
    closed_well: bool = False

    def __aiter__(self) -> AsyncIterator[int]:
        """Return itself: it can be read once."""
        return self

    async def __anext__(self) -> int:
        """Return the next number, or wait for ever."""
        if self.given == 2:
            await trio.sleep_forever()
        self.given += 1
        return self.given

    async def aclose(self) -> None:
        """Take a second."""
        await trio.sleep(1)
        self.closed_well = True

    async def as_generator(self) -> AsyncGenerator[int]:
        """Do the same as an async generator."""
        try:
            while True:
                yield await anext(self)
        finally:
            with harness.cleanup():
                await self.aclose()


@pytest.mark.parametrize("kind", ["class", "generator"])
@pytest.mark.parametrize("way", ["stop", "outer stop", "cancel", "failure", "within"])
async def test_a_source_has_its_time_to_close(
    autojump_clock: MockClock, kind: str, way: str
) -> None:
    """Under a stop the pull was cancelled and so was the closing: a connection left half open."""

    async def body(item: int) -> None:
        await trio.sleep(2)
        if way == "failure":
            raise Boom(item)
        if way in ("stop", "cancel"):
            getattr(fan_out_run(), way)("enough")
        elif way == "outer stop":
            run = fan_out_run().parent
            assert run is not None
            run.stop("enough")

    source = SlowToClose()
    items: Any = source if kind == "class" else source.as_generator()
    with nothing_left_behind():
        async with harness.open_run("outer"):
            with pytest.raises(FanOutError) if way == "failure" else contextlib.nullcontext():
                await harness.fan_out(body, items, within=2.5 if way == "within" else None)
    assert source.closed_well
    assert trio.current_time() == (3.5 if way == "within" else 3)


@pytest.mark.parametrize("way", ["stop", "cancel", "stop, then cancel", "failure", "within"])
async def test_the_time_of_a_source_to_close_has_an_end(
    autojump_clock: MockClock, way: str
) -> None:
    """Five seconds, also after a stop: one that never closed held its fan-out for ever."""

    class NeverCloses(SlowToClose):
        async def aclose(self) -> None:
            """Take for ever."""
            await trio.sleep_forever()

    async def body(item: int) -> None:
        await trio.sleep(2)
        if way == "failure":
            raise Boom(item)
        if way == "cancel":
            fan_out_run().cancel("enough")
        if way == "stop":
            fan_out_run().stop("enough")
        if way == "stop, then cancel":
            fan_out_run().cancel("enough", grace=1)

    with nothing_left_behind():
        with pytest.raises(FanOutError) if way == "failure" else contextlib.nullcontext():
            await harness.fan_out(body, NeverCloses(), within=2 if way == "within" else None)
    assert trio.current_time() == 7
