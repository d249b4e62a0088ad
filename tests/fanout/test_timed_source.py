"""A source whose next item may only take so long."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from harness.fanout import TimedSource
from tests.fanout.probes import echo, nothing_left_behind, statuses


class Source:
    """Gives an item after each of these seconds, from within a scope that it holds open."""

    def __init__(self, *waits: float) -> None:
        self.waits = waits
        self.closed_at: float | None = None

    async def items(self) -> AsyncGenerator[float]:
        try:
            with trio.CancelScope():
                for wait in self.waits:
                    await trio.sleep(wait)
                    yield wait
        finally:
            self.closed_at = trio.current_time()


@pytest.mark.parametrize("priority", [None, lambda item: -item])
@pytest.mark.parametrize("limit", [1, 10])
async def test_a_source_that_takes_too_long_ends_the_fan_out_after_what_came(
    autojump_clock: MockClock, limit: int, priority: Any
) -> None:
    source = Source(1, 2, 50, 3)
    policy = harness.BestEffort()
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(
            echo, TimedSource(source.items(), 10), limit=limit, policy=policy, priority=priority
        )
    assert "beyond the first 2: TooSlowError: the next item took longer than 10 s" in str(
        caught.value
    )
    assert statuses(caught.value.results) == ["ok", "ok"]
    assert isinstance(caught.value.exceptions[0], trio.TooSlowError)
    assert source.closed_at == trio.current_time() == 13


async def test_only_the_wait_for_an_item_that_there_is_room_for_counts(
    autojump_clock: MockClock,
) -> None:
    source = Source(9, 9, 9)

    async def slow(item: float) -> None:
        await trio.sleep(100)

    results = await harness.fan_out(slow, TimedSource(source.items(), 10), limit=1)
    assert results.complete
    assert len(results) == 3


async def test_what_was_read_ahead_is_started_though_there_is_no_room_yet(
    autojump_clock: MockClock,
) -> None:
    async def slow(item: float) -> None:
        await trio.sleep(100)

    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(
            slow,
            TimedSource(Source(0, 0, 0, 0, 50).items(), 10),
            limit=1,
            priority=lambda item: item,
            policy=harness.BestEffort(),
        )
    assert statuses(caught.value.results) == ["ok"] * 4
    assert trio.current_time() == 400


@pytest.mark.parametrize("how", ["stop", "cancel", "outer"])
async def test_an_end_before_that_time_is_that_end(autojump_clock: MockClock, how: str) -> None:
    source = Source(1, 50)
    with nothing_left_behind(), trio.move_on_after(5 if how == "outer" else 100):
        async with harness.open_fan_out(echo, TimedSource(source.items(), 10)) as stream:
            async for _ in stream:
                if how != "outer":
                    getattr(stream.run, how)("enough")
    assert source.closed_at == trio.current_time() == (5 if how == "outer" else 1)


async def test_a_channel_that_stays_silent_is_left_open(autojump_clock: MockClock) -> None:
    send, receive = trio.open_memory_channel[int](5)
    send.send_nowait(1)
    with pytest.raises(FanOutError, match="took longer than 10 s"):
        await harness.fan_out(echo, TimedSource(receive, 10))
    send.send_nowait(2)
    assert receive.receive_nowait() == 2


def test_what_nothing_can_interrupt_is_refused() -> None:
    items: Any = [1]
    with pytest.raises(TypeError, match="a plain one blocks every task"):
        TimedSource(items, 5)
    with pytest.raises(ValueError, match=r"TimedSource\(seconds\)"):
        TimedSource(Source().items(), -1)
