"""Cancelled at any checkpoint, a fan-out leaves no task, no reservation and no open source."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from tests.fanout.probes import Boom, FakeLimiter, living_tasks, nap
from tests.support.checkpoints import cancel_at_every_checkpoint


class Held:
    """Counts what is held at the moment: bodies, sources, reservations."""

    def __init__(self) -> None:
        """Hold nothing."""
        self.bodies = 0
        self.sources = 0
        self.limiter = FakeLimiter(wait_seconds=1)

    async def body(self, item: int) -> int:
        """Nap, and fail the first time for every third item."""
        self.bodies += 1
        try:
            await trio.sleep(item % 2)
            if item % 3 == 0:
                raise Boom(item)
            return item
        finally:
            self.bodies -= 1

    async def numbers(self, count: int = 4) -> AsyncGenerator[int]:
        """Yield some numbers with checkpoints."""
        self.sources += 1
        try:
            for number in range(count):
                await trio.lowlevel.checkpoint()
                yield number
        finally:
            self.sources -= 1

    def check(self) -> None:
        """Assert that nothing is held."""
        assert self.bodies == 0
        assert self.sources == 0
        assert self.limiter.granted == self.limiter.returned


EACH: dict[str, Any] = {
    "plain": lambda held: harness.Attempt(),
    "timeout": lambda held: harness.Attempt(timeout=0.5),
    "retry": lambda held: harness.Attempt(retry=harness.Retry(2, first_delay=1, jitter=0)),
    "hedge": lambda held: harness.Attempt(hedge=harness.Hedge(after=0.5)),
    "limiter": lambda held: harness.Attempt(limiter=held.limiter),
    "fallback": lambda held: harness.Attempt(fallback=lambda item, error: nap(1)),
}


@pytest.mark.parametrize("kind", ["list", "async generator"])
@pytest.mark.parametrize("each", EACH)
async def test_fan_out_leaves_nothing_at_any_checkpoint(
    autojump_clock: MockClock, each: str, kind: str
) -> None:
    held = Held()
    before: list[int] = []

    async def run() -> None:
        source: Any = held.numbers() if kind == "async generator" else range(4)
        results = await harness.fan_out(
            held.body, source, limit=2, policy=harness.BestEffort(), each=EACH[each](held)
        )
        assert len(results) == 4

    def check() -> None:
        held.check()
        before.append(living_tasks())
        assert before[-1] == before[0]
        assert harness.current_run_or_none() is None

    assert await cancel_at_every_checkpoint(run, check) >= 4


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("way", ["whole", "break", "quorum"])
async def test_a_stream_leaves_nothing_at_any_checkpoint(
    autojump_clock: MockClock, way: str, ordered: bool
) -> None:
    held = Held()

    async def run() -> None:
        policy: Any = harness.Quorum(1) if way == "quorum" else harness.BestEffort()
        async with harness.open_fan_out(
            held.body, held.numbers(), limit=2, policy=policy, ordered=ordered
        ) as stream:
            async for result in stream:
                if way == "break" and result.index == 1:
                    break
                await trio.lowlevel.checkpoint()

    assert await cancel_at_every_checkpoint(run, held.check) >= 3


async def test_a_stream_cancelled_at_any_checkpoint_loses_no_result(
    autojump_clock: MockClock,
) -> None:
    read: list[int] = []
    streams: list[Any] = []

    async def run() -> None:
        read.clear()
        streams.clear()
        async with harness.open_fan_out(nap, [0, 1, 0, 1, 2], limit=2) as stream:
            streams.append(stream)
            async for result in stream:
                read.append(result.index)
                await trio.lowlevel.checkpoint()

    def check() -> None:
        if streams:
            rest = [result.index for result in streams[-1].results]
            assert sorted(read + rest) == [0, 1, 2, 3, 4]

    assert await cancel_at_every_checkpoint(run, check) >= 4


async def test_a_race_leaves_nothing_at_any_checkpoint(autojump_clock: MockClock) -> None:
    held = Held()

    async def fails() -> int:
        return await held.body(3)

    async def wins() -> int:
        return await held.body(1)

    async def run() -> None:
        assert await harness.race(fails, wins, wins) == 1

    assert await cancel_at_every_checkpoint(run, held.check) >= 1
