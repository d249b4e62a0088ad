"""Cancelled at any checkpoint, a pipeline or router leaves no task, no slot, no open generator."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.flow import Batch, Pipeline, Router, stage, track
from tests.fanout.probes import Boom, FakeLimiter, living_tasks
from tests.support.checkpoints import cancel_at_every_checkpoint


class Held:
    """Counts what is held at the moment: calls, generators, reservations."""

    def __init__(self) -> None:
        """Hold nothing."""
        self.calls = 0
        self.generators = 0
        self.limiter = FakeLimiter(wait_seconds=1)
        self.pipelines: list[Any] = []

    async def work(self, item: Any) -> Any:
        """Nap, and fail for every third item."""
        self.calls += 1
        try:
            await trio.sleep(1)
            if item == 2:
                raise Boom(item)
            return item
        finally:
            self.calls -= 1

    async def split(self, item: Any) -> AsyncGenerator[Any, None]:
        """Yield the item twice."""
        self.generators += 1
        try:
            for _ in range(2):
                await trio.sleep(0.5)
                yield item
        finally:
            self.generators -= 1

    async def rescue(self, item: Any) -> Any:
        """Return the item after a nap; never fail."""
        self.calls += 1
        try:
            await trio.sleep(1)
            return item
        finally:
            self.calls -= 1

    async def gather(self, items: list[Any]) -> list[Any]:
        """Return the items after a nap."""
        self.calls += 1
        try:
            await trio.sleep(1)
            return items
        finally:
            self.calls -= 1

    async def numbers(self) -> AsyncGenerator[int]:
        """Yield some numbers with checkpoints."""
        self.generators += 1
        try:
            for number in range(4):
                await trio.lowlevel.checkpoint()
                yield number
        finally:
            self.generators -= 1

    def check(self) -> None:
        """Assert that nothing is held."""
        assert self.calls == 0
        assert self.generators == 0
        assert self.limiter.granted == self.limiter.returned
        for pipeline in self.pipelines:
            for one in pipeline.statistics().stages:
                assert (one.working, one.waiting, one.held_up) == (0, 0, 0)
        self.pipelines.clear()


def stages(held: Held, kind: str) -> list[Any]:
    kinds: dict[str, list[Any]] = {
        "plain": [stage(held.work, limit=2), stage(held.work)],
        "several": [stage(held.split), stage(held.work, limit=2)],
        "gathers": [
            stage(held.work, limit=2),
            stage(held.gather, batch=Batch(2, within=0.7), limit=2),
            stage(held.work),
        ],
        "attempts": [
            stage(
                held.work,
                limit=2,
                each=harness.Attempt(
                    timeout=0.9,
                    retry=harness.Retry(2, first_delay=1, jitter=0),
                    hedge=harness.Hedge(after=0.5),
                    limiter=held.limiter,
                    fallback=lambda item, error: item,
                ),
            ),
            stage(held.work),
        ],
    }
    return kinds[kind]


KINDS = ["plain", "several", "gathers", "attempts"]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["list", "async generator"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_pipeline_leaves_nothing_at_any_checkpoint(
    autojump_clock: MockClock, kind: str, source: str
) -> None:
    held = Held()
    before = living_tasks() + 1  # The helper's own nursery has one for the function.

    async def run() -> None:
        pipeline = Pipeline(*stages(held, kind), buffer=1)
        held.pipelines.append(pipeline)
        items: Any = range(4) if source == "list" else held.numbers()
        results = await pipeline.run(items, policy=harness.BestEffort())
        assert len(results) == 4

    def check() -> None:
        held.check()
        assert living_tasks() <= before
        assert harness.current_run_or_none() is None

    assert await cancel_at_every_checkpoint(run, check) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_leaves_nothing_and_loses_nothing_at_any_checkpoint(
    autojump_clock: MockClock, kind: str
) -> None:
    held = Held()
    read: list[int] = []
    streams: list[Any] = []

    async def run() -> None:
        read.clear()
        streams.clear()
        pipeline = Pipeline(*stages(held, kind), buffer=1)
        held.pipelines.append(pipeline)
        async with pipeline.open(range(4), policy=harness.BestEffort(), ordered=True) as stream:
            streams.append(stream)
            async for result in stream:
                read.append(result.index)
                await trio.lowlevel.checkpoint()

    def check() -> None:
        held.check()
        if streams:
            rest = [result.index for result in streams[-1].results]
            assert sorted(read + rest) == [0, 1, 2, 3]

    assert await cancel_at_every_checkpoint(run, check) >= 4


async def test_calls_that_share_limits_give_them_back_at_any_checkpoint(
    autojump_clock: MockClock,
) -> None:
    """The pipeline and the router are the same all the time; a lost slot would end in a hang."""
    held = Held()
    pipeline = Pipeline(stage(held.work, limit=1), stage(held.work, limit=1), buffer=0)
    router = Router(
        lambda item: "a", tracks={"a": track(pipeline, limit=2, escalate="b"), "b": held.rescue}
    )

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for item in (1, 2, 3):
                nursery.start_soon(router, item)

    async def check() -> None:
        held.check()
        for one in pipeline.statistics().stages:
            assert (one.working, one.waiting, one.held_up) == (0, 0, 0)
        for line in router.statistics().tracks.values():
            assert (line.working, line.waiting) == (0, 0)

    assert await cancel_at_every_checkpoint(run, check) >= 6


async def test_a_router_leaves_nothing_at_any_checkpoint(autojump_clock: MockClock) -> None:
    held = Held()

    async def classify(item: int) -> str:
        await trio.sleep(0.1)
        return "a"

    async def run() -> None:
        router = Router(
            classify, tracks={"a": track(held.work, limit=1, escalate="b"), "b": held.rescue}
        )
        results = await router.run(range(4), policy=harness.BestEffort())
        assert len(results) == 4

    assert await cancel_at_every_checkpoint(run, held.check) >= 4
